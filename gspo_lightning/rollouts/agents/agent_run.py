"""All rollouts of one call: agents on the gateway's event loop, each with its session, deadline and failure."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import InfrastructureError, PluginError, UserError, counted, first_line
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.rollouts.agents.agent import Agent
from gspo_lightning.rollouts.agents.codec import PolicyCodec
from gspo_lightning.rollouts.agents.feed import Feed
from gspo_lightning.rollouts.agents.outcome import AgentSettings, Finished
from gspo_lightning.rollouts.gateway.reward import AgentReward, read_reward
from gspo_lightning.rollouts.gateway.server import Gateway
from gspo_lightning.rollouts.gateway.session import Phase, Session
from gspo_lightning.rollouts.gateway.trace import TraceError

log = logging.getLogger(__name__)

_FEW_MISSING = 4
"""Number of missing rollouts that never stops a run, however few rollouts it has."""


class AgentRun:
    """The rollouts of some prompts.

    Args:
        agent: does the task of one record.
        codec: of the policy.
        settings: of the source.
        prompts: P prompts.
        group_size: G.
        sampling: limit of tokens.
        linger_s: see :class:`Feed`.
    """

    def __init__(
        self,
        agent: Agent,
        codec: PolicyCodec,
        settings: AgentSettings,
        prompts: Sequence[Prompt],
        group_size: int,
        sampling: SamplingParams,
        linger_s: float,
    ) -> None:
        self.agent = agent
        self.codec = codec
        self.settings = settings
        self.prompts = prompts
        self.group_size = group_size
        self.sampling = sampling
        self.feed = Feed(linger_s)
        self._groups: list[list[Finished]] = [[] for _ in prompts]
        self._most_missing = max(_FEW_MISSING, settings.max_missing_rate * len(prompts) * group_size)
        self._gate = asyncio.Semaphore(settings.in_flight)

    @property
    def finished(self) -> list[Finished]:
        """Rollouts whose agents have ended."""
        return [rollout for group in self._groups for rollout in group]

    async def run(self) -> None:
        """Run all agents.

        Raises:
            InfrastructureError: too many rollouts are missing.
            UserError: all of them by mistakes of the agent; or raised by it.
        """
        gateway = Gateway(self._new_session, socket=self._socket(), strict=self.settings.strict)
        await gateway.start()
        tasks = [
            asyncio.ensure_future(self._run_one(gateway, number, sample))
            for number in range(len(self.prompts))
            for sample in range(self.group_size)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await gateway.stop()

    def group(self, number: int, version: int) -> list[Rollout]:
        """Return the rollouts to a prompt, all of them complete."""
        group = sorted(self._groups[number], key=lambda finished: finished.sample)
        return [finished.rollout(self.codec, version) for finished in group]

    def _socket(self) -> str:
        """Return the path of this rank's socket; empty: a port."""
        rank, _ = rank_and_world()
        path = self.settings.socket
        return f"{path}-rank{rank}" if path and rank else path

    def _new_session(self, name: str) -> Session:
        return Session(name, self.codec, self.feed, 0, self.settings.max_turns, self.settings.match)

    async def _run_one(self, gateway: Gateway, number: int, sample: int) -> None:
        """Run the agent for one rollout, when there is room for it, and collect what it leaves."""
        prompt = self.prompts[number]
        async with self._gate:
            session = gateway.open_session(f"{prompt.id}-{sample}-{secrets.token_hex(4)}")
            session.longest = len(prompt.token_ids) + prompt.token_budget(self.sampling.max_response_tokens)
            session.payload = (prompt, sample)
            self.feed.under_way += 1
            try:
                finished = await self._play(gateway, session, prompt, sample)
            finally:
                self.feed.under_way -= 1
                gateway.close_session(session)
        if isinstance(session.error, TraceError):
            raise session.error
        finished.rows = session.trace.rows()
        if not finished.rows:
            finished.failure = finished.failure or "agent"
            finished.why = finished.why or "nothing to train on"
            finished.lost = True
        group = self._groups[number]
        group.append(finished)
        self._check_missing(finished)
        if len(group) == self.group_size:
            self.feed.finish(number)

    async def _play(self, gateway: Gateway, session: Session, prompt: Prompt, sample: int) -> Finished:
        """Run the agent for one rollout until it returns, fails, or is out of time."""
        finished = Finished(prompt, sample, session)
        clock = _Clock(self.settings)
        session.on_phase = clock.begin
        try:
            async with clock.limit:
                outcome = await self.agent.run(record_of(prompt, sample), gateway.address(session))
            session.set_reward(reward_of(outcome, self.agent.where))
            if not session.trace.turns:
                finished.failure = "context" if session.full else "agent"
                finished.why = "no turn was requested"
        except UserError:
            raise
        except InfrastructureError as error:
            finished.failure = "environment"
            finished.why = first_line(error)
        except Exception as error:
            if isinstance(error, TimeoutError) and clock.limit.expired():
                finished.failure = "deadline"
                finished.why = clock.why
            else:
                finished.failure = "context" if session.full else "agent"
                finished.why = f"{type(error).__name__}: {first_line(error)[:300]}"
        finally:
            session.on_phase = None
        if finished.failure:
            finished.lost = self.settings.failures[finished.failure] == "missing"
            session.reward = session.reward or 0.0
        return finished

    def _check_missing(self, newest: Finished) -> None:
        """Stop the run if the newest rollout is missing, and too many others are.

        Raises:
            InfrastructureError: they are.
            UserError: all of them by mistakes of the agent, which a retry would make again.
        """
        if newest.failure:
            log.debug("rollout %d/%d: %s: %s", newest.prompt.id, newest.sample, newest.failure, newest.why)
        if not newest.lost:  # most are not: all that have finished are looked through for a missing one only
            return
        missing = [finished for finished in self.finished if finished.lost]
        if len(missing) <= self._most_missing:
            return
        reasons = counted(f"{finished.failure}: {finished.why}" for finished in missing)
        total = len(self.prompts) * self.group_size
        problem = f"{len(missing)} of {total} rollouts of the agent are missing: {reasons}"
        if all(finished.failure in ("agent", "context") for finished in missing):
            raise UserError("data.rollouts.agent", problem, fix="correct the agent, or raise max_missing_rate")
        raise InfrastructureError(problem)


