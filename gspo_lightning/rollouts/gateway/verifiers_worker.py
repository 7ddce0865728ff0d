"""Environments of the package verifiers, in a process that has it: tasks as records, and episodes of an agent.

``python -m gspo_lightning.rollouts.gateway.verifiers_worker`` reads ``{"environment", "select"}`` and writes a record
a line.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.rollouts.gateway.address import Address

_MACHINE = ("SandboxError", "InterceptionError", "TunnelError")
"""Errors of verifiers that are not the environment's own."""


class Episodes:
    """Episodes of one environment.

    Args:
        environment: its ``[env]`` block.
    """

    def __init__(self, environment: Mapping[str, Any]) -> None:
        import verifiers.v1 as vf

        self.vf = vf
        self.env = vf.load_environment(vf.resolve_env_config(dict(environment)))
        agents = [value for _, value in self.env.config if isinstance(value, vf.AgentConfig)]
        if any(config.retries != vf.RetryConfig() for config in (self.env.config, *agents)):
            raise ValueError("retries are not supported: the turns of all attempts would be trained; take them out")
        self._tasks: dict[int, Any] = {}
        self._coming: Iterator[Any] = iter(self.env.taskset)
        self._stack = AsyncExitStack()
        self._served = False
        self._lock = asyncio.Lock()

    async def play(self, record: Mapping[str, Any], address: Address) -> dict[str, Any]:
        """Run the episode of a record.

        Returns:
            The weighted sum of the environment's rewards, and each of them and its finite metrics as parts.

        Raises:
            InfrastructureError: the machine of an agent failed, or the connection to it.
            RuntimeError: the environment failed, gave no reward or none that is finite, or its scoring did not end.
            ValueError: it has no such task, or several of its agents spoke to the policy.
        """
        async with self._lock:
            if not self._served:
                await self._stack.enter_async_context(self.env.serving())
                self.env._interception = None  # a server of its own per episode: a shared one keeps a client per URL
                self._served = True
        variable = f"GSPO_API_KEY_{id(address)}"  # verifiers hides names with API_KEY from what it starts
        client = self.vf.EvalClientConfig(base_url=address.base_url, api_key_var=variable)
        os.environ[variable] = address.api_key
        try:
            task = self._task(record["task"], record["task_hash"])
            episode = await self.env.run_episode(task, self.vf.ModelContext(address.model, client))
        finally:
            del os.environ[variable]
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            kind = InfrastructureError if errors[0].type in _MACHINE else RuntimeError
            raise kind(f"{errors[0].type}: {errors[0].message}")
        traces = [trace for trace in episode.traces if trace.agent.config.client == client]
        if len(traces) != 1:
            raise ValueError(_not_one([trace.agent.name for trace in traces]))
        if not traces[0].rewards:
            raise RuntimeError("the environment gave no reward: it has no function that gives one")
        if None in traces[0].rewards.values():
            raise RuntimeError(f"the environment gave no reward: {traces[0].stop_condition}")
        rewards = {name: reward.score for name, reward in traces[0].rewards.items()}
        for name, value in rewards.items():
            if not math.isfinite(value):
                raise RuntimeError(f"the environment gave the reward {name} = {value}")
        # NaN is a metric of nothing, such as the mean of no calls
        metrics = {
            name: value for name, value in traces[0].metrics.items() if value is not None and math.isfinite(value)
        }
        return {"reward": traces[0].reward, "parts": metrics | rewards}

    def end(self) -> None:
        """End what the environment has started on this machine."""
        from verifiers.v1.runtimes.base import cleanup_at_exit

        cleanup_at_exit()

    def _task(self, index: int, task_hash: str) -> Any:
        while index not in self._tasks:
            task = next(self._coming, None)
            if task is None:
                raise ValueError(f"the environment has no task {index}")
            self._tasks[task.data.idx] = task
        if self._tasks[index].hash != task_hash:
            raise ValueError(f"task {index} is another one than when the records were made: its taskset must not vary")
        return self._tasks[index]


def _not_one(names: Sequence[str]) -> str:
    """Return why the agents that spoke to the policy, by name, are not one."""
    if len(set(names)) == 1:
        problem = f"the environment's {names[0]} ran {len(names)} times, and an episode must run it once"
        return f"{problem}; data.group_size says how often a task is tried"
    fix = "give all agents but one a client of their own"
    return f"{len(names)} agents of the environment spoke to the policy, and one must; {fix}"


def records(environment: Mapping[str, Any], select: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield ``prompt``, ``task`` (its number) and ``task_hash`` of the tasks of an environment.

    Raises:
        ValueError: a task has no prompt, or there is no end of tasks.
    """
    import verifiers.v1 as vf

    config = vf.resolve_env_config(dict(environment))
    taskset = vf.load_taskset(config.taskset).select(vf.SelectConfig(**select))
    if not taskset.bounded:
        raise ValueError("its tasks have no end; give select a limit")
    for task in taskset:
        data = task.data
        if data.prompt is None:
            raise ValueError(f"task {data.idx} has no prompt")
        prompt: Any = data.prompt
        if not isinstance(prompt, str) or data.system_prompt:
            turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else data.model_dump()["prompt"]
            prompt = [{"role": "system", "content": data.system_prompt}] * bool(data.system_prompt) + turns
        yield {"prompt": prompt, "task": data.idx, "task_hash": task.hash}


def main() -> int:
    """Answer the request on standard input."""
    sys.path.append(os.getcwd())
    out = sys.stdout
    sys.stdout = sys.stderr  # what the environment prints is no record
    try:
        for record in records(**json.load(sys.stdin)):
            print(json.dumps(record), file=out)
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
