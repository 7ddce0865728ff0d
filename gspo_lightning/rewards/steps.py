"""Rewards of steps and turns: score a response step by step (process rewards), or sum what its environment gave."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.scores import to_score
from gspo_lightning.rewards.types import Sample, Score


class StepReward(Reward):
    """A judge of the steps of a completion: each gets a score, and in training an advantage of its own.

    Subclasses define :meth:`score_steps`. A step ends behind ``marker``, the last one at the end of the completion.
    White space alone is no step and belongs to the step before it. The reward of the completion is the mean of its
    steps' scores: the value in the logs, and the one that decides whether a group is dead. The advantages come from the
    single scores (:mod:`gspo_lightning.loop.advantages.steps`; ``GAE`` credits each at the end of its step), and the
    objective must take one per token or per segment.

    >>> class _Short(StepReward):
    ...     def score_steps(self, steps: Sequence[str], sample: Sample) -> list[float]:
    ...         return [float(len(step) < 5) for step in steps]
    >>> score = _Short().score_one(Sample("0", "?", "one\\nand two\\n"))
    >>> score.reward, score.steps
    (0.5, ((4, 1.0), (12, 0.0)))

    Args:
        marker: text that ends a step; a line feed by default.
    """

    def __init__(self, marker: str = "\n") -> None:
        if not marker:
            raise UserError(f"{type(self).__name__}.marker", "is empty; it must be the text that ends a step")
        self.marker = marker

    @abstractmethod
    def score_steps(self, steps: Sequence[str], sample: Sample) -> Sequence[float]:
        """Return one finite number per step, in order.

        Args:
            steps: parts of the completion; joined they are all of it.
            sample: prompt, completion and the columns of the record.
        """

    def score(self, sample: Sample) -> Score:
        """Return the mean over the steps, with the score of each; a completion without a step is a model error."""
        ends = split_steps(sample.completion, self.marker)
        if not ends:
            return Score.model_error("no steps")
        name = type(self).__name__
        steps = [sample.completion[start:end] for start, end in zip((0, *ends), ends, strict=False)]
        values: Any = self.score_steps(steps, sample)
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or len(values) != len(steps):
            count = f"{len(values)} scores" if isinstance(values, Sequence) else f"a {type(values).__name__}"
            raise UserError(
                f"rewards.{name}",
                f"sample {sample.id}: score_steps returned {count} for {len(steps)} steps",
                fix="return one number per step, in order",
            )
        scores = [to_score(value, name, sample.id).reward for value in values]
        rewards = [score for score in scores if score is not None]
        if len(rewards) < len(scores):
            return Score.missing("a step has no score")
        return Score(sum(rewards) / len(rewards), steps=tuple(zip(ends, rewards, strict=True)))


def split_steps(completion: str, marker: str) -> tuple[int, ...]:
    """Return the ends of the steps: rising places in the completion, the last its length; no step is white space only.

    >>> split_steps("a\\n\\nb\\nc", "\\n"), split_steps("a;b;", ";"), split_steps(" \\n", "\\n")
    ((3, 5, 6), (2, 4), ())
    """
    pieces = [match.end() for match in re.finditer(re.escape(marker), completion)]
    if not pieces or pieces[-1] < len(completion):
        pieces.append(len(completion))
    ends: list[int] = []
    start = 0
    for end in pieces:
        if completion[start:end].replace(marker, "").strip():
            ends.append(end)
        elif ends:
            ends[-1] = end
        start = end if ends else 0
    return tuple(ends)


class EnvironmentReward(Reward):
    """The sum of the rewards that the environment gave for the turns of a conversation.

    >>> EnvironmentReward().score(environment_reward=1.5).reward
    1.5
    """

    def score(self, environment_reward: float | None = None) -> Score:
        """Return the column ``environment_reward`` of a conversation; *missing* without one."""
        return Score.missing("no conversation") if environment_reward is None else Score(float(environment_reward))
