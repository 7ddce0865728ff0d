"""Programming task for a tiny model: turn prefix notation into a Python expression.

The answer to ``-*x3+y2:`` is the body of ``f = lambda x, y: ...``, such as ``(x*3)-(y+2)``. Writing the operators down
in order (``x*3-y+2``) is shorter, and wrong wherever Python's precedence interferes. The cold start mostly leaves the
brackets out; reinforcement learning, with tests as reward, has to discover that they pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import stable_hash, stream
from gspo_lightning.data.prompts.prompt_set import PromptSet, Record

Split = Literal["cold_start", "train", "held_out"]
_SHARES: dict[Split, range] = {"cold_start": range(0, 4), "train": range(4, 9), "held_out": range(9, 10)}
_OUTER = "-*"
_INNER = "+-*"
_LEAVES = "xy123456789"
_PREFIX = "f = lambda x, y: "
_AVAILABLE = len(_OUTER) * len(_INNER) ** 2 * len(_LEAVES) ** 4


class CodeTask(PromptSet):
    """Prefix notation to a Python expression, graded by tests (configs/code.yaml).

    The three splits are disjoint by construction: a hash of the prompt alone decides its split.

    Args:
        split: ``cold_start``, ``train`` or ``held_out``.
        size: number of prompts.
        tests: inputs that each program is run on.
        seed: of the prompts drawn.
        bracket_share: share of the demonstrations that write the brackets.
    """

    def __init__(
        self,
        split: Split = "train",
        size: int = 4096,
        tests: int = 3,
        seed: int = 0,
        bracket_share: float = 0.3,
    ) -> None:
        if split not in _SHARES:
            raise UserError("CodeTask.split", f"is {split!r}; it must be one of {', '.join(_SHARES)}")
        most = _AVAILABLE * len(_SHARES[split]) // 20
        if not 1 <= size <= most:
            raise UserError("CodeTask.size", f"is {size}; {split} allows 1 to {most}")
        if tests < 1:
            raise UserError("CodeTask.tests", f"is {tests}; it must be at least 1")
        if not 0 <= bracket_share <= 1:
            raise UserError("CodeTask.bracket_share", f"is {bracket_share}; it must lie in [0, 1]")
        self.split = split
        self.size = size
        self.tests = tests
        self.seed = seed
        self.bracket_share = bracket_share

    def records(self) -> Sequence[Record]:
        """Return records with ``prompt`` and an ``answer`` for :class:`CodeExecutor`."""
        return [{"prompt": prompt, "answer": self._answer(prompt)} for prompt in self._prompts()]

    def demonstrations(self) -> Sequence[tuple[str, str]]:
        """Return (prompt, completion) pairs: most leave the brackets out, a share ``bracket_share`` writes them."""
        return [
            (prompt, _infix(prompt, brackets=stream(self.seed, 1, i) % 1_000_000 < self.bracket_share * 1_000_000))
            for i, prompt in enumerate(self._prompts())
        ]

    def _answer(self, prompt: str) -> dict[str, object]:
        tests = []
        for number in range(self.tests):
            draw = stream(stable_hash(prompt), 2, number)
            x = 2 + draw % 8
            y = 2 + draw // 8 % 8
            tests.append({"input": [x, y], "output": _value(prompt, x, y)})
        return {"type": "call", "entry_point": "f", "prefix": _PREFIX, "tests": tests}

    def _prompts(self) -> Iterator[str]:
        drawn: set[str] = set()
        counter = 0
        while len(drawn) < self.size:
            prompt = _expression(stream(self.seed, 0, counter))
            counter += 1
            if prompt not in drawn and stable_hash(prompt) % 10 in _SHARES[self.split]:
                drawn.add(prompt)
                yield prompt


def _expression(draw: int) -> str:
    text = ""
    for characters in (_OUTER, _INNER, _LEAVES, _LEAVES, _INNER, _LEAVES, _LEAVES):
        text += characters[draw % len(characters)]
        draw //= len(characters)
    return text + ":"


def _infix(prompt: str, *, brackets: bool) -> str:
    """Return the expression as Python.

    >>> _infix("-*x3+y2:", brackets=True), _infix("-*x3+y2:", brackets=False)
    ('(x*3)-(y+2)', 'x*3-y+2')
    """
    outer, first, a, b, second, c, d = tuple(prompt[:7])
    left = a + first + b
    right = c + second + d
    return f"({left}){outer}({right})" if brackets else f"{left}{outer}{right}"


def _value(prompt: str, x: int, y: int) -> int:
    """Evaluate the prefix notation itself.

    >>> _value("-*x3+y2:", 2, 5)
    -1
    """
    outer, first, a, b, second, c, d = tuple(prompt[:7])
    values = [{"x": x, "y": y}.get(leaf) or int(leaf) for leaf in (a, b, c, d)]
    return _apply(outer, _apply(first, values[0], values[1]), _apply(second, values[2], values[3]))


def _apply(operator: str, left: int, right: int) -> int:
    if operator == "+":
        return left + right
    return left - right if operator == "-" else left * right
