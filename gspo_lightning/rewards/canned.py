"""What rewards judge before the first rollout: completions that need no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.errors import counted
from gspo_lightning.rewards.base import Reward
from gspo_lightning.rewards.by_record import Judges
from gspo_lightning.rewards.types import Sample, Score, ScoreStatus

__all__ = ["FEW", "canned", "conversation_columns", "examined", "silent", "unreadable"]

FEW, MANY = 16, 1000
"""Records of each set that are looked at before the first rollout: by all rewards, and by those that read answers."""
_NAMED = 4
"""So many records without a reward are named."""


def canned(record: Mapping[str, Any], prompt: str, conversation: bool) -> list[Sample]:
    """An empty, a short and a right answer to a record; ``conversation`` adds the columns of one."""
    texts = ["", "The answer is 42.", str(record.get("answer", "#42"))]
    columns = [{**record, **(conversation_columns(prompt, text) if conversation else {})} for text in texts]
    return [Sample(f"canned/{i}", prompt, text, tuple(range(len(text))), columns[i]) for i, text in enumerate(texts)]


def conversation_columns(prompt: str, text: str) -> dict[str, Any]:
    """What a conversation of one turn brings with it."""
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
    return {"messages": messages, "turn_rewards": [0.0], "environment_reward": 0.0}


def silent(judges: Judges, samples: Sequence[Sample], scores: Sequence[Mapping[str, Score]]) -> dict[str, str]:
    """Names of the rewards that gave nothing to anything they could judge, and why; ``scores`` are by name, too."""
    found: dict[str, str] = {}
    pairs = list(zip(samples, scores, strict=True))
    for single, reward in judges.single.items():
        name = judges.owner[single]
        asked = [(s, p) for s, p in pairs if judges.silence(single, s.columns) is None]
        parts = [score[name] for sample, score in asked if reward.missing_column(sample) is None]
        if parts and all(part.reward is None for part in parts) and any(_said(part) for part in parts):
            found[single] = counted(part.detail for part in parts)
    return found


def _said(part: Score) -> bool:
    return part.status is not ScoreStatus.NOT_APPLICABLE


def examined(rewards: Mapping[str, Reward]) -> int:
    """How many records of each set should be given to a check of these rewards."""
    return MANY if any(reward.reads_answers for reward in rewards.values()) else FEW


def unreadable(records: Sequence[Mapping[str, Any]], scores: Sequence[Score | None]) -> str | None:
    """What to say about records whose answer cannot be read; ``scores`` are those of one completion each."""
    found = [(i, s.detail) for i, s in enumerate(scores) if s is not None and s.status is ScoreStatus.MISSING]
    if not found:
        return None
    names = [str(records[i].get("id", f"number {i + 1}")) for i, _ in found[:_NAMED]]
    others = f"; then {', '.join(names[1:])}{', ...' if len(found) > _NAMED else ''}" if names[1:] else ""
    return (
        f"{len(found)} of {len(records)} records looked at will have no reward, whatever is answered, unless it "
        f"repeats what cannot be read; the first is {names[0]}: {found[0][1]}{others}"
    )
