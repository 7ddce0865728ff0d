"""Agents of environments of the package verifiers."""

from __future__ import annotations

from functools import partial
from typing import Any

from gspo_lightning.data.prompts.tasks.verifiers import unusable
from gspo_lightning.rollouts.agents.python_agent import PythonAgent, WorkerSettings


class VerifiersAgent(PythonAgent):
    """An environment of verifiers 0.4 (its harness, tools and rewards) on the tasks of ``VerifiersTasks``.

    It runs as it is, in processes that import verifiers; the model of its agent is the policy. The reward of a rollout
    is that of its trace. Rewards by name and metrics are logged as parts.

    Args:
        environment: the ``[env]`` block of verifiers: ``{taskset: {id: gsm8k}, agent: {harness: {id: "null"}, ...}}``.
        python: interpreter of an environment of packages with verifiers; None: the trainer's.
        processes: worker processes; rollouts are dealt to them in turn.
    """

    def __init__(self, environment: dict[str, Any], python: str | None = None, processes: int = 1) -> None:
        super().__init__("gspo_lightning.rollouts.gateway.verifiers_worker.Episodes", processes)
        blame = partial(unusable, "VerifiersAgent", python)
        self.settings = WorkerSettings(python, {"environment": environment}, "VerifiersAgent.environment", blame)
