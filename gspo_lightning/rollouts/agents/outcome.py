"""Outcome of an agent's rollout: its class of failure, its rollout as rows, and measurements of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gspo_lightning.core.escape import whole
from gspo_lightning.core.rows import join_rows
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
class AgentSettings:
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
        rows = self.rows or [_row_of_nothing(self.prompt, version)]
        joined = join_rows(rows)
        if joined["versions"] is not None and bool((joined["versions"] == version).all()):
            joined["versions"] = None
        turns: list[tuple[int, Node]] = []
        for span, row in zip(joined["rows"], rows, strict=True):
            turns += [(span.start + end, node) for end, node in row.turns]
        sampled = sorted((node for _, node in turns), key=lambda node: node.order)
        last = sampled[-1] if sampled else None
        return Rollout(
            prompt=self.prompt,
            sample=self.sample,
            **joined,
            finish_reason=self._finish(last is not None and last.sampled is not None and last.sampled.truncated),
            policy_version=version,
            reward_logged={} if self.lost else self.session.parts,
            text="\n".join(codec.text(node.token_ids) for node in sampled),
            messages=() if last is None else _messages([m for node in last.path for m in node.messages]),
            turn_ends=tuple(end for end, _ in turns),
            turn_rewards=self._turn_rewards([node for _, node in turns], last),
            malformed_calls=self.session.malformed_calls,
            lost=whole(f"{self.failure}: {self.why}") if self.lost else "",
            tree=self._tree(turns),
        )

    def _turn_rewards(self, turns: Sequence[Node], last: Node | None) -> tuple[float, ...]:
        """Return the reward of each turn, with that of the whole rollout on the one sampled last; empty without any."""
        reward = self.session.reward
        if reward is None:
            return ()
        return tuple(node.reward + (reward if node is last else 0.0) for node in turns)

    def _tree(self, turns: Sequence[tuple[int, Node]]) -> tuple[dict[str, Any], ...]:
        """Return all that was said, as plain data; ``turns`` are the trained ones with the position after each."""
        nodes = self.session.trace.nodes()
        numbers = {id(node): number for number, node in enumerate(nodes)}
        ends = {id(node): end for end, node in turns}
        tree: list[dict[str, Any]] = []
        for node in nodes:
            count = len(node.token_ids)
            described: dict[str, Any] = {
                "parent": None if node.parent is None else numbers[id(node.parent)],
                "messages": _messages(node.messages),
                "tokens": count,
            }
            if node.sampled is not None:
                end = ends.get(id(node))
                described["asked_s"] = round(node.asked_s, 4)
                described["answered_s"] = round(node.answered_s, 4)
                described["trained"] = None if end is None else (end - count, end)
            tree.append(described)
        return tuple(tree)

    def _finish(self, cut: bool) -> FinishReason:
        if self.lost:
            return FinishReason.LOST
        return FinishReason.LENGTH if self.failure == "context" or cut else FinishReason.DONE


class Tally:
    """Measurements of agents since they were last taken."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._sums: Counter[str] = Counter()
        self._seconds = {"queue": 0.0, "tool": 0.0}

    def add(self, rollouts: Sequence[Finished], waited_s: float) -> None:
        """Count rollouts, and the seconds for which their turns waited to be sampled."""
        self._sums["rollouts"] += len(rollouts)
        self._seconds["queue"] += waited_s
        for rollout in rollouts:
            trace = rollout.session.trace
            counts = rollout.session.counts
            trained = sum(int(row.response_mask.sum()) for row in rollout.rows)
            self._seconds["tool"] += sum(_waited(turn) for turn in trace.turns)
            self._sums["turns"] += len(trace.turns)
            self._sums["rows"] += len(rollout.rows)
            self._sums["sampled"] += sum(len(turn.token_ids) for turn in trace.turns)
            self._sums["trained"] += 0 if rollout.lost else trained
            self._sums["unheard"] += sum(not (turn.heard or turn.children) for turn in trace.turns)
            self._sums["retries"] += counts["retries"]
            self._sums["ignored"] += sum(count for name, count in counts.items() if name.startswith("ignored/"))
            self._sums[f"failures/{rollout.failure}"] += bool(rollout.failure)
            self._sums.update({f"roots/{reason}": count for reason, count in trace.reasons.items()})

    def take(self) -> dict[str, float]:
        """Return means per rollout, and forget them; empty without a rollout."""
        sums = self._sums
        seconds = self._seconds
        self._forget()
        count = sums["rollouts"]
        if not count:
            return {}
        names = ["turns", "rows", "unheard", "retries", "ignored", *(f"failures/{name}" for name in CLASSES)]
        means = {f"agents/{name}": sums[name] / count for name in names}
        means |= {f"agents/forks/{name}": sums[f"roots/{name}"] / count for name in REASONS if name != "first"}
        means["agents/trained_share"] = sums["trained"] / max(sums["sampled"], 1)
        means["agents/tool_s"] = seconds["tool"] / count
        means["agents/queue_s"] = seconds["queue"] / max(sums["turns"], 1)
        return means


def _row_of_nothing(prompt: Prompt, version: int) -> TracedRow:
    """Return a row with the prompt's last token, which nobody trains."""
    return TracedRow(
        context=prompt.token_ids,
        token_ids=torch.tensor(prompt.token_ids[-1:]),
        response_mask=torch.tensor([False]),
        logprobs=torch.tensor([0.0]),
        versions=torch.tensor([version]),
    )


def _waited(turn: Node) -> float:
    """Return the seconds from the turn that this one continues to its request; 0 for the first of a conversation."""
    assert turn.parent is not None
    before = turn.parent.parent
    return 0.0 if before is None else max(0.0, turn.asked_s - before.answered_s)


def _messages(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    return tuple(dict(message) for message in messages)
