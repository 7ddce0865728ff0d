"""Tasks of environments of the package verifiers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts.prompt_set import PromptSet, Record
from gspo_lightning.rewards.workers.interpreter import module_command

_MISSING = "ModuleNotFoundError: No module named 'verifiers'"
"""Error of a process whose interpreter lacks the package."""


class VerifiersTasks(PromptSet):
    """Tasks of an environment of verifiers 0.4, for ``VerifiersAgent``: ``prompt``, ``task`` and ``task_hash``.

    A separate process imports verifiers and loads the tasks, which must be the same ones every time.

    Args:
        environment: the ``[env]`` block of verifiers, as for ``VerifiersAgent``.
        select: which of its tasks, as verifiers' ``--select``: ``{skip: 100, limit: 50}``.
        python: interpreter of an environment of packages with verifiers; None: the trainer's.

    Raises:
        UserError: when records are read: the environment cannot be loaded, or a task has no prompt.
    """

    def __init__(
        self, environment: dict[str, Any], select: dict[str, Any] | None = None, python: str | None = None
    ) -> None:
        self.environment = environment
        self.select = select or {}
        self.python = python

    def records(self) -> Sequence[Record]:
        """Return a record per task, in the order of the selection."""
        return self._records

    @cached_property
    def _records(self) -> list[Record]:
        command, variables = module_command("gspo_lightning.rollouts.gateway.verifiers_worker", self.python)
        request = json.dumps({"environment": self.environment, "select": self.select})
        try:
            done = subprocess.run(command, input=request, capture_output=True, text=True, check=False, env=variables)
        except OSError as error:
            raise UserError("VerifiersTasks.python", f"cannot be run: {error}") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["its process died"])[-1]
            raise unusable("VerifiersTasks", self.python, last)
        return [json.loads(line) for line in done.stdout.splitlines()]


def unusable(component: str, python: str | None, why: str) -> UserError:
    """Return the error for an environment that cannot be loaded: of its settings, or of a Python without verifiers."""
    if _MISSING not in why:
        return UserError(f"{component}.environment", f"cannot be loaded: {why}")
    of = "the trainer's, where python is not set" if python is None else "which it names"
    fix = "python -m venv /envs/verifiers, /envs/verifiers/bin/pip install 'verifiers>=0.4' and the environment's "
    fix += "package, and python: /envs/verifiers/bin/python (verifiers pins other versions than gspo_lightning)"
    return UserError(f"{component}.python", f"{python or sys.executable} ({of}) has no package verifiers", fix=fix)
