"""Turn-taking, retries and completion of all conversations of one rollout."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gspo_lightning.environments.conversation import Conversation
from gspo_lightning.environments.host import Answers, BlockedError, Host
from gspo_lightning.environments.turn import Turn
from gspo_lightning.errors import InfrastructureError, UserError
from gspo_lightning.prompts.dialogue import Dialogue
from gspo_lightning.prompts.tool_calls import parse_turn
from gspo_lightning.rewards.chat import tools_of
from gspo_lightning.rollouts.conversations.conversation_row import ConversationRow
from gspo_lightning.types import Prompt, Rollout

log = logging.getLogger(__name__)

Speak = Callable[[Sequence[ConversationRow]], Sequence[Rollout]]
_FEW_LOST = 4
"""Number of lost conversations that never stops a run, however few conversations it has."""


class ConversationRows:
    """Alternating turns: the policy speaks in all conversations at once, then all environments answer at once.

    Args:
        groups: P groups of G conversations.
        host: runs the environments.
        dialogue: tokenizes messages.
        max_turns: policy turns per conversation.
        retries: attempts after the first for a failed environment.
        max_missing_rate: share of conversations that may be lost.
        finished: called with the number of a group when all its conversations are over.
        offered: JSON schemas of the environment's tools that the chat template shows.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[ConversationRow]],
        host: Host,
        dialogue: Dialogue,
        *,
        max_turns: int,
        retries: int,
        max_missing_rate: float,
        finished: Callable[[int], None],
        offered: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.offered = offered
        self.groups, self.host, self.dialogue = groups, host, dialogue
        self.max_turns, self.retries, self.finished = max_turns, retries, finished
        self.rows = [row for group in groups for row in group]
        self.may_lose = max(_FEW_LOST, max_missing_rate * len(self.rows))
        self._failed: list[Conversation] = []
        self._open = set(range(len(groups)))

    def run(self, speak: Speak, waves: int) -> None:
        """Run all conversations to the end; ``speak`` generates the policy's next turn in some of them.

        Raises:
            InfrastructureError: more conversations were lost than allowed.
            UserError: raised by an environment, or about its messages.
        """
        self._begin()
        parts = [[t for group in self.groups[i::waves] for t in group] for i in range(waves)]
        asked: list[tuple[list[ConversationRow], Answers] | None] = [None] * waves
        while any(t.finish is None for t in self.rows):
            for i, part in enumerate(parts):
                if (waiting := asked[i]) is not None:
                    self._hear(*waiting)
                asked[i] = self._speak(speak, [t for t in part if t.finish is None])
                self._deliver()
        self._deliver()

    def close(self) -> None:
        """Close all environments."""
        conversations = [t.conversation for t in self.rows] + self._failed
        errors = self.host.start([c.close for c in conversations]).wait()
        for error in errors:
            if error is not None:
                log.warning("%s", error)

    def _begin(self) -> None:
        self._settle(self.rows, self.host.start([t.conversation.begin for t in self.rows]))
        for group in self.groups:
            prompt = group[0].prompt
            tools = self._tools_of(prompt)
            for row in group:
                row.tools = tools
            openings = [t.conversation.opening for t in group if t.finish is None]
            if any(opening != openings[0] for opening in openings):
                raise UserError(
                    f"{group[0].conversation.name}.reset",
                    f"opened the conversations about prompt {group[0].prompt.id} differently",
                    fix="derive its answer from the prompt alone: a group compares answers to one question",
                )
            opening = openings[0] if openings else None
            if openings and not opening and self.offered:
                opening = list(prompt.messages) or [{"role": "user", "content": prompt.text}]
            if not opening:
                continue
            if group[0].prompt.media:
                what = f"opens conversations itself, and prompt {group[0].prompt.id} has pictures"
                fix = "let its reset return no messages: the prompt of the data then opens the conversation"
                raise UserError("EnvironmentRollouts.environment", what, fix=fix)
            ids = self.dialogue.opening(opening, {"tools": tools})
            prompt = dataclasses.replace(prompt, token_ids=tuple(ids))
            for row in group:
                row.open(prompt)
            if group[0].token_budget < 1:
                raise UserError(
                    "data.max_response_tokens",
                    f"leaves no room for a response: {group[0].conversation.name}.reset made prompt {prompt.id} "
                    f"{len(prompt.token_ids)} tokens long",
                    fix="raise it; what an environment adds to a prompt counts against it",
                )

    def _tools_of(self, prompt: Prompt) -> Sequence[Mapping[str, Any]]:
        """Return the tools that the chat template shows: those of the record, else those of the environment."""
        found: Sequence[Mapping[str, Any]] = tools_of(prompt.columns).get("tools", self.offered)
        return found if self.dialogue.knows_tools else ()

    def _read(self, turn: Rollout, row: ConversationRow) -> Turn | None:
        if not self.offered:
            return None
        tokenizer = self.dialogue.tokenizer
        return parse_turn(tokenizer, tokenizer.decode(turn.token_ids.tolist()), row.tools)

    def _speak(self, speak: Speak, rows: list[ConversationRow]) -> tuple[list[ConversationRow], Answers] | None:
        if not rows:
            return None
        for row, turn in zip(rows, speak(rows), strict=True):
            row.say(turn, self._read(turn, row))
        told = [t for t in rows if t.finish is None]
        return told, self.host.start([t.conversation.answer for t in told])

    def _hear(self, rows: list[ConversationRow], answers: Answers) -> None:
        self._settle(rows, answers)
        for row in rows:
            if row.finish is None:
                row.hear(self.dialogue, self.max_turns)

    def _deliver(self) -> None:
        for number in sorted(self._open):
            if all(t.finish is not None for t in self.groups[number]):
                self._open.remove(number)
                self.finished(number)

    def _settle(self, rows: Sequence[ConversationRow], answers: Answers) -> None:
        """Wait for answers, retry failed environments, and mark conversations that still fail as lost."""
        failed = _failures(rows, answers)
        for _ in range(self.retries):
            if failed:
                failed = self._again(failed)
        for row, error in failed:
            row.lose(str(error))
        if failed:
            log.warning("%d conversations are missing; the first: %s", len(failed), failed[0][1])
            self._check([t for t in self.rows if t.lost], failed[0][1])

    def _again(self, failed: Sequence[tuple[ConversationRow, Exception]]) -> list[tuple[ConversationRow, Exception]]:
        log.warning("%d environments failed and are tried again; the first: %s", len(failed), failed[0][1])
        for row, _ in failed:
            self._failed.append(row.conversation)
            row.conversation = row.conversation.successor()
        together = [row for row, error in failed if not isinstance(error, BlockedError)]
        still = _failures(together, self.host.start([t.conversation.again for t in together]))
        for row, error in failed:
            if isinstance(error, BlockedError):  # one of them blocks all others: retry each alone
                still += _failures([row], self.host.start([row.conversation.again]))
                self._check([t for t, _ in still], error)
        return still

    def _check(self, lost: Sequence[ConversationRow], error: Exception) -> None:
        if len(lost) > self.may_lose:
            raise InfrastructureError(f"{len(lost)} of {len(self.rows)} conversations were lost; {error}")


def _failures(rows: Sequence[ConversationRow], answers: Answers) -> list[tuple[ConversationRow, Exception]]:
    """Return the conversations whose environment failed.

    Raises:
        UserError: raised by an environment.
    """
    found = [(row, error) for row, error in zip(rows, answers.wait(), strict=True) if error is not None]
    for _, error in found:
        if not isinstance(error, InfrastructureError):
            raise error
    return found
