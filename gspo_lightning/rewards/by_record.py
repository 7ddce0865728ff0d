"""Rewards chosen per record: a column of the record names the reward that scores its responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.registry import components
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.scores import NONE
from gspo_lightning.rewards.types import Score, ScoreStatus

RewardChoice = Reward | dict[str, Reward | str]
"""A reward, or ``{by: <column>, <value>: <reward>, ...}``, with ``default`` for every other value."""
Rewards = dict[str, RewardChoice]
"""Name -> the reward, or the choice of rewards, under this name."""


@dataclass(frozen=True, slots=True)
class ByRecord:
    """A choice among several rewards by the value of a column.

    A record whose value has no reward is outside this choice. Its responses are scored by the other rewards alone,
    which then carry the total weight (:func:`applying_weight`).

    Args:
        by: the column.
        rewards: value of the column, as text -> the reward for records with this value.
        default: the reward for records with any other value.

    Raises:
        UserError: no reward is given, or a value is not a reward.

    >>> from gspo_lightning.rewards import ExactMatch, FormatReward
    >>> both = ByRecord("source", {"math": ExactMatch()}, default=FormatReward("[0-9]+"))
    >>> type(both.of({"source": "math"})[1]).__name__, type(both.of({"source": "code"})[1]).__name__
    ('ExactMatch', 'FormatReward')
    """

    by: str
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    default: Reward | None = None

    def __post_init__(self) -> None:
        if not self.rewards and self.default is None:
            raise UserError(
                "data.rewards", f"by: {self.by} names no reward", fix=f"write {{by: {self.by}, VALUE: ...}}"
            )

    def of(self, columns: Mapping[str, Any]) -> tuple[str, Reward | None]:
        """Return the deciding value of a record and its reward, or None as the reward if the value has none."""
        value = str(columns.get(self.by))
        return value, self.rewards.get(value, self.default)

    def members(self) -> Iterator[tuple[str, Reward]]:
        """Iterate over (value, reward) pairs; the default's value is ``default``."""
        yield from self.rewards.items()
        if self.default is not None:
            yield "default", self.default


Judge = Reward | ByRecord
"""A reward, or a choice of rewards, under one name."""


def chosen(rewards: Mapping[str, RewardChoice | ByRecord], field_name: str = "data.rewards") -> dict[str, Judge]:
    """Return the rewards of a config, with a :class:`ByRecord` for each mapping with ``by``.

    Raises:
        UserError: a mapping without ``by``, or a value that is not a reward.
    """
    return {name: _judge(choice, f"{field_name}.{name}") for name, choice in rewards.items()}


def _judge(choice: object, where: str) -> Judge:
    if not isinstance(choice, Mapping):
        return choice  # type: ignore[return-value]  # what is no reward is refused by the runner, in its own words
    by = choice.get("by")
    if not isinstance(by, str) or not by:
        fix = "write {by: <column>, <value>: <reward>, ...}, or class_path and init_args for one reward"
        raise UserError(where, "is a mapping that does not say by which column it chooses", fix=fix)
    members = {str(value): reward for value, reward in choice.items() if value != "by"}
    for value, reward in members.items():
        if not isinstance(reward, Reward):
            near = did_you_mean(str(reward), components("rewards"))
            raise UserError(f"{where}.{value}", f"{reward!r} is not registered; {near}")
    default = members.pop("default", None)
    return ByRecord(by, members, default)


class Judges:
    """Rewards by name, and the single rewards behind them, named ``<name>.<value>`` where a column chooses.

    Args:
        rewards: name -> reward, or several by record.
    """

    def __init__(self, rewards: Mapping[str, RewardChoice | ByRecord]) -> None:
        self.given = chosen(rewards, "rewards")
        self.single: dict[str, Reward] = {}
        self.owner: dict[str, str] = {}
        """Name of a single reward -> the name it scores under."""
        for name, judge in self.given.items():
            members = judge.members() if isinstance(judge, ByRecord) else [("", judge)]
            for value, reward in members:
                key = f"{name}.{value}" if isinstance(judge, ByRecord) else name
                self.single[key] = reward
                self.owner[key] = name

    def silence(self, single: str, columns: Mapping[str, Any]) -> Score | None:
        """Return the score of a reward that does not apply to this record, or None if the reward has to run."""
        judge = self.given[self.owner[single]]
        if not isinstance(judge, ByRecord):
            return None
        if judge.by not in columns:
            return Score.missing(f"the record has no column {judge.by!r}")
        value, reward = judge.of(columns)
        return None if reward is self.single[single] else Score.not_applicable(f"not for {judge.by} = {value!r}")

    def applying(self, columns: Mapping[str, Any]) -> list[str]:
        """Return the names of the single rewards that apply to a record."""
        return [name for name in self.single if self.silence(name, columns) is None]

    @property
    def reads_images(self) -> bool:
        """True if any of the rewards asks for the images of a prompt."""
        return any(reward.reads_images() for reward in self.single.values())

    def columns(self) -> dict[str, str]:
        """Return name -> the column that chooses among its rewards."""
        return {name: judge.by for name, judge in self.given.items() if isinstance(judge, ByRecord)}

    def join(self, singles: Mapping[str, Score]) -> dict[str, Score]:
        """Merge the scores of single rewards into one score per name."""
        scores: dict[str, Score] = {}
        for single, score in singles.items():
            name = self.owner[single]
            if isinstance(self.given[name], ByRecord):
                if score.status is ScoreStatus.MISSING and score.detail == NONE:
                    score = Score.not_applicable(NONE)
                if name in scores and score.status is ScoreStatus.NOT_APPLICABLE:
                    continue
            scores[name] = score
        return scores


def applying_weight(weights: Mapping[str, float], applies: Mapping[str, bool]) -> float:
    """Return the factor for the weights of the rewards that apply, so that they add up to the weight of all rewards.

    Absolute values count: a penalty with a negative weight counts as much as a reward. The factor is 1 if all rewards
    apply, or none.

    >>> applying_weight({"correct": 1.0, "format": 0.5}, {"correct": True, "format": False})
    1.5
    """
    if all(applies.values()):
        return 1.0
    applied_weight = sum(abs(weights.get(name, 1.0)) for name, applied in applies.items() if applied)
    return sum(abs(weights.get(name, 1.0)) for name in applies) / applied_weight if applied_weight else 1.0
