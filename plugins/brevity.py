"""A worked example of a plug-in: a reward of one's own."""

from gspo_lightning.rewards import Reward


class Brevity(Reward):
    """1 for an empty completion, falling linearly to 0 at ``max_characters``."""

    def __init__(self, max_characters: int = 200) -> None:
        self.max_characters = max_characters

    def score(self, completion: str) -> float:
        """What is asked for by name arrives: prompt, completion, or any column such as answer."""
        return max(0.0, 1 - len(completion) / self.max_characters)
