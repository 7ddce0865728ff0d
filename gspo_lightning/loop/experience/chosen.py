"""Choice of the rollouts of an iteration whose tokens are recorded, and the description of their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from gspo_lightning.core.tolerance import equal
from gspo_lightning.core.types import Rollout
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.packing.rows import Row, rows_of

FULL_UPDATES, THIN_ITERATIONS = 2_000, 10
"""Updates whose iterations are all recorded, and the interval in iterations afterwards, as in event files."""


def chosen_rows(batch: RolloutBatch, count: int, iteration: int, update: int) -> list[dict[str, Any]]:
    """Return descriptions of the rows to record: JSON data, which checkpoints keep.

    Whole groups are chosen. The first one has the smallest hash, so it is taken whenever its prompt comes by. Groups
    whose rewards differ follow: the others teach nothing, and come last.

    Args:
        batch: this rank's rollouts, with rewards and advantages.
        count: rollouts to choose, at most; of a larger group the first ones.
        iteration: number of the rollout batch.
        update: optimizer steps so far.
    """
    if count < 1 or (update >= FULL_UPDATES and iteration % THIN_ITERATIONS):
        return []
    ordered = sorted((group for group in batch.groups if group), key=lambda group: _order(group[0]))
    first, rest = ordered[:1], ordered[1:]
    chosen: list[tuple[str, Rollout]] = [("any", rollout) for group in first for rollout in group]
    for word, live in (("live", True), ("dead", False)):
        chosen += [(word, rollout) for group in rest if _live(group) == live for rollout in group]
    why = {id(rollout): word for word, rollout in chosen[:count]}
    return [
        {
            "mini_batch": number,
            "place": place,
            "iteration": iteration,
            "choice": why[id(row.rollout)],
            **_described(row, update),
        }
        for number, place, row in _places(batch)
        if id(row.rollout) in why
    ]


def _places(batch: RolloutBatch) -> Iterator[tuple[int, int, Row]]:
    """Yield (mini-batch, position in it, row) for all rows of this rank."""
    for number, parts in enumerate(batch.dealt):
        for place, row in enumerate(row for part in parts for row in part):
            yield number, place, row


def _order(rollout: Rollout) -> bytes:
    return hashlib.blake2b(rollout.prompt.text.encode("utf-8", "replace"), digest_size=8).digest()


def _live(group: Sequence[Rollout]) -> bool:
    rewards = [rollout.reward for rollout in group if rollout.reward is not None]
    return bool(rewards) and not equal(min(rewards), max(rewards))


def _described(row: Row, update: int) -> dict[str, Any]:
    rollout = row.rollout
    found: dict[str, Any] = {
        "prompt_id": rollout.prompt.id,
        "sample": rollout.sample,
        "prompt": rollout.prompt.text,
        "answer": rollout.prompt.columns.get("answer", ""),
        "completion": rollout.transcript,
        "reward": rollout.reward,
        "parts": rollout.reward_parts,
        "finish": str(rollout.finish_reason),
        "age": max(0, update - rollout.policy_version),
    }
    optional = {
        "source": rollout.prompt.columns.get("source"),
        "statuses": {name: status for name, status in rollout.reward_statuses.items() if status != "ok"},
        "logged": rollout.reward_logged,
        "extra": rollout.reward_extra,
        "missing": rollout.missing or rollout.lost,
        "turn_rewards": list(rollout.turn_rewards),
        "pictures": [picture.sha256 for picture in rollout.prompt.media],
        "ages": _ages(row, update),
        **(_conversation(rollout) if row.span.start == 0 else {}),
        **(_of_branch(row) if len(rollout.rows) > 1 else {}),
    }
    return found | {name: value for name, value in optional.items() if value not in (None, "", [], {})}


def _conversation(rollout: Rollout) -> dict[str, Any]:
    """Return the tree of an agent's rollout, or the messages of a conversation, for the first of its rows."""
    return {"tree": list(rollout.tree)} if rollout.tree else {"messages": list(rollout.messages)}


def _ages(row: Row, update: int) -> list[int]:
    """Return the age of each token in optimizer steps, if the response was sampled in pieces."""
    return [] if row.rollout.versions is None else (update - row.slice(row.rollout.versions)).tolist()


def _of_branch(row: Row) -> dict[str, Any]:
    """Return the number of a row among several, the earlier row whose tokens it shares most of, and how many."""
    rows = rows_of((row.rollout,))
    number = next(i for i, other in enumerate(rows) if other.span.start == row.span.start)
    shared = [_common(row.context, (*other.context, *other.token_ids.tolist())) for other in rows[:number]]
    parent = max(range(number), key=lambda i: (shared[i], i)) if number else -1
    return {"row": number, "rows": len(rows), "parent": parent, "shared": shared[parent] if number else 0} | {
        "context": len(row.context)
    }


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
