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
from gspo_lightning.rollouts.agents.outcome import Finished, Limits
from gspo_lightning.rollouts.gateway.reward import Told, read_reward
from gspo_lightning.rollouts.gateway.server import Gateway
from gspo_lightning.rollouts.gateway.session import Phase, Session
from gspo_lightning.rollouts.gateway.trace import TraceError

log = logging.getLogger(__name__)

_FEW_LOST = 4
"""Number of missing rollouts that never stops a run, however few rollouts it has."""


class AgentRun:
    """The rollouts of some prompts.

    Args:
        agent: does the task of one record.
        codec: of the policy.
        limits: settings.
        prompts: P prompts.
        group_size: G.
        sampling: limit of tokens.
        linger_s: see :class:`Feed`.
    """

    def __init__(
        self,
        agent: Agent,
        codec: PolicyCodec,
        limits: Limits,
        prompts: Sequence[Prompt],
        group_size: int,
        sampling: SamplingParams,
        linger_s: float,
    ) -> None:
        self.agent, self.codec, self.limits = agent, codec, limits
        self.prompts, self.group_size, self.sampling = prompts, group_size, sampling
        self.feed = Feed(linger_s)
        self._groups: list[list[Finished]] = [[] for _ in prompts]
        self._may_lose = max(_FEW_LOST, limits.max_missing_rate * len(prompts) * group_size)
        self._gate = asyncio.Semaphore(limits.in_flight)

    @property
    def finished(self) -> list[Finished]:
        """Rollouts whose agents have ended."""
        return [one for group in self._groups for one in group]

    async def run(self) -> None:
        """Run all agents.

        Raises:
            InfrastructureError: too many rollouts are missing.
            UserError: all of them by mistakes of the agent; or raised by it.
        """
        limits, rank = self.limits, rank_and_world()[0]
        socket = f"{limits.socket}-rank{rank}" if limits.socket and rank else limits.socket
        gateway = Gateway(self._session, socket=socket, strict=limits.strict)
        await gateway.start()
        work = [
            asyncio.ensure_future(self._one(gateway, number, sample))
            for number in range(len(self.prompts))
            for sample in range(self.group_size)
        ]
        try:
            await asyncio.gather(*work)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await gateway.stop()

    def group(self, number: int, version: int) -> list[Rollout]:
        """Return the rollouts to a prompt, all of them complete."""
        done = sorted(self._groups[number], key=lambda one: one.sample)
        return [one.rollout(self.codec, version) for one in done]

    def _session(self, name: str) -> Session:
        return Session(name, self.codec, self.feed, 0, self.limits.max_turns, self.limits.match)

    async def _one(self, gateway: Gateway, number: int, sample: int) -> None:
        prompt = self.prompts[number]
        async with self._gate:
            session = gateway.open_session(f"{prompt.id}-{sample}-{secrets.token_hex(4)}")
            session.longest = len(prompt.token_ids) + prompt.token_budget(self.sampling.max_response_tokens)
            session.payload = prompt, sample
            self.feed.under_way += 1
            try:
                done = await self._played(gateway, session, prompt, sample)
            finally:
                self.feed.under_way -= 1
                gateway.close_session(session)
        if isinstance(session.fault, TraceError):
            raise session.fault
        done.rows = session.trace.rows()
        if not done.rows:
            done.failure, done.why, done.lost = done.failure or "agent", done.why or "nothing to train on", True
        group = self._groups[number]
        group.append(done)
        self._check_lost(done)
        if len(group) == self.group_size:
            self.feed.finish(number)

    async def _played(self, gateway: Gateway, session: Session, prompt: Prompt, sample: int) -> Finished:
        """Run the agent for one rollout."""
        done, limits = Finished(prompt, sample, session), self.limits
        why = f"no turn was requested in {limits.set_up_s:g} s" if limits.set_up_s else ""
        try:
            async with asyncio.timeout(limits.set_up_s or limits.deadline_s) as limit:

                def moved(phase: Phase) -> None:
                    nonlocal why
                    seconds = {"agent": limits.set_up_s and limits.deadline_s, "verify": limits.verify_s}[phase]
                    if seconds:
                        limit.reschedule(asyncio.get_running_loop().time() + seconds)
                        why = f"no result in {seconds:g} s" + " after its conversation" * (phase == "verify")

                session.moved = moved
                outcome = await self.agent.run(record_of(prompt, sample), gateway.address(session))
            session.give(reward_of(outcome, self.agent.where))
            if not session.trace.turns:
                done.failure, done.why = "context" if session.full else "agent", "no turn was requested"
        except UserError:
            raise
        except InfrastructureError as error:
            done.failure, done.why = "environment", first_line(error)
        except Exception as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            done.failure = "deadline" if late else "context" if session.full else "agent"
            done.why = (
                why or f"no result in {limits.deadline_s:g} s"
                if late
                else f"{type(error).__name__}: {first_line(error)[:300]}"
            )
        finally:
            session.moved = None
        if done.failure:
            done.lost = limits.failures[done.failure] == "missing"
            session.reward = session.reward or 0.0
        return done

    def _check_lost(self, done: Finished) -> None:
        if done.failure:
            log.debug("rollout %d/%d: %s: %s", done.prompt.id, done.sample, done.failure, done.why)
        lost = [one for one in self.finished if one.lost] if done.lost else []
        if len(lost) > self._may_lose:
            total = len(self.prompts) * self.group_size
            why = counted(f"{one.failure}: {one.why}" for one in lost)
            what = f"{len(lost)} of {total} rollouts of the agent are missing: {why}"
            if all(one.failure in ("agent", "context") for one in lost):  # a retry would give the same
                raise UserError("data.rollouts.agent", what, fix="correct the agent, or raise max_missing_rate")
            raise InfrastructureError(what)


def record_of(prompt: Prompt, sample: int) -> dict[str, Any]:
    """Return what an agent gets to know about its task."""
    messages = {"messages": [dict(m) for m in prompt.messages]} if prompt.messages else {}
    return {"prompt": prompt.text, **dict(prompt.columns), **messages, "rollout": f"{prompt.id}/{sample}"}


def reward_of(outcome: object, where: str) -> Told:
    """Return the reward that an agent returned.

    Raises:
        PluginError: it is neither a finite number, nor an object with one, nor None.
    """
    try:
        return read_reward(outcome if isinstance(outcome, Mapping) else {"reward": outcome})
    except ValueError as error:
        rule = 'a finite number, {"reward": number, "parts": {name: number}, "turns": [number, ...]}, or None'
        raise PluginError.returned(where, f"{outcome!r}"[:200], rule) from error
