"""vLLM servers of our own: with which options one is started on this machine."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_lightning.errors import UserError
from gspo_lightning.rollouts.serving.process import LocalServer
from gspo_lightning.rollouts.vllm.probe import LENGTH

__all__ = ["CPU_DEFAULTS", "CPU_ENVIRONMENT", "DEFAULTS", "LocalVLLM", "check_installed", "command"]

DEFAULTS: dict[str, Any] = {
    "served_model_name": "policy",
    "logprobs_mode": "processed_logprobs",  # at the sampling temperature
    "generation_config": "vllm",  # the model's own would change what is sampled
}
CPU_DEFAULTS: dict[str, Any] = {"enforce_eager": True}
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}


@dataclass(frozen=True)
class LocalVLLM:
    """How servers are started here; the fields are arguments of :class:`~gspo_lightning.rollouts.VLLMServer`."""

    python: str
    host: str
    gpus: Sequence[str] | None
    dtype: str | None
    options: Mapping[str, Any]
    environment: Mapping[str, str]

    def start(
        self,
        folder: Path,
        *,
        port: int,
        number: int,
        device: str,
        dtype: str,
        longest: int = 0,
        remove: Path | None = None,
    ) -> LocalServer:
        """Start one; it does not answer yet.

        Args:
            folder: the model, in transformers format.
            port: it listens on.
            number: of the server, from 0: picks its device.
            device: ``cpu`` or ``cuda``, the trainer's.
            dtype: of its weights, where no option says another one.
            longest: tokens of a prompt and its response, at most; 0: as long as the model allows.
            remove: see :class:`LocalServer`.
        """
        options = {**DEFAULTS, "dtype": self.dtype or dtype}
        environment = dict(ENVIRONMENT)
        if device == "cpu":
            options |= CPU_DEFAULTS
            environment |= CPU_ENVIRONMENT
        if longest:
            options["max_model_len"] = max(longest, LENGTH)
        if self.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[number]
        line = command(self.python, folder, self.host, port, options | dict(self.options))
        return LocalServer(line, environment | dict(self.environment), remove=remove)


def command(python: str, model: str | Path, host: str, port: int, options: Mapping[str, Any]) -> list[str]:
    """How a server is started; an option that is False is left out, one that is True has no value."""
    line = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    line += ["--host", host, "--port", str(port)]
    for name, value in options.items():
        if value is not False and value is not None:
            line += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return line


def check_installed(python: str) -> None:
    """vLLM can be imported by that interpreter.

    Raises:
        UserError: it cannot.
    """
    if python == sys.executable:
        found = importlib.util.find_spec("vllm") is not None
    else:
        code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
        try:
            found = subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0
        except OSError as error:
            raise UserError("data.rollouts.python", f"{python!r} cannot be run: {error.strerror}") from error
    if not found:
        raise UserError(
            "data.rollouts",
            f"vLLM is not installed for {python}",
            fix="pip install 'gspo_lightning[vllm]'; name the interpreter that has it in data.rollouts.python; or give "
            "data.rollouts.urls of servers that run",
        )
