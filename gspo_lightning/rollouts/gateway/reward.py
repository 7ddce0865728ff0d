"""Reward that an agent returned, printed or sent: a number, its parts, and rewards of single turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gspo_lightning.core.errors import is_finite
from gspo_lightning.core.escape import whole

MOST_PARTS = 256
"""Parts of a reward, each of which is a metric."""
PART_CHARACTERS = 200
"""Characters of a part's name."""


@dataclass(frozen=True, slots=True)
class AgentReward:
    """Reward reported by an agent."""

    reward: float | None = None
    """Reward of the whole rollout, beside those of its turns; None if there is none."""
    parts: dict[str, float] = field(default_factory=dict)
    """Numbers to log, by name."""
    turns: tuple[float, ...] = ()
    """Rewards of the first turns, in the order of sampling; they add to the reward."""


def read_reward(body: Mapping[str, Any]) -> AgentReward:
    """Read ``reward``, ``parts`` and ``turns``; each may be left out.

    >>> read_reward({"reward": True, "parts": {"steps": 3}})
    AgentReward(reward=1.0, parts={'steps': 3.0}, turns=())

    Raises:
        ValueError: one of them is no finite number, or no object or list of such numbers.
    """
    reward = body.get("reward")
    parts = body.get("parts")
    turns = body.get("turns")
    if not isinstance(parts, Mapping | None):
        raise ValueError(f"parts is {_shown(parts)}, which is no object of numbers")
    if not isinstance(turns, Sequence | None) or isinstance(turns, str):
        raise ValueError(f"turns is {_shown(turns)}, which is no list of numbers")
    if parts is not None and (len(parts) > MOST_PARTS or any(len(str(name)) > PART_CHARACTERS for name in parts)):
        raise ValueError(f"parts may have {MOST_PARTS} numbers, with names of {PART_CHARACTERS} characters")
    values = {whole(str(name)): _number(f"parts.{name}", value) for name, value in (parts or {}).items()}
    paid = tuple(_number(f"turns[{i}]", value) for i, value in enumerate(turns or ()))
    return AgentReward(None if reward is None else _number("reward", reward), values, paid)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or is_finite(value):
        return float(value)
    raise ValueError(f"{name} is {_shown(value)}, which is no finite number")


def _shown(value: object) -> str:
    return f"{value!r}"[:80]
