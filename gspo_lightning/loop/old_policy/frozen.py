"""Policy that gives log-probabilities and is never trained: the reference, or a teacher in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from gspo_lightning.core.transfer import to_host
from gspo_lightning.core.types import MicroBatch, MiniBatch
from gspo_lightning.policy.packing.batches import filler
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import record_routers, scatter_routes
from gspo_lightning.policy.strategies.sharding import in_step, is_sharded, unwrapped


class FrozenPolicy:
    """Frozen weights, evaluated by the same forward pass as the policy.

    It is not part of the module tree: neither the optimizer, nor DDP, nor a checkpoint, nor an export sees it. A
    resumed run makes it again from the same start.

    Args:
        policy: the weights; nothing else may hold them.
        shard: shards it over ranks, if the strategy shards the trained policy.
    """

    field: ClassVar[str]
    """Field of a micro-batch that :meth:`fill` computes."""

    def __init__(self, policy: Policy, shard: Callable[[Policy], Policy] | None = None) -> None:
        plain = policy.requires_grad_(False).eval()
        plain.routing = None  # neither replayed nor recorded
        self.policy: Policy = plain if shard is None else shard(plain)

    def fill(self, batches: Sequence[MiniBatch], temperature: float, device: torch.device) -> list[MiniBatch]:
        """Return the mini-batches with :attr:`field` [N, T], computed once per rollout batch in the training layout."""
        self._to(device)
        with self._as_it_was():
            return with_logprobs(self.field, self.policy, batches, temperature)

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        with without_routing(self.policy):
            yield

    def _to(self, device: torch.device) -> None:
        if not is_sharded(self.policy):  # shards stay in place
            self.policy.to(device)


@contextmanager
def without_routing(policy: Policy) -> Iterator[None]:
    """Suspend replay and recording of a policy's routers: each token goes to the experts that the weights choose."""
    inner = unwrapped(policy)
    routing = inner.routing
    inner.routing = None
    try:
        yield
    finally:
        inner.routing = routing


@torch.no_grad()
def with_logprobs(name: str, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
    """Return the mini-batches with log-probabilities [N, T] under a policy in the field ``name`` of every micro-batch.

    They are computed on the policy's device and stored on the micro-batch's. The experts of its tokens are stored, too,
    if the policy's routing is recorded and the rollout brought none, and always under ``R2``.
    """
    if not batches:
        return []
    parts = list(chain.from_iterable(batch.micro_batches for batch in batches))
    filled: list[MicroBatch] = []
    device = policy.device
    for part, is_own in in_step(policy, parts, device):
        if is_own:
            filled.append(_filled(name, policy, part, temperature, device))
        else:  # takes part in the gathers of another rank's forward pass
            _filled(name, policy, filler(part), temperature, device)

    # after all of them: between two, the device would be idle until the host has planned the next one
    logprobs = [getattr(part, name) for part in filled]
    if all(part.input_ids.device.type == "cpu" for part in filled):
        logprobs = to_host(logprobs)
    stored = iter([replace(part, **{name: values}) for part, values in zip(filled, logprobs, strict=True)])
    return [replace(batch, micro_batches=list(islice(stored, len(batch.micro_batches)))) for batch in batches]


def _filled(name: str, policy: Policy, part: MicroBatch, temperature: float, device: torch.device) -> MicroBatch:
    """Return the micro-batch with the field ``name``, still on the device, and with ``routes`` if they are recorded."""
    routing = policy.routing
    moved = part.to(device)
    if routing is not None and routing.replay == "R2":
        moved = replace(moved, routes=None)  # the policy chooses its experts anew, not those of the sampler
    records = routing is not None and moved.routes is None
    with record_routers(routing if records else None) as recording:
        logprobs: Tensor = policy(moved, temperature)[0]
    fields: dict[str, Any] = {name: logprobs}
    if recording is not None and routing is not None and recording.places is not None:
        routes = scatter_routes(recording.stacked(), recording.places, moved, routing.experts)
        fields["routes"] = routes.to(part.input_ids.device)  # large: it does not stay on the device
    return replace(part, **fields)
