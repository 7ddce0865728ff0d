"""Tasks whose answers can be made long while a tiny model still learns them.

Named in a grid: ``data.train: {class_path: experiments.lab.tasks.RewrittenChain, init_args: {operands: 10}}``.
"""

from __future__ import annotations

from collections.abc import Sequence

from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.data.prompts.prompt_set import Record

__all__ = ["RewrittenChain"]


class RewrittenChain(ChainTask):
    """The quickstart's task, its steps written as the whole expression with what has been worked out left blank.

    A step is a line of 2 N tokens for N operands, so an answer has 2 N (N - 1) + 2. Every token is found at the same
    distance, one line back: in the quickstart's own notation an operand's distance grows with each step, and models of
    0.1 million parameters do not learn to find the 30th.
    """

    def records(self) -> Sequence[Record]:
        """As those of ``ChainTask``, with other ``steps``."""
        return [{**record, "steps": _rewritten(str(record["prompt"]))} for record in super().records()]


def _rewritten(prompt: str) -> str:
    """The lines.

    >>> _rewritten("7+5*3-4:")
    '==2*3-4;====6-4;======2;'
    """
    value, lines = int(prompt[0]), ""
    for i in range(1, len(prompt) - 1, 2):
        operator, digit = prompt[i], int(prompt[i + 1])
        value = (value + digit if operator == "+" else value - digit if operator == "-" else value * digit) % 10
        lines += "=" * (i + 1) + str(value) + prompt[i + 2 : -1] + ";"
    return lines
