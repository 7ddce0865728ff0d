"""Format rewards: a completion matches a pattern or not."""

from __future__ import annotations

import re

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.reward import Reward


class FormatReward(Reward):
    r"""1 if the completion matches a regular expression, otherwise 0.

    The worker's deadline stops a pattern that backtracks for ever (status ``timeout``, reward 0).

    Args:
        pattern: Python's ``re`` syntax; ``.`` matches line ends as well.
        full_match: the whole completion must match; otherwise it is enough that the pattern occurs.

    >>> FormatReward(r"<think>.*</think>.*\\boxed{.+}").score("<think>6 * 7</think> \\boxed{42}")
    1.0
    """

    def __init__(self, pattern: str, full_match: bool = True) -> None:
        try:
            self.regex = re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise UserError("FormatReward.pattern", f"{pattern!r} is not a regular expression: {error}") from error
        self.pattern = pattern
        self.full_match = full_match

    def score(self, completion: str) -> float:
        """Match the pattern."""
        match = self.regex.fullmatch if self.full_match else self.regex.search
        return float(match(completion) is not None)
