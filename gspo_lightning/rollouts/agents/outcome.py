"""Outcome of an agent's rollout: its class of failure, its rollout as rows, and measurements of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gspo_lightning.core.escape import whole
from gspo_lightning.core.types import FinishReason, Message, Prompt, Rollout
from gspo_lightning.rollouts.agents.codec import PolicyCodec
from gspo_lightning.rollouts.gateway.session import Session
from gspo_lightning.rollouts.gateway.trace import REASONS, Match, Node, TracedRow

Treatment = Literal["missing", "score"]
CLASSES: Mapping[str, Treatment] = {
    "agent": "missing", "environment": "missing", "context": "score", "deadline": "missing",
}  # fmt: skip
"""Class of failure -> what becomes of the rollout, unless the run says otherwise."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of :class:`~gspo_lightning.rollouts.AgentRollouts` for the rollouts of a call."""

    in_flight: int
    deadline_s: float
    set_up_s: float | None
    verify_s: float | None
    max_turns: int
    max_missing_rate: float
    match: Match
    socket: str
    strict: bool
    failures: Mapping[str, Treatment]


@dataclass(slots=True)
class Finished:
    """A rollout whose agent has ended.

    Args:
        prompt: of the rollout.
        sample: its number in the group.
        session: its requests; closed.
        failure: class, or empty.
        why: message of the failure.
        lost: True if the rollout is missing.
    """

    prompt: Prompt
    sample: int
    session: Session
    failure: str = ""
    why: str = ""
    lost: bool = False
    rows: list[TracedRow] = field(default_factory=list)

    def rollout(self, codec: PolicyCodec, version: int) -> Rollout:
        """Return the rollout with a row for every branch; a missing one may have no token, but a row needs one."""
        rows = self.rows
        if not rows:
            nothing = self.prompt.token_ids[-1]
            rows = [TracedRow(self.prompt.token_ids, (nothing,), (False,), (0.0,), (version,), ())]
        ends = [sum(len(row.token_ids) for row in rows[: i + 1]) for i in range(len(rows))]
        turns = [
            (end - len(row.token_ids) + place, node)
            for end, row in zip(ends, rows, strict=True)
            for place, node in row.turns
        ]
        last = max((node for _, node in turns), key=lambda node: node.order, default=None)
        reward = self.session.reward
        earned = [node.reward + (reward if node is last and reward else 0.0) for _, node in turns]
        paid = reward is not None
        known = all(row.logprobs is not None for row in rows)
        versions = [v for row in rows for v in row.versions]
        routes = [row.routes for row in rows if row.routes is not None]
        said = sorted((node for _, node in turns), key=lambda node: node.order)
        return Rollout(
            prompt=self.prompt,
            sample=self.sample,
            token_ids=torch.tensor([i for row in rows for i in row.token_ids], dtype=torch.int64),
            logprobs=torch.tensor([x for row in rows for x in row.logprobs or ()]) if known else None,
            response_mask=torch.tensor([own for row in rows for own in row.mask], dtype=torch.bool),
            finish_reason=self._finish(last is not None and last.piece is not None and last.piece.truncated),
            policy_version=version,
            reward_logged={} if self.lost else self.session.parts,
            text="\n".join(codec.text(node.token_ids) for node in said),
            messages=() if last is None else _messages([m for node in last.path for m in node.messages]),
            turn_ends=tuple(place for place, _ in turns),
            turn_rewards=tuple(earned) if paid else (),
            malformed_calls=self.session.malformed_calls,
            lost=whole(f"{self.failure}: {self.why}") if self.lost else "",
            versions=torch.tensor(versions, dtype=torch.int64) if {*versions} != {version} else None,
            routes=torch.cat(routes) if len(routes) == len(rows) else None,
            row_ends=tuple(ends),
            contexts=tuple(row.context for row in rows),
            tree=self._tree(turns),
        )

    def _tree(self, turns: Sequence[tuple[int, Node]]) -> tuple[dict[str, Any], ...]:
        """Return all that was said, as plain data; ``turns`` are the trained ones with the position after each."""
        nodes = self.session.trace.nodes()
        numbers = {id(node): number for number, node in enumerate(nodes)}
        ends = {id(node): end for end, node in turns}
        found = []
        for node in nodes:
            count, end = len(node.token_ids), ends.get(id(node))
            told: dict[str, Any] = {"parent": None if node.parent is None else numbers[id(node.parent)]}
            told |= {"messages": _messages(node.messages), "tokens": count}
            if node.piece is not None:
                told |= {"asked_s": round(node.asked_s, 4), "answered_s": round(node.answered_s, 4)}
                told["trained"] = None if end is None else (end - count, end)
            found.append(told)
        return tuple(found)

    def _finish(self, cut: bool) -> FinishReason:
        if self.lost:
            return FinishReason.LOST
        return FinishReason.LENGTH if self.failure == "context" or cut else FinishReason.DONE


class Tally:
    """Measurements of agents since they were last taken."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._waited_s = self._tool_s = 0.0

    def add(self, finished: Sequence[Finished], waited_s: float) -> None:
        """Count rollouts, and the seconds for which their turns waited to be sampled."""
        self._sums["rollouts"] += len(finished)
        self._waited_s += waited_s
        for one in finished:
            trace, counts = one.session.trace, one.session.counts
            sampled = sum(len(turn.token_ids) for turn in trace.turns)
            self._sums["turns"] += len(trace.turns)
            self._sums["rows"] += len(one.rows)
            self._sums["sampled"] += sampled
            self._sums["trained"] += 0 if one.lost else sum(sum(row.mask) for row in one.rows)
            self._tool_s += sum(_waited(turn) for turn in trace.turns)
            self._sums["unheard"] += sum(not (turn.heard or turn.children) for turn in trace.turns)
            self._sums["retries"] += counts["retries"]
            self._sums["ignored"] += sum(n for name, n in counts.items() if name.startswith("ignored/"))
            self._sums[f"failures/{one.failure}"] += bool(one.failure)
            self._sums.update({f"roots/{reason}": n for reason, n in trace.reasons.items()})

    def take(self) -> dict[str, float]:
        """Return means per rollout, and forget them; empty without a rollout."""
        sums, self._sums = self._sums, Counter()
        waited_s, tool_s, self._waited_s, self._tool_s = self._waited_s, self._tool_s, 0.0, 0.0
        count = sums["rollouts"]
        if not count:
            return {}
        names = ["turns", "rows", "unheard", "retries", "ignored", *(f"failures/{name}" for name in CLASSES)]
        found = {f"agents/{name}": sums[name] / count for name in names}
        found |= {f"agents/forks/{name}": sums[f"roots/{name}"] / count for name in REASONS if name != "first"}
        found["agents/trained_share"] = sums["trained"] / max(sums["sampled"], 1)
        found["agents/tool_s"] = tool_s / count
        found["agents/queue_s"] = waited_s / max(sums["turns"], 1)
        return found


def _waited(turn: Node) -> float:
    """Return the seconds from the turn that this one continues to its request; 0 for the first of a conversation."""
    assert turn.parent is not None
    before = turn.parent.parent
    return 0.0 if before is None else max(0.0, turn.asked_s - before.answered_s)


def _messages(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    return tuple(dict(message) for message in messages)
