"""Task of the guessing example: find a number in an interval by asking (environment ``GuessNumber``).

``30-49?`` asks for a number from 30 to 49. Counting up from 30 rarely succeeds in five guesses; bisection always does.
The cold start mostly counts and sometimes bisects; reinforcement learning has to discover that bisection pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import stable_hash
from gspo_lightning.core.types import Message
from gspo_lightning.data.prompts.prompt_set import Completion, PromptSet, Record

Split = Literal["cold_start", "train", "held_out"]
_SHARES: dict[Split, range] = {"cold_start": range(0, 4), "train": range(4, 8), "held_out": range(8, 10)}
_DEMONSTRATIONS = 10
"""Demonstrations for each number; ``halving_share`` of them bisect."""


class GuessTask(PromptSet):
    """Numbers to guess with hints (``configs/guess.yaml``).

    Every pair of an interval and a number in it occurs once; a hash of the pair decides its split.

    Args:
        split: ``cold_start``, ``train`` or ``held_out``.
        numbers: size of an interval, 2 to 40.
        step: distance between the lower ends of two intervals, >= 1; they run from 10 to 99 - ``numbers``.
        guesses: most guesses of a demonstration, >= 1; as in the environment.
        halving_share: share of the demonstrations that bisect, in tenths; the others count up.
    """

    def __init__(
        self,
        split: Split = "train",
        numbers: int = 20,
        step: int = 1,
        guesses: int = 5,
        halving_share: float = 0.3,
    ) -> None:
        if split not in _SHARES:
            raise UserError("GuessTask.split", f"is {split!r}; it must be one of {', '.join(_SHARES)}")
        if not 2 <= numbers <= 40:
            raise UserError("GuessTask.numbers", f"is {numbers}; it must lie in 2 to 40")
        for name, value in (("step", step), ("guesses", guesses)):
            if value < 1:
                raise UserError(f"GuessTask.{name}", f"is {value}; it must be at least 1")
        if not 0 <= halving_share <= 1:
            raise UserError("GuessTask.halving_share", f"is {halving_share}; it must lie in [0, 1]")
        self.split = split
        self.numbers = numbers
        self.step = step
        self.guesses = guesses
        self.halving_share = halving_share

    def records(self) -> Sequence[Record]:
        """Return records with ``prompt`` and ``answer``."""
        return [
            {"prompt": f"{low}-{low + self.numbers - 1}?", "answer": str(secret)}
            for low in range(10, 100 - self.numbers, self.step)
            for secret in range(low, low + self.numbers)
            if stable_hash(f"{low}:{secret}") % 10 in _SHARES[self.split]
        ]

    def demonstrations(self) -> Sequence[tuple[str, Completion]]:
        """Return (prompt, conversation) pairs: most count up, a share ``halving_share`` bisects."""
        halving = round(self.halving_share * _DEMONSTRATIONS)
        return [
            (str(record["prompt"]), self._play(str(record["prompt"]), int(record["answer"]), i < halving))
            for record in self.records()
            for i in range(_DEMONSTRATIONS)
        ]

    def _play(self, prompt: str, secret: int, halve: bool) -> list[Message]:
        low = int(prompt[:2])
        high = int(prompt[3:5])
        messages: list[Message] = []
        for _ in range(self.guesses):
            guess = (low + high) // 2 if halve else low
            messages.append({"role": "assistant", "content": str(guess)})
            if guess == secret:
                break
            messages.append({"role": "user", "content": "<" if guess > secret else ">"})
            low, high = (guess + 1, high) if secret > guess else (low, guess - 1)
        return messages if messages[-1]["role"] == "assistant" else messages[:-1]
