"""Number guessing: the environment answers each guess with smaller or larger."""

from __future__ import annotations

import re

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Message, Prompt
from gspo_lightning.rollouts.environments.environment import Environment, Step

_NUMBERS = re.compile("[0-9]{1,20}")


class GuessNumber(Environment):
    """Number guessing: the record's ``answer``; hints are ``<`` (smaller), ``>`` (larger) or ``?`` (not one number).

    A guess may stand in a sentence. The reward is 1 for the right number. The conversation ends with it or with the
    last guess.

    Args:
        guesses: guesses allowed; halving finds a number among ``2 ** guesses - 1``.
        cost: subtracted from the reward of every wrong guess, >= 0; reward units.

    >>> from gspo_lightning.core.types import Prompt
    >>> import asyncio
    >>> game = GuessNumber(guesses=2)
    >>> asyncio.run(game.reset(Prompt(0, "30-49?", (3,), {"answer": "41"})))
    []
    >>> asyncio.run(game.step("39")), asyncio.run(game.step("41"))
    (([{'role': 'user', 'content': '>'}], 0.0, False), ([], 1.0, True))
    """

    def __init__(self, guesses: int = 5, cost: float = 0.0) -> None:
        if guesses < 1:
            raise UserError("GuessNumber.guesses", f"is {guesses}; it must be at least 1")
        if cost < 0:
            raise UserError("GuessNumber.cost", f"is {cost}; it must be 0 or above")
        self.guesses = guesses
        self.cost = cost

    async def reset(self, prompt: Prompt) -> list[Message]:
        """Take the number from the record.

        Raises:
            UserError: the record's answer is not a whole number.
        """
        answer = str(prompt.columns.get("answer", ""))
        if not (answer.isascii() and answer.isdigit()):
            raise UserError("GuessNumber", f"the answer of prompt {prompt.id} is {answer!r}; it must be a whole number")
        self.secret = int(answer)
        self.left = self.guesses
        return []

    async def step(self, completion: str) -> Step:
        """Compare the guess with the number."""
        self.left -= 1
        numbers = _NUMBERS.findall(completion)
        guess = int(numbers[0]) if len(numbers) == 1 else None
        if guess == self.secret:
            return [], 1.0, True
        if guess is None:
            hint = "?"
        else:
            hint = "<" if guess > self.secret else ">"
        return [{"role": "user", "content": hint}], 0.0 - self.cost, self.left == 0
