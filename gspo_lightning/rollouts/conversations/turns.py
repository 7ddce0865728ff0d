"""Turn-taking, retries and completion of all conversations of one rollout."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import logging
import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.thinking import context_opens_thought
from gspo_lightning.core.turn import Turn
from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.data.prompts.dialogue import Dialogue
from gspo_lightning.data.prompts.tool_calls import parse_turn
from gspo_lightning.rewards.chat import tools_of
from gspo_lightning.rollouts.conversations.conversation_row import ConversationRow
from gspo_lightning.rollouts.environments.conversation import Conversation
from gspo_lightning.rollouts.environments.host import BEAT_S, BlockedError, Call, Host
from gspo_lightning.rollouts.source import Enough

log = logging.getLogger(__name__)

Speak = Callable[[Sequence[ConversationRow], Enough], Sequence[Rollout]]
_FEW_LOST = 4
"""Number of lost conversations that never stops a run, however few conversations it has."""
_LINGER_S = 0.005
"""Seconds for which those that may speak wait for the others, at least."""
_LINGER = 0.1
"""The same as a part of the time that the batch before took: so much of it is well spent on a larger batch."""
_LEFT = 4
"""A batch is cut when one part in so many of those that could speak together is still speaking."""


class ConversationRows:
    """Conversations in which the policy speaks as soon as their environment has answered, whatever others do.

    Those that may speak are sampled together. Each environment is asked when its turn has ended; turns that are much
    longer than the others are cut and go on in the next batch.

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
        self._group_of = [g for g, group in enumerate(groups) for _ in group]
        self._first = [0, *itertools.accumulate(len(group) for group in groups)]
        self._failed: list[Conversation] = []
        self._failures = 0
        self._open = set(range(len(groups)))
        self._unopened = [len(group) for group in groups]
        self._ready: set[int] = set()
        self._asked: dict[int, int] = {}
        """Conversation -> attempts to get the answer that it waits for."""
        self._calls: dict[int, concurrent.futures.Future[None]] = {}
        self._answers: queue.SimpleQueue[tuple[int, Conversation, Exception | None]] = queue.SimpleQueue()

    def run(self, speak: Speak) -> None:
        """Run all conversations to the end; ``speak`` samples the policy's next turn in some of them.

        Raises:
            InfrastructureError: more conversations were lost than allowed.
            UserError: raised by an environment, or about its messages.
        """
        took = 0.0
        for number, row in enumerate(self.rows):
            self._ask(number, row.conversation.begin)
        while self._ready or self._asked:
            self._hear(max(_LINGER_S, _LINGER * took))
            if self._ready:
                begun = time.monotonic()
                self._speak(speak)
                took = time.monotonic() - begun
        if self._failures > 1:
            log.warning("%d answers of environments failed in this rollout", self._failures)

    def close(self) -> None:
        """Close all environments; answers that nobody waits for any more are abandoned."""
        for call in self._calls.values():
            call.cancel()
        conversations = [t.conversation for t in self.rows] + self._failed
        errors = self.host.start([c.close for c in conversations]).wait()
        for error in errors:
            if error is not None:
                log.warning("%s", error)

    # the policy's side ---------------------------------------------------------------------------------------------

    def _speak(self, speak: Speak) -> None:
        numbers = sorted(self._ready)
        self._ready.clear()
        rows = [self.rows[number] for number in numbers]

        def enough(ended: Collection[int]) -> bool:
            return _LEFT * (len(rows) - len(ended)) <= len(rows) + self._answers.qsize()

        for number, row, piece in zip(numbers, rows, speak(rows, enough), strict=True):
            row.grow(piece)
            if piece.finish_reason is FinishReason.CUT:
                self._ready.add(number)
                continue
            row.say(piece, self.dialogue.tokenizer, self._read(row))
            if row.finish is None:
                self._ask(number, row.conversation.answer)
            else:
                self._deliver(self._group_of[number])

    def _read(self, row: ConversationRow) -> Turn | None:
        if not self.offered:
            return None
        tokenizer = self.dialogue.tokenizer
        opened = context_opens_thought(tokenizer, (*row.prompt.token_ids, *row.tokens[: row.begun]))
        return parse_turn(tokenizer, tokenizer.decode(row.written), row.tools, opened=opened)

    # the environments' side ----------------------------------------------------------------------------------------

    def _ask(self, number: int, call: Call) -> None:
        conversation = self.rows[number].conversation
        self._asked[number] = self._asked.get(number, 0) + 1
        self._calls[number] = self.host.submit(call, lambda error: self._answers.put((number, conversation, error)))

    def _hear(self, linger_s: float) -> None:
        """Take answers until some conversation may speak and no other answer comes for a moment."""
        until = time.monotonic() + linger_s if self._ready else None
        while self._asked:
            left = BEAT_S if until is None else until - time.monotonic()
            try:
                number, conversation, error = self._answers.get(timeout=max(0.0, min(left, BEAT_S)))
            except queue.Empty:
                if until is not None and time.monotonic() >= until:
                    return
                if self.host.blocked:
                    self._unblock()
                continue
            if self.rows[number].conversation is conversation and number in self._asked:
                self._settle(number, error)
            if until is None and self._ready:
                until = time.monotonic() + linger_s

    def _settle(self, number: int, error: Exception | None) -> None:
        """Take an answer, or repeat a conversation whose environment failed; one that still fails is lost."""
        row = self.rows[number]
        if error is not None and not isinstance(error, InfrastructureError):
            raise error
        if error is not None and self._asked[number] <= self.retries:
            if not self._failures:
                log.warning("an environment failed and is tried again: %s", error)
            self._failures += 1
            self._failed.append(row.conversation)
            row.conversation = row.conversation.successor()
            if isinstance(error, BlockedError):  # one of them blocks all others: retry each alone
                self._asked[number] += 1
                self._settle(number, self.host.start([row.conversation.again]).wait()[0])
            else:
                self._ask(number, row.conversation.again)
            return
        del self._asked[number]
        if error is not None:
            self._lose(number, error)
        group = self._group_of[number]
        if self._unopened[group]:
            self._unopened[group] -= 1
            if not self._unopened[group]:
                self._begin(group)
        elif row.finish is None:
            row.hear(self.dialogue, self.max_turns)
            self._ready |= {number} if row.finish is None else set()
        self._deliver(group)

    def _unblock(self) -> None:
        """Leave a loop behind that an environment has blocked: all answers that it owes have failed."""
        self.host.abandon()
        error = BlockedError("an environment blocked the event loop: an async method must await, or be a plain one")
        for number in list(self._asked):
            self._settle(number, error)

    def _lose(self, number: int, error: Exception) -> None:
        self.rows[number].lose(str(error))
        lost = sum(bool(row.lost) for row in self.rows)
        if lost == 1:
            log.warning("a conversation is missing: %s", error)
        if lost > self.may_lose:
            raise InfrastructureError(f"{lost} of {len(self.rows)} conversations were lost; {error}")

    def _begin(self, number: int) -> None:
        """Open the conversations of a group, whose environments have all begun.

        Raises:
            UserError: they open it differently, or leave no room for a response.
        """
        group = self.groups[number]
        prompt = group[0].prompt
        tools = self._tools_of(prompt)
        for row in group:
            row.tools = tools
        openings = [t.conversation.opening for t in group if t.finish is None]
        if any(opening != openings[0] for opening in openings):
            raise UserError(
                f"{group[0].conversation.name}.reset",
                f"opened the conversations about prompt {prompt.id} differently",
                fix="derive its answer from the prompt alone: a group compares answers to one question",
            )
        opening = openings[0] if openings else None
        if openings and not opening and self.offered:
            opening = list(prompt.messages) or [{"role": "user", "content": prompt.text}]
        if opening:
            self._open_with(group, opening, tools)
        members = range(self._first[number], self._first[number + 1])
        self._ready |= {i for i in members if self.rows[i].finish is None}

    def _open_with(
        self, group: Sequence[ConversationRow], opening: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> None:
        prompt, name = group[0].prompt, group[0].conversation.name
        if prompt.media:
            what = f"opens conversations itself, and prompt {prompt.id} has pictures"
            fix = "let its reset return no messages: the prompt of the data then opens the conversation"
            raise UserError("EnvironmentRollouts.environment", what, fix=fix)
        ids = self.dialogue.opening(opening, {"tools": tools})
        prompt = dataclasses.replace(prompt, token_ids=tuple(ids))
        for row in group:
            row.open(prompt)
        if group[0].token_budget < 1:
            raise UserError(
                "data.max_response_tokens",
                f"leaves no room for a response: {name}.reset made prompt {prompt.id} "
                f"{len(prompt.token_ids)} tokens long",
                fix="raise it; what an environment adds to a prompt counts against it",
            )

    def _tools_of(self, prompt: Prompt) -> Sequence[Mapping[str, Any]]:
        """Return the tools that the chat template shows: those of the record, else those of the environment."""
        found: Sequence[Mapping[str, Any]] = tools_of(prompt.columns).get("tools", self.offered)
        return found if self.dialogue.knows_tools else ()

    def _deliver(self, number: int) -> None:
        """Hand over a group whose conversations are all over, once."""
        if number in self._open and all(t.finish is not None for t in self.groups[number]):
            self._open.remove(number)
            self.finished(number)