class _Clock:
    """Time limit of a rollout, which begins anew with each of its phases that has a limit of its own."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.limit = asyncio.timeout(settings.set_up_s or settings.deadline_s)
        self.why = f"no result in {settings.deadline_s:g} s"
        """Message of a rollout that is out of time now."""
        if settings.set_up_s:
            self.why = f"no turn was requested in {settings.set_up_s:g} s"

    def begin(self, phase: Phase) -> None:
        """Begin a phase: the first turn was requested, or the conversation was ended."""
        if phase == "agent":
            seconds = self.settings.deadline_s if self.settings.set_up_s else None  # else it has begun already
            after = ""
        else:
            seconds = self.settings.verify_s
            after = " after its conversation"
        if seconds:
            self.limit.reschedule(asyncio.get_running_loop().time() + seconds)
            self.why = f"no result in {seconds:g} s{after}"


def record_of(prompt: Prompt, sample: int) -> dict[str, Any]:
    """Return what an agent gets to know about its task."""
    messages = {"messages": [dict(m) for m in prompt.messages]} if prompt.messages else {}
    return {"prompt": prompt.text, **dict(prompt.columns), **messages, "rollout": f"{prompt.id}/{sample}"}


def reward_of(outcome: object, where: str) -> AgentReward:
    """Return the reward that an agent returned.

    Raises:
        PluginError: it is neither a finite number, nor an object with one, nor None.
    """
    try:
        return read_reward(outcome if isinstance(outcome, Mapping) else {"reward": outcome})
    except ValueError as error:
        rule = 'a finite number, {"reward": number, "parts": {name: number}, "turns": [number, ...]}, or None'
        raise PluginError.returned(where, f"{outcome!r}"[:200], rule) from error
