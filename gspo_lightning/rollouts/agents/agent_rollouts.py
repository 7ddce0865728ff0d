"""Rollouts of agents: programs that do a task by talking to the policy through the gateway."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.signatures import called_with
from gspo_lightning.core.types import FinishReason, Rollout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.agents.agent import Agent
from gspo_lightning.rollouts.agents.codec import PolicyCodec
from gspo_lightning.rollouts.agents.feed import Feed, PendingTurn
from gspo_lightning.rollouts.agents.outcome import CLASSES, AgentSettings, Tally, Treatment
from gspo_lightning.rollouts.contract import check_pieces
from gspo_lightning.rollouts.gateway.trace import Match, SampledTurn
from gspo_lightning.rollouts.serving.loop import LoopThread
from gspo_lightning.rollouts.source import GenerationRequest, ResponsePrefix, RolloutSource
from gspo_lightning.rollouts.wrapping import WrappingSource

LONGEST_SOCKET = 96
"""Bytes of a path of a socket; macOS takes 103 (Linux 107), of which ranks use up to seven (``-rank999``)."""
DEFERRED_SHARE = 1 / 4
"""Share of a batch, its longest turns, that goes on together with what the other agents say next."""


class AgentRollouts(WrappingSource):
    """Rollouts of an agent: it gets a record and the URL of an endpoint, and talks to the policy as to any model.

    The endpoint speaks OpenAI's chat completions, responses and completions, and Anthropic's messages. Every rollout
    has a URL and a key of its own. What the policy said is trained token for token: a history is found among what was
    served, and only what is new in it is rendered. A rollout has a row for every branch of its conversations; each
    sampled token is trained once. A context and the turn after it have the room of a prompt and
    ``data.max_response_tokens`` together; a request beyond that is refused as too long.

    The reward is what the agent returns, or sends to ``POST {base_url}/reward``, as ``EnvironmentReward`` of
    ``data.rewards``; other rewards judge the policy's text and messages.

    Args:
        agent: what runs, once for every rollout.
        source: samples the turns; it must be able to continue a response.
        in_flight: rollouts at the same time.
        deadline_s: seconds for one rollout, from its first moment to the agent's return.
        set_up_s: seconds to the first turn, which do not count for ``deadline_s``; None: they do.
        verify_s: seconds from ``POST {base_url}/finish``, with which the agent ends its conversation, to its return,
            which do not count for ``deadline_s``; None: they do.
        max_turns: turns of the policy in a rollout; a safeguard against agents without an end.
        batch_ms: milliseconds for which a request waits for others, to be sampled together.
        failures: class of failure -> ``missing`` (the rollout takes no part in training or statistics) or ``score``
            (it counts with what it said, and with the reward 0 unless it got one). Classes: ``agent`` (it raised),
            ``environment`` (it raised ``InfrastructureError``), ``context`` (it raised after a request was too long)
            and ``deadline``. All are ``missing`` but ``context``.
        max_missing_rate: share of the rollouts of an iteration that may be missing before the run stops.
        match: how a history is compared with what was served: ``exact``, or ``strip``, without outer white space.
        socket: path of a socket file to listen on instead of a port of 127.0.0.1; other ranks add ``-rank1`` ...
        strict: refuse requests that force a tool or a response format; they are answered as if they did not otherwise.
    """

    def __init__(
        self,
        agent: Agent,
        source: RolloutSource | None = None,
        in_flight: int = 256,
        deadline_s: float = 120.0,
        set_up_s: float | None = None,
        verify_s: float | None = None,
        max_turns: int = 32,
        batch_ms: float = 5.0,
        failures: dict[str, Treatment] | None = None,
        max_missing_rate: float = 0.1,
        match: Match = "exact",
        socket: str = "",
        strict: bool = False,
    ) -> None:
        super().__init__(source)
        for option, value in (("in_flight", in_flight), ("max_turns", max_turns)):
            if value < 1:
                raise UserError(f"AgentRollouts.{option}", f"is {value}; it must be at least 1")
        times = {"deadline_s": deadline_s, "set_up_s": set_up_s, "verify_s": verify_s, "batch_ms": batch_ms}
        for option, seconds in times.items():
            if seconds is not None and not 0 < seconds < float("inf"):
                raise UserError(f"AgentRollouts.{option}", f"is {seconds}; it must be a number above 0")
        if not 0 <= max_missing_rate <= 1:
            raise UserError("AgentRollouts.max_missing_rate", f"is {max_missing_rate}; it must lie in [0, 1]")
        if strange := sorted({*(failures or {})} - {*CLASSES}):
            raise UserError("AgentRollouts.failures", f"{strange[0]!r} is no class; classes: {', '.join(CLASSES)}")
        if (length := len(os.fsencode(socket))) > LONGEST_SOCKET:
            problem = f"has {length} bytes; a path of a socket has at most {LONGEST_SOCKET}"
            raise UserError("AgentRollouts.socket", problem, fix="choose a path in /tmp, or a relative one")
        self.agent = agent
        self.batch_s = batch_ms / 1000
        self.settings = AgentSettings(
            in_flight, deadline_s, set_up_s, verify_s, max_turns, max_missing_rate, match, socket, strict,
            {**CLASSES, **(failures or {})},
        )  # fmt: skip
        self._loop = LoopThread("agents")
        self._tally = Tally()
        self._opened = threading.Event()  # shared with for_evaluation, as the agent is
        self._codec: tuple[object, PolicyCodec] | None = None

    @override
    def open(self, longest: int) -> None:
        super().open(longest)
        self._open_agent()

    @called_with(GenerationRequest)
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        """Run the agent ``group_size`` times for each prompt.

        Raises:
            InfrastructureError: more rollouts are missing than ``max_missing_rate`` allows.
            UserError: a prompt has pictures, or the agent raised one.
        """
        if any(prompt.media for prompt in request.prompts):
            raise UserError("data.rollouts", "is AgentRollouts, which shows no pictures to the policy")
        from gspo_lightning.rollouts.agents.agent_run import AgentRun  # imports aiohttp

        self._open_agent()
        run = AgentRun(
            self.agent,
            self._codec_of(request.policy),
            self.settings,
            request.prompts,
            request.group_size,
            request.sampling,
            self.batch_s,
        )
        done: dict[int, list[Rollout]] = {}
        work = self._loop.submit(run.run())
        work.add_done_callback(run.feed.end)
        try:
            over = False
            while not over:
                pending, finished, over = run.feed.take()
                for number in finished:
                    done[number] = run.group(number, request.version)
                    if self.on_group is not None:
                        self.on_group(done[number])
                    if request.progress is not None:
                        request.progress(len(done) * request.group_size, request.size)
                self._sample(pending, run.feed, request)
            work.result()
        finally:
            work.cancel()
        self._tally.add(run.finished, run.feed.waited_s)
        return [done[number] for number in range(len(request.prompts))]

    def for_evaluation(self) -> RolloutSource:
        """Return the same agent, with measurements of its own and the source's own evaluation source."""
        other = copy.copy(self)
        other._use_source(self.source.for_evaluation())
        other._tally = Tally()
        return other

    def measured(self) -> dict[str, float]:
        """Return measurements of rollouts since the last call, and those of the source."""
        return {**self.source.measured(), **self._tally.take()}

    def close(self) -> None:
        """End the agent and the gateway's thread, and release the source."""
        if self._opened.is_set():
            self._opened.clear()
            self._loop.run(self.agent.close())
        self._loop.close()
        super().close()

    def _open_agent(self) -> None:
        if not self._opened.is_set():
            self._loop.run(self.agent.open())
            self._opened.set()

    @override
    def _use_source(self, source: RolloutSource) -> None:
        self.source = source
        self.updates_in_flight = source.updates_in_flight
        self.keeps_weights = source.keeps_weights
        self.records_routes = source.extends_routes

    def _codec_of(self, policy: Policy) -> PolicyCodec:
        """Return the codec of a policy's tokenizer, made once."""
        if self._codec is None or self._codec[0] is not policy.tokenizer:
            codec = PolicyCodec(policy.tokenizer, self.system_prompt, self.chat_template_kwargs)
            self._codec = (policy.tokenizer, codec)
        return self._codec[1]

    def _sample(self, turns: Sequence[PendingTurn], feed: Feed, request: GenerationRequest) -> None:
        """Sample turns; those with the same stop texts together, and those with the same context side by side."""
        ordered = sorted(turns, key=lambda turn: (turn.stop, turn.context, turn.session.name))
        for stop, same_stop in groupby(ordered, key=lambda turn: turn.stop):
            sampling = replace(request.sampling, stop_strings=(*request.sampling.stop_strings, *stop))
            self._sample_together(list(same_stop), feed, replace(request, sampling=sampling))

    def _sample_together(self, turns: Sequence[PendingTurn], feed: Feed, request: GenerationRequest) -> None:
        """Sample turns in one call. When most have ended, the longest ones are cut and go on in the next batch.

        So the agents of the others need not wait for them.
        """

        def enough(ended: Collection[int]) -> bool:
            return len(turns) - len(ended) <= DEFERRED_SHARE * len(turns)

        prefixes = [_prefix(turn) for turn in turns]
        sampled = self.source.extend(
            request.policy,
            prefixes,
            sampling=request.sampling,
            draws=request.draws,
            version=request.version,
            enough=enough,
        )
        complete: list[PendingTurn] = []
        cut: list[PendingTurn] = []
        for turn, piece in zip(turns, check_pieces(self.source, sampled, prefixes), strict=True):
            if len(piece.token_ids):
                turn.pieces.append(_sampled_turn(piece))
            if piece.finish_reason is FinishReason.CUT:
                cut.append(turn)
            else:
                complete.append(turn)
        feed.put_back(cut)
        feed.answer(complete)


def _prefix(turn: PendingTurn) -> ResponsePrefix:
    """Return what a turn continues: its context, and what was sampled of it before."""
    prompt, sample = turn.session.payload
    written = turn.written
    return ResponsePrefix(
        prompt,
        sample,
        context=(*turn.context, *written),
        drawn=turn.first_draw + len(written),
        token_budget=turn.budget - len(written),
        written=written,
    )


def _sampled_turn(piece: Rollout) -> SampledTurn:
    """Return a piece of a source as plain data, which the gateway's thread may keep."""
    return SampledTurn(
        token_ids=tuple(piece.token_ids.tolist()),
        logprobs=None if piece.logprobs is None else tuple(piece.logprobs.tolist()),
        truncated=piece.finish_reason is FinishReason.LENGTH,
        version=piece.policy_version,
        versions=() if piece.versions is None else tuple(piece.versions.tolist()),
        routes=piece.routes,
    )
