"""Start vLLM servers on this machine: options, environment, command line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gspo_lightning.core.addresses import UNIX
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.extras import install_command
from gspo_lightning.core.variables import check_variables, read_variables
from gspo_lightning.policy.adapters.adapter_files import uniform
from gspo_lightning.policy.adapters.lora import adapter_rank
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.process import LocalServer
from gspo_lightning.rollouts.vllm import inside
from gspo_lightning.rollouts.vllm.inside.gspo_require_key import KEY, RequireKey
from gspo_lightning.rollouts.vllm.probe import LENGTH

DEFAULTS: dict[str, Any] = {
    "served_model_name": "policy",
    "logprobs_mode": "processed_logprobs",  # at the sampling temperature
    "generation_config": "vllm",  # the model's own would change what is sampled
}
CPU_DEFAULTS: dict[str, Any] = {"enforce_eager": True}
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the routes that take weights
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONSAFEPATH": "1",  # no module of the working directory in place of an installed one
    "PYTORCH_CUDA_ALLOC_CONF": "",  # a server with sleep mode would refuse the trainer's value
}
GENERATE: dict[str, Any] = {"enable_scale_out": True}
"""Option for the route that takes token ids with pictures, and reports the weights that sampled a token."""
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}
GUARD = f"{RequireKey.__module__.rpartition('.')[2]}.{RequireKey.__name__}"
"""Middleware, by its name in the server's process."""
Defaults = tuple[Mapping[str, Any], Mapping[str, str]]
"""Default options and environment variables of a server; the user's own take precedence."""
ENVIRONMENT_FIELD = "data.rollouts.environment"
TAKEN = ("host", "port", "uds", "api_key")
"""Options of vLLM for its address and its key: set by this package."""


@dataclass(frozen=True)
class LocalVLLM:
    """Start settings of servers; the fields are arguments of :class:`~gspo_lightning.rollouts.VLLMServer`."""

    python: str
    gpus: Sequence[str] | None
    dtype: str | None
    options: Mapping[str, Any]
    environment: Mapping[str, str]

    def start(
        self,
        folder: Path,
        endpoint: Endpoint,
        private: Path,
        *,
        number: int,
        device: str,
        dtype: str,
        longest: int = 0,
        also: Defaults = ({}, {}),
        remove: Sequence[Path] = (),
    ) -> LocalServer:
        """Start one server; it does not answer yet.

        Args:
            folder: the model, in transformers format.
            endpoint: the server's address, and the key that it requires.
            private: a folder that only this user may enter, for sockets between the server's own processes.
            number: number of the server, from 0: selects its device.
            device: ``cpu`` or ``cuda``, the trainer's.
            dtype: dtype of its weights, unless an option sets another.
            longest: tokens of a prompt and its response, at most; 0: as long as the model allows.
            also: options and environment for the transport of weights.
            remove: see :class:`LocalServer`.
        """
        options = {**DEFAULTS, "dtype": self.dtype or dtype, "seed": number, **also[0]}
        environment = {**ENVIRONMENT, **also[1]}
        if device == "cpu":
            options |= CPU_DEFAULTS
            environment |= CPU_ENVIRONMENT
        if longest:
            options["max_model_len"] = max(longest, LENGTH)
        if self.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[number]
        environment |= read_variables(self.environment, ENVIRONMENT_FIELD)
        line = command(self.python, folder, endpoint.url, options | dict(self.options))
        return LocalServer(line, environment | watched(endpoint, private, environment), remove=remove)


def command(python: str, model: str | Path, url: str, options: Mapping[str, Any]) -> list[str]:
    """Return the command line of a server; an option that is False is left out, one that is True has no value."""
    line = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    parts = urlsplit(url)
    if url.startswith(UNIX):
        line += ["--uds", parts.path]
    else:
        line += ["--host", str(parts.hostname), "--port", str(parts.port)]
    for name, value in options.items():
        if value is False or value is None:
            continue
        line.append(f"--{name.replace('_', '-')}")
        if value is not True:
            line.append(json.dumps(value) if isinstance(value, dict | list) else str(value))
    return [*line, "--middleware", GUARD]  # the last one is outermost


def watched(endpoint: Endpoint, private: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make a server require its key.

    Args:
        endpoint: its address; a leftover socket file there is removed.
        private: a folder that only this user may enter.
        environment: the server's other variables, which may include ``PYTHONPATH``.
    """
    assert endpoint.key
    search = [inside.__path__[0]]
    if python_path := environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH"):
        search.append(python_path)
    if endpoint.url.startswith(UNIX):
        Path(urlsplit(endpoint.url).path).unlink(missing_ok=True)
    return {
        KEY: endpoint.key,
        "PYTHONPATH": os.pathsep.join(search),
        "VLLM_RPC_BASE_PATH": str(private),  # sockets between its own processes, which take pickles
    }


def parallelism(options: Mapping[str, Any]) -> int:
    """Return the number of GPUs that an engine with these options takes."""
    size = 1
    for name, value in options.items():
        if name.strip("-").replace("-", "_") in _PARALLEL:
            size *= int(value)
    return size


def lora_rank(policy: Policy) -> int:
    """Return ``--max-lora-rank`` for the adapters of a policy.

    Raises:
        UserError: they differ in rank or scale, which vLLM does not read.
    """
    if not uniform(policy.model):
        problem = "is true, but the adapters differ in rank or scale (rank_pattern, alpha_pattern), which vLLM ignores"
        raise UserError("data.rollouts.options.enable_lora", problem, fix="leave it out: adapters are merged")
    return next((size for size in _RANKS if size >= adapter_rank(policy.model)), _RANKS[-1])


_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts as ``--max-lora-rank``."""


def check_options(options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Refuse options and variables that would change the address or the key of a server.

    Raises:
        UserError: one of them is set.
    """
    for name in options:
        plain = name.strip("-").replace("-", "_")
        if plain in TAKEN:
            fix = "leave it out: each server gets its own key" if plain == "api_key" else "data.rollouts.host"
            raise UserError("data.rollouts.options", f"names {name}, which is decided here", fix=fix)
    if KEY in environment:
        raise UserError(
            ENVIRONMENT_FIELD,
            f"names {KEY}, and a run saves its config",
            fix="leave it out: each server started here gets its own key",
        )
    check_variables(environment, ENVIRONMENT_FIELD)


def check_in_flight(options: Mapping[str, Any], routed_experts: bool) -> None:
    """Refuse what cannot change with the weights of a request in flight.

    Raises:
        UserError: adapters or reports of experts were asked for.
    """
    name = "data.rollouts.weights_in_flight"
    if options.get("enable_lora") or options.get("enable-lora"):
        problem = "is true, but a request keeps the adapters that it began with (options: enable_lora)"
        raise UserError(name, problem, fix="leave enable_lora out: adapters are merged, and whole weights sent")
    if routed_experts:
        problem = "is true, but experts are reported once for a whole response (routed_experts)"
        raise UserError(name, problem, fix="use one of the two")


def check_installed(python: str) -> None:
    """Check that an interpreter can import vLLM.

    Raises:
        UserError: it cannot.
    """
    if python == sys.executable:
        installed = importlib.util.find_spec("vllm") is not None
    else:
        code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
        try:
            installed = subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0
        except OSError as error:
            raise UserError("data.rollouts.python", f"{python!r} cannot be run: {error.strerror}") from error
    if not installed:
        raise UserError(
            "data.rollouts",
            f"vLLM is not installed for {python}",
            fix=f"{install_command('vllm')}; name the interpreter that has it in data.rollouts.python; or give "
            "data.rollouts.urls of servers that run",
        )
