"""Task of the quickstart: left-to-right arithmetic modulo 10.

The answer to ``7+5*3-4:`` is ``#2``. A tiny model can hardly compute it directly; writing the steps down
(``7+5=2;2*3=6;6-4=2;#2``) is easy. The cold start mostly answers at once and sometimes shows its steps; reinforcement
learning has to discover that the steps pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import stable_hash, stream
from gspo_lightning.data.prompts.prompt_set import PromptSet, Record

Split = Literal["cold_start", "train", "held_out"]
_SHARES: dict[Split, range] = {"cold_start": range(0, 4), "train": range(4, 9), "held_out": range(9, 10)}

_MOST = 128
_ONE_DRAW = 6
"""Operands that fit in one draw of 64 bits."""


class ChainTask(PromptSet):
    """Left-to-right arithmetic mod 10 (quickstart).

    The three splits are disjoint by construction: a hash of the expression alone decides its split.

    Args:
        split: ``cold_start``, ``train`` or ``held_out``.
        size: number of prompts.
        operands: digits per expression, 2 to 128; an answer with steps has 6 tokens for each but the first.
        seed: of the expressions drawn.
        step_share: share of the demonstrations that write their steps down.
    """

    def __init__(
        self,
        split: Split = "train",
        size: int = 4096,
        operands: int = 4,
        seed: int = 0,
        step_share: float = 0.3,
    ) -> None:
        if split not in _SHARES:
            raise UserError("ChainTask.split", f"is {split!r}; it must be one of {', '.join(_SHARES)}")
        if not 2 <= operands <= _MOST:
            raise UserError("ChainTask.operands", f"is {operands}; it must lie in 2 to {_MOST}")
        available = 10**operands * 3 ** (operands - 1) * len(_SHARES[split]) // 10
        if not 1 <= size <= available // 2:
            raise UserError("ChainTask.size", f"is {size}; {operands} operands allow 1 to {available // 2} in {split}")
        if not 0 <= step_share <= 1:
            raise UserError("ChainTask.step_share", f"is {step_share}; it must lie in [0, 1]")
        self.split = split
        self.size = size
        self.operands = operands
        self.seed = seed
        self.step_share = step_share

    def records(self) -> Sequence[Record]:
        """Return records with ``prompt``, ``answer`` and ``steps``."""
        records = []
        for prompt in self._prompts():
            steps, answer = _solve(prompt)
            records.append({"prompt": prompt, "answer": answer, "steps": steps})
        return records

    def demonstrations(self) -> Sequence[tuple[str, str]]:
        """Return (prompt, completion) pairs: most answer at once, a share ``step_share`` writes the steps."""
        pairs = []
        for i, record in enumerate(self.records()):
            shows = stream(self.seed, 1, i) % 1_000_000 < self.step_share * 1_000_000
            pairs.append((str(record["prompt"]), f"{record['steps'] if shows else ''}#{record['answer']}"))
        return pairs

    def _prompts(self) -> Iterator[str]:
        drawn: set[str] = set()
        counter = 0
        while len(drawn) < self.size:
            draw = stream(self.seed, 0, counter)
            for more in range(1, -(-self.operands // _ONE_DRAW)):
                draw |= stream(self.seed, 0, counter, more) << 64 * more
            counter += 1
            prompt = _expression(draw, self.operands)
            if prompt not in drawn and stable_hash(prompt) % 10 in _SHARES[self.split]:
                drawn.add(prompt)
                yield prompt


def _expression(draw: int, operands: int) -> str:
    text = str(draw % 10)
    draw //= 10
    for _ in range(operands - 1):
        text += "+-*"[draw % 3] + str(draw // 3 % 10)
        draw //= 30
    return text + ":"


def _solve(prompt: str) -> tuple[str, str]:
    """Return the written steps and the answer.

    >>> _solve("7+5*3-4:")
    ('7+5=2;2*3=6;6-4=2;', '2')
    """
    value = int(prompt[0])
    steps = ""
    for i in range(1, len(prompt) - 1, 2):
        operator = prompt[i]
        digit = int(prompt[i + 1])
        if operator == "+":
            result = value + digit
        elif operator == "-":
            result = value - digit
        else:
            result = value * digit
        result %= 10
        steps += f"{value}{operator}{digit}={result};"
        value = result
    return steps, str(value)
