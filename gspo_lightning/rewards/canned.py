"""Canned completions: a check of the rewards before the first rollout, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.core.errors import counted
from gspo_lightning.rewards.by_record import Judges
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Sample, Score, ScoreStatus

FEW, MANY = 16, 1000
"""Records per data set checked before the first rollout: for all rewards, and for those that read answers."""
_THOUGHT = "6 * 7 is 42."
_NAMED = 4
"""Number of unreadable records that a message names."""


def canned(record: Mapping[str, Any], prompt: str, conversation: bool) -> list[Sample]:
    """Return an empty, a short and a correct answer; ``conversation`` adds the columns of a conversation."""
    texts = ["", "The answer is 42.", str(record.get("answer", "#42"))]
    columns = [{**record, **(conversation_columns(prompt, text) if conversation else {})} for text in texts]
    return [Sample(f"canned/{i}", prompt, text, tuple(range(len(text))), columns[i]) for i, text in enumerate(texts)]


def conversation_columns(prompt: str, text: str) -> dict[str, Any]:
    """Return the columns of a conversation of one turn."""
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
    return {"messages": messages, "turn_rewards": [0.0], "environment_reward": 0.0}


def thoughts(record: Mapping[str, Any], prompt: str) -> list[tuple[Sample, Sample]]:
    """Return pairs of completions, the second with its thought opened in it and not by the prompt."""
    answer = str(record.get("answer", "42"))
    ends = (f"</think>{answer}", f"\n</think>\n\n\\boxed{{{answer}}}", f"\n</think>\n<answer>\n{answer}\n</answer>")
    pairs = []
    for end in ends:
        shorter, longer = f"{_THOUGHT}{end}", f"<think>{_THOUGHT}{end}"
        if end.startswith("\n"):
            longer = f"<think>\n{_THOUGHT}{end}"
        texts = [Sample("canned/thought", prompt, text, tuple(range(len(text))), record) for text in (shorter, longer)]
        pairs.append((texts[0], texts[1]))
    return pairs


def pays_more(scores: Sequence[Score | None]) -> bool:
    """True if the second of some pair (:func:`thoughts`) is paid more than the first."""
    rewards = [None if score is None else score.reward for score in scores]
    return any(a is not None and b is not None and a < b for a, b in zip(rewards[::2], rewards[1::2], strict=True))


def silent(judges: Judges, samples: Sequence[Sample], scores: Sequence[Mapping[str, Score]]) -> dict[str, str]:
    """Return the rewards without a value for any sample they apply to, with the reasons; ``scores`` are by name."""
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
    """Return how many records of each data set to check with these rewards."""
    return MANY if any(reward.reads_answers for reward in rewards.values()) else FEW


def unreadable(records: Sequence[Mapping[str, Any]], scores: Sequence[Score | None]) -> str | None:
    """Return a message about records whose answer cannot be read, or None; ``scores`` holds one score per record."""
    found = [(i, s.detail) for i, s in enumerate(scores) if s is not None and s.status is ScoreStatus.MISSING]
    if not found:
        return None
    names = [str(records[i].get("id", f"number {i + 1}")) for i, _ in found[:_NAMED]]
    others = f"; then {', '.join(names[1:])}{', ...' if len(found) > _NAMED else ''}" if names[1:] else ""
    return (
        f"{len(found)} of {len(records)} records looked at will have no reward, whatever is answered, unless it "
        f"repeats what cannot be read; the first is {names[0]}: {found[0][1]}{others}"
    )
