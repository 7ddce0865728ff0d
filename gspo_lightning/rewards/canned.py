"""Canned completions: a check of the rewards before the first rollout, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.core.errors import counted
from gspo_lightning.rewards.by_record import Judges
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Sample, Score, ScoreStatus

FEW = 16
"""Records per data set checked before the first rollout, if no reward reads answers."""
MANY = 1000
"""The same for rewards that read answers."""
_THOUGHT = "6 * 7 is 42."
_NAMED = 4
"""Number of unreadable records that a message names."""


def canned(record: Mapping[str, Any], prompt: str, conversation: bool) -> list[Sample]:
    """Return an empty, a short and a correct answer; ``conversation`` adds the columns of a conversation."""
    texts = ["", "The answer is 42.", str(record.get("answer", "#42"))]
    samples = []
    for number, text in enumerate(texts):
        columns = {**record, **(conversation_columns(prompt, text) if conversation else {})}
        token_ids = tuple(range(len(text)))  # any ids, one a character
        samples.append(Sample(f"canned/{number}", prompt, text, token_ids, columns))
    return samples


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
        shorter = f"{_THOUGHT}{end}"
        longer = f"<think>{_THOUGHT}{end}"
        if end.startswith("\n"):
            longer = f"<think>\n{_THOUGHT}{end}"
        closed = Sample("canned/thought", prompt, shorter, tuple(range(len(shorter))), record)
        opened = Sample("canned/thought", prompt, longer, tuple(range(len(longer))), record)
        pairs.append((closed, opened))
    return pairs


def pays_more(scores: Sequence[Score | None]) -> bool:
    """True if the second of some pair (:func:`thoughts`) is paid more than the first."""
    rewards = [None if score is None else score.reward for score in scores]
    pairs = zip(rewards[::2], rewards[1::2], strict=True)
    return any(closed is not None and opened is not None and closed < opened for closed, opened in pairs)


def silent(judges: Judges, samples: Sequence[Sample], scores: Sequence[Mapping[str, Score]]) -> dict[str, str]:
    """Return the rewards without a value for any sample they apply to, with the reasons; ``scores`` are by name."""
    reasons: dict[str, str] = {}
    pairs = list(zip(samples, scores, strict=True))
    for single, reward in judges.single.items():
        name = judges.owner[single]
        judged = [(s, p) for s, p in pairs if judges.silence(single, s.columns) is None]
        outcomes = [score[name] for sample, score in judged if reward.missing_column(sample) is None]
        if (
            outcomes
            and all(outcome.reward is None for outcome in outcomes)
            and any(_said(outcome) for outcome in outcomes)
        ):
            reasons[single] = counted(outcome.detail for outcome in outcomes)
    return reasons


def _said(part: Score) -> bool:
    return part.status is not ScoreStatus.NOT_APPLICABLE


def examined(rewards: Mapping[str, Reward]) -> int:
    """Return how many records of each data set to check with these rewards."""
    return MANY if any(reward.reads_answers for reward in rewards.values()) else FEW


def unreadable(records: Sequence[Mapping[str, Any]], scores: Sequence[Score | None]) -> str | None:
    """Return a message about records whose answer cannot be read, or None; ``scores`` holds one score per record."""
    missing: list[int] = []
    details: list[str] = []
    for row, score in enumerate(scores):
        if score is not None and score.status is ScoreStatus.MISSING:
            missing.append(row)
            details.append(score.detail)
    if not missing:
        return None
    first, *others = [str(records[row].get("id", f"number {row + 1}")) for row in missing[:_NAMED]]
    end = ""
    if others:
        end = f"; then {', '.join(others)}{', ...' if len(missing) > _NAMED else ''}"
    return (
        f"{len(missing)} of {len(records)} records looked at will have no reward, whatever is answered, unless it "
        f"repeats what cannot be read; the first is {first}: {details[0]}{end}"
    )
