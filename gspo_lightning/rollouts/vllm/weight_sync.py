"""Weight sync from the first rank to servers: whole weights or adapters alone, by one of several transports."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gspo_lightning.policy.adapters.lora import frozen_norm, has_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.serving.client import ServerError, UnsupportedError
from gspo_lightning.rollouts.serving.pool import UNFINISHED, Server, Weights, deliver_files
from gspo_lightning.rollouts.serving.weight_version import tag_of
from gspo_lightning.rollouts.serving.weights import WeightFolders
from gspo_lightning.rollouts.vllm.local import GENERATE, Defaults, lora_rank
from gspo_lightning.rollouts.vllm.pictures import shown_to
from gspo_lightning.rollouts.vllm.transfer import Sender
from gspo_lightning.rollouts.vllm.weight_transport import Transport, options_for

log = logging.getLogger(__name__)

ENABLE = (
    "to send adapters alone, set data.rollouts.options: {enable_lora: true}, or start servers with --enable-lora, "
    "--max-lora-rank and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
)


class NoAdaptersError(UnsupportedError):
    """Refusal of adapters by a server that takes whole weights only."""


class WeightSync:
    """Weight sync on the first rank, by files or directly; other ranks have servers read the files.

    Args:
        folders: folders for weight files.
        run: prefix of every tag.
        timeout_s: seconds that a server may take for weights sent from GPU to GPU.
        in_flight: servers get weights while requests are in flight. Adapters are merged then: a request keeps
            the adapters that it began with.
    """

    def __init__(self, folders: WeightFolders, run: str, timeout_s: float, *, in_flight: bool = False) -> None:
        self.folders = folders
        self.run = run
        self.timeout_s = timeout_s
        self.in_flight = in_flight
        self.transport: Transport | None = None
        """Transport of whole weights; None: not decided yet."""
        self.failure = ""
        """Last failure of a transport other than files."""
        self.adapters = not in_flight
        """True if servers get adapters as such."""
        self._sender: Sender | None = None
        self._prepared: tuple[str, weakref.ref[Policy], weakref.ref[Any]] | None = None
        """Tag of whole weights, the policy that has them, and one of them, or what gathers them: both go again."""
        self._dtype = torch.float32
        self._count = 0
        self._base: tuple[float, Path, str] | None = None
        """Norm of the frozen weights, their folder, and their tag."""

    def prepare(self, policy: Policy, dtype: torch.dtype, version: int) -> Weights:
        """Prepare the weights that every server must have; valid until the policy's weights change.

        Raises:
            OSError: there is no room.
        """
        self._dtype = dtype
        self._count += 1
        pictures = shown_to(policy) is not None
        if not (self.adapters and has_adapters(policy.model)):
            tag = tag_of(self.run, version, self._count)
            folder = self._folder(policy, adapters=True)
            self._prepared = tag, weakref.ref(policy), _one_of(policy)
            return Weights(folder, tag, in_files=self._in_files, pictures=pictures)
        norm = frozen_norm(policy) if policy.stream is None else policy.stream.frozen_norm()
        if self._base is None or not math.isclose(self._base[0], norm, rel_tol=1e-6):  # other frozen weights
            self._base = norm, self._folder(policy, adapters=False), f"{self.run}-base{self._count}"
        _, folder, base = self._base
        adapters = self.folders.write_adapters(policy, dtype)
        self._prepared = base, weakref.ref(policy), _one_of(policy)
        return Weights(folder, f"{base}-{version}-{self._count}", base, adapters, self._in_files, pictures)

    @property
    def _in_files(self) -> bool:
        return self.transport in (None, "files")

    def merged(self, policy: Policy, dtype: torch.dtype, version: int, why: str) -> Weights:
        """Call :meth:`prepare` after a server refused adapters: from now on they are merged into whole weights."""
        log.warning("adapters are merged, and whole weights sent: %s; %s", why, ENABLE)
        self.adapters = False
        return self.prepare(policy, dtype, version)

    def use_files(self) -> None:
        """Send files from now on, after another transport has failed."""
        log.warning("weights go as files from now on: %s", self.failure)
        self.transport = "files"
        self.failure = ""
        self._base = self._sender = self._prepared = None

    def options(self, policy: Policy, given: Mapping[str, Any]) -> Defaults:
        """Return options and environment of servers that are started here.

        Args:
            policy: policy that they will sample from.
            given: options of the user; ``enable_lora`` lets them take adapters as such.
        """
        options, environment = options_for(self.transport or "files")
        if shown_to(policy) is not None or self.in_flight:
            options |= GENERATE
        if not (has_adapters(policy.model) and self.adapters):
            return options, environment
        if not (given.get("enable_lora") or given.get("enable-lora")):
            log.warning("adapters are merged, and whole weights sent; %s", ENABLE)
            self.adapters = False
            return options, environment
        options["max_lora_rank"] = lora_rank(policy)
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
        return options, environment

    def close(self) -> None:
        """Remove all files."""
        self.folders.close()
        self.transport = self._base = self._sender = self._prepared = None

    def _folder(self, policy: Policy, *, adapters: bool) -> Path:
        if self._in_files:
            return self.folders.write(policy, self._dtype, adapters=adapters)
        return self.folders.write_without_weights(policy)

    def keep(self, weights: Weights) -> None:
        """Remove the files of earlier weights."""
        self.folders.keep(weights.folder, weights.adapter)

    def holder(self, tag: str) -> Policy | None:
        """Return the policy that still has the whole weights of this tag, or can gather them now, if any."""
        if self._prepared is None:
            return None
        prepared_tag, policy_ref, weight_ref = self._prepared
        policy = policy_ref()
        if policy is None or weight_ref() is not _one_of(policy)() or prepared_tag != tag:
            return None
        return policy if policy.stream is None or policy.stream.open else None

    def hold(self, policy: Policy) -> None:
        """Note that a policy has the prepared weights again, gathered anew from its shards."""
        if self._prepared is None:
            return
        tag, policy_ref, _ = self._prepared
        if policy_ref() is policy:
            self._prepared = tag, policy_ref, _one_of(policy)

    async def deliver(self, server: Server, weights: Weights) -> None:
        """Give a server the weights that it lacks.

        Raises:
            NoAdaptersError: it does not take adapters.
            ServerError: it failed.
        """
        tag = await server.client.weights()
        if weights.adapter is None:
            await self._whole(server, weights, known=tag.startswith(self.run))
            return
        if not (tag == weights.base or tag.startswith(f"{weights.base}-")):
            base = Weights(weights.folder, weights.base, pictures=weights.pictures)
            await self._whole(server, base, known=tag.startswith(self.run), adapters=False)
        await give_adapters(server, weights)

    async def _whole(self, server: Server, weights: Weights, *, known: bool, adapters: bool = True) -> None:
        if self.transport is None or self.transport == "files":
            await deliver_files(server, weights)
            return
        policy = self.holder(weights.tag)
        if policy is None:  # newer weights may be in transfer
            raise ServerError("it lost its weights, and those that it had are gone here, too")
        if self._sender is None:
            self._sender = Sender(self.transport, self.timeout_s)
        await server.client.name_weights(UNFINISHED)
        try:
            await self._sender.send(server, policy, self._dtype, adapters=adapters, known=known)
        except (ServerError, UnsupportedError) as error:
            self.failure = f"{self.transport} failed: {error}"
            raise
        await server.client.take(weights.tag, pictures=weights.pictures)


def _one_of(policy: Policy) -> weakref.ref[Any]:
    """Return a reference that tells these weights from later ones: a stream passes on those of its own time only."""
    return weakref.ref(next(policy.parameters()) if policy.stream is None else policy.stream)


async def deliver_elsewhere(server: Server, weights: Weights) -> None:
    """Replace :meth:`WeightSync.deliver` on ranks without weights: deliver from files, if there are any.

    Raises:
        ServerError: there are no files; the first rank sends the weights.
    """
    if not weights.in_files:
        raise ServerError("it does not have the weights, and only the first rank can send them")
    if weights.adapter is None:
        await deliver_files(server, weights)
        return
    tag = await server.client.weights()
    if not (tag == weights.base or tag.startswith(f"{weights.base}-")):
        await deliver_files(server, Weights(weights.folder, weights.base, pictures=weights.pictures))
    await give_adapters(server, weights)


async def give_adapters(server: Server, weights: Weights) -> None:
    """Have a server that has the base weights load adapters, under a new name.

    A reloaded name (``load_inplace``) would be loaded again for every batch of requests. Requests for adapters that a
    server does not have are refused.

    Raises:
        NoAdaptersError: the server refuses.
    """
    try:
        await server.client.load_adapter(weights.tag, str(weights.adapter))
    except UnsupportedError as error:
        raise NoAdaptersError(str(error)) from error
    await server.client.unload_adapters(weights.base, keep=weights.tag)
    await server.client.take(weights.tag, pictures=weights.pictures)
