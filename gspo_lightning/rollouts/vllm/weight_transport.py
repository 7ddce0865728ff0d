"""Weight transports to servers: files, CUDA IPC on one GPU, or NCCL between GPUs."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from gspo_lightning.core.addresses import UNIX, is_loopback
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.extras import install_command

Transport = Literal["files", "ipc", "nccl"]
TransportOrAuto = Literal["auto", "files", "ipc", "nccl"]
FIELD = "data.rollouts.transfer"


@dataclass(frozen=True)
class TransportContext:
    """Inputs for choosing a weight transport."""

    cuda: bool
    """True if the policy is on a CUDA device."""
    ranks: int = 1
    """Number of ranks of the trainer."""
    trusted: bool = True
    """True if no server is on another host, or nobody else can use the network (``plain_http``)."""
    pictures: bool = False
    """True if servers started here read pictures: without weights at startup, their tower would keep random buffers."""
    own: str = ""
    """GPU of the first rank."""
    theirs: Sequence[Sequence[str]] = ()
    """GPUs of each server that is started here."""
    configured: Sequence[str | None] = ()
    """``weight_transfer_config.backend`` of each running server; None if it has none or does not report it."""

    @property
    def suited(self) -> Transport:
        """Fastest transport that these servers support."""
        if self.configured:
            if set(self.configured) == {"ipc"}:
                return "ipc"
            return "nccl" if set(self.configured) == {"nccl"} else "files"
        if not self.own or not all(self.theirs):
            return "files"
        if not all(_alike(self.own, gpu) for server in self.theirs for gpu in server):
            return "files"
        if all(list(server) == [self.own] for server in self.theirs):
            return "ipc"
        return "files" if any(self.own in server for server in self.theirs) else "nccl"


def choose(requested: TransportOrAuto, context: TransportContext) -> Transport:
    """Return the requested transport; ``auto`` is the fastest possible one.

    Raises:
        UserError: the requested transport is not possible.
    """
    if requested == "files":
        return "files"
    transport = context.suited if requested == "auto" else requested
    obstacle = None if transport == "files" else _obstacle(transport, context, requested)
    if obstacle is None:
        return transport
    if requested == "auto":
        return "files"
    problem, fix = obstacle
    raise UserError(FIELD, f"is {requested}, but {problem}", fix=fix)


def options_for(transport: Transport) -> tuple[dict[str, Any], dict[str, str]]:
    """Return options and environment variables of a server started for this transport."""
    if transport == "files":
        return {}, {}
    options = {"weight_transfer_config": json.dumps({"backend": transport}), "load_format": "dummy"}
    return options, {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if transport == "ipc" else {}


def _obstacle(transport: Transport, context: TransportContext, requested: TransportOrAuto) -> tuple[str, str] | None:
    """Return why a transport is not possible, and the fix."""
    if not context.cuda:
        return "the policy is not on a CUDA device", "use transfer: files"
    if importlib.util.find_spec("vllm") is None:
        return (
            "vLLM, which sends the weights, is not installed for the trainer's Python",
            f"{install_command('vllm')}; or use transfer: files",
        )
    if others := [backend for backend in context.configured if backend != transport]:
        return (
            f"a server was started for {others[0] or 'files'}",
            f"start it with --weight-transfer-config '{json.dumps({'backend': transport})}'",
        )
    if context.pictures:
        return "servers that read pictures need their weights to start", "use transfer: files, or start them yourself"
    if transport == "ipc" and context.ranks > 1:
        return f"there are {context.ranks} ranks and only the first one sends", "use transfer: nccl or files"
    if transport == "nccl" and not context.trusted:
        return (
            "a server is on another host: weights would go there unencrypted, from a port that trusts everybody",
            "plain_http: true if nobody else can use that network, or use transfer: files",
        )
    return None


def is_near(url: str) -> bool:
    """Return True if a server is on this machine."""
    return url.startswith(UNIX) or is_loopback(urlsplit(url).hostname or "")


def _alike(gpu: str, other: str) -> bool:
    """Return True if both are numbers, or neither is: only then different names mean different GPUs."""
    return gpu.isdigit() == other.isdigit()
