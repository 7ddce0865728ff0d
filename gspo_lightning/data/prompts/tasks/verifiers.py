"""Tasks of environments of the package verifiers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts.prompt_set import PromptSet, Record
from gspo_lightning.rewards.workers.interpreter import module_command


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
        self.environment, self.select, self.python = environment, select or {}, python

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
            raise UserError("VerifiersTasks.environment", f"cannot be loaded: {last}")
        return [json.loads(line) for line in done.stdout.splitlines()]
