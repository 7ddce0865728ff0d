"""An environment of verifiers, as its authors write them: the calculator task, with a user who answers "?37*46".

Runs in the environment of verifiers. The tiny policy of the tests knows texts only, so calls are texts, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import openai
import verifiers.v1 as vf

from tests.real_agents.service import result


class Expression(vf.TaskData):  # type: ignore[misc]
    """An expression and its value."""

    answer: str


class Options(vf.TaskConfig):  # type: ignore[misc]
    """Faults for tests."""

    fault: str = ""


class Question(vf.Task[Expression, vf.State, Options]):  # type: ignore[misc]
    """Twice the points for the right answer, and one for each turn."""

    async def setup(self, trace: Any, runtime: Any) -> None:
        """Fail where the machine is to fail."""
        if self.config.fault == "machine":
            raise vf.SandboxError("no disk left")

    @vf.reward(weight=2.0)
    async def correct(self, task: Expression, trace: Any) -> float | dict[str, float]:
        """The right answer."""
        if self.config.fault == "rubric":
            raise KeyError("no such rubric")
        if self.config.fault == "no rewards":
            return {}
        if self.config.fault == "nan":
            return math.nan
        return float(trace.last_reply.rpartition("#")[2] == task.answer)

    @vf.reward(weight=0.25)
    async def length(self, trace: Any) -> float | dict[str, float]:
        """Characters of the last reply."""
        if self.config.fault == "no rewards":
            return {}
        return float(len(trace.last_reply))

    @vf.metric
    async def asked(self, trace: Any) -> float:
        """Turns of the policy."""
        if self.config.fault == "metric":
            return math.nan
        return float(trace.num_turns)


class Settings(vf.TasksetConfig):  # type: ignore[misc]
    """Settings of the tasks."""

    task: Options = Options()


class Questions(vf.Taskset[Question, Settings]):  # type: ignore[misc]
    """Sums and products of numbers of two digits."""

    def load(self) -> Iterator[Question]:
        """Draw them, the same ones every time."""
        draws = random.Random(0)
        for _ in range(64):
            text = "".join(f"{draws.choice('+-*')}{draws.randint(10, 99)}" for _ in range(3))[1:]
            yield Question(Expression(prompt=f"{text}:", answer=result(text)), self.config.task)


class Talk(vf.SingleAgentEnv):  # type: ignore[misc]
    """Several turns."""

    async def run(self, task: Any, agents: Any) -> None:
        """Answer questions until there is none, three at most."""
        async with agents.agent.interaction(task) as talk:
            said = await talk.turn()
            for _ in range(3):
                if said.terminated or not said.last_reply.startswith("?"):
                    break
                said = await talk.turn(f"={result(said.last_reply[1:])};")


class Loop(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """One request per turn, in this process: a process of its own for each turn would take seconds."""

    SUPPORTS_RESUME, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> vf.ProgramResult:
        """Ask."""
        _, prompt = self.resolve_prompt(data)
        talk: Any = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*_wire(prompt or [])]
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=talk)
        return vf.ProgramResult(0, "", "")


def _wire(messages: Any) -> Iterator[dict[str, Any]]:
    for message in messages:
        yield {"role": message.role, "content": message.content}


__all__ = ["Loop", "Questions", "Talk"]
