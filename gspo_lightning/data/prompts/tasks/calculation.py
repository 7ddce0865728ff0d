"""Task of the tool example: arithmetic too hard to do without a calculator (environment ``ToolUse``).

The answer to ``37*46+18:`` is ``#1720``. A tiny model cannot multiply; it can copy ``?37*46+18`` to a calculator and
the result ``=1720;`` back. The cold start mostly answers at once and sometimes asks; reinforcement learning has to
discover that asking pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import stable_hash, stream
from gspo_lightning.data.prompts.prompt_set import Completion, PromptSet, Record
from gspo_lightning.rewards.math.calculator import calculate

Split = Literal["cold_start", "train", "held_out"]
_SHARES: dict[Split, range] = {"cold_start": range(0, 4), "train": range(4, 9), "held_out": range(9, 10)}


class CalculatorTask(PromptSet):
    """Arithmetic with two-digit numbers (``configs/calculator.yaml``).

    The three splits are disjoint by construction: a hash of the expression alone decides its split.

    Args:
        split: ``cold_start``, ``train`` or ``held_out``.
        size: number of prompts, 1 to 50,000.
        operands: numbers per expression, 2 to 6.
        seed: of the expressions drawn.
        tool_share: share of the demonstrations that use the calculator.
    """

    def __init__(
        self,
        split: Split = "train",
        size: int = 4096,
        operands: int = 3,
        seed: int = 0,
        tool_share: float = 0.3,
    ) -> None:
        if split not in _SHARES:
            raise UserError("CalculatorTask.split", f"is {split!r}; it must be one of {', '.join(_SHARES)}")
        if not 2 <= operands <= 6:
            raise UserError("CalculatorTask.operands", f"is {operands}; it must lie in 2 to 6")
        available = min(50_000, 90**operands * 3 ** (operands - 1) * len(_SHARES[split]) // 20)
        if not 1 <= size <= available:
            raise UserError("CalculatorTask.size", f"is {size}; {operands} operands allow 1 to {available} in {split}")
        if not 0 <= tool_share <= 1:
            raise UserError("CalculatorTask.tool_share", f"is {tool_share}; it must lie in [0, 1]")
        self.split = split
        self.size = size
        self.operands = operands
        self.seed = seed
        self.tool_share = tool_share

    def records(self) -> Sequence[Record]:
        """Return records with ``prompt`` and ``answer``."""
        return [{"prompt": f"{text}:", "answer": str(calculate(text))} for text in self._expressions()]

    def demonstrations(self) -> Sequence[tuple[str, Completion]]:
        """Return (prompt, completion) pairs: most answer at once, a share ``tool_share`` asks the calculator."""
        pairs: list[tuple[str, Completion]] = []
        for i, record in enumerate(self.records()):
            prompt = str(record["prompt"])
            answer = str(record["answer"])
            asks = stream(self.seed, 1, i) % 1_000_000 < self.tool_share * 1_000_000
            talk = [
                {"role": "assistant", "content": f"?{prompt[:-1]}"},
                {"role": "tool", "content": f"={answer};"},
                {"role": "assistant", "content": f"#{answer}"},
            ]
            pairs.append((prompt, talk if asks else f"#{answer}"))
        return pairs

    def _expressions(self) -> Iterator[str]:
        drawn: set[str] = set()
        counter = 0
        while len(drawn) < self.size:
            draw = stream(self.seed, 0, counter)
            counter += 1
            text = str(10 + draw % 90)
            draw //= 90
            for _ in range(self.operands - 1):
                text += "+-*"[draw % 3] + str(10 + draw // 3 % 90)
                draw //= 270
            if text not in drawn and stable_hash(text) % 10 in _SHARES[self.split]:
                drawn.add(text)
                yield text
