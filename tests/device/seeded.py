"""Faults put into the package on purpose, and what the simulated device says of them; in a process of its own.

PyTorch's autograd counts devices at the first backward pass of a process, so the device has to be there before it.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.simulated import device
from benchmarks.simulated.agreement import difference
from benchmarks.simulated.device import COUNTS, backend
from benchmarks.simulated.transfers import waits_before_the_model
from benchmarks.simulated.work import Job, run_job, sampled
from benchmarks.workloads import Workload
from gspo_lightning.core.types import MicroBatch, MiniBatch
from gspo_lightning.loop.critic.backbone import Backbone
from gspo_lightning.loop.metrics import ratios
from gspo_lightning.loop.old_policy.frozen import FrozenPolicy
from gspo_lightning.policy.attention import flex
from gspo_lightning.policy.attention.padded_kv_cache import PaddedKVCache
from gspo_lightning.policy.attention.span_cache import SpanCache
from gspo_lightning.rollouts.sampler import decode_batch, decoding, device_decoder
from gspo_lightning.rollouts.sampler.device_decoder import DeviceDecoder


@contextmanager
def stays_here() -> Iterator[None]:
    """Indices that are planned on the host never get to the device."""
    with (
        mock.patch.object(PaddedKVCache, "_there", lambda self, x: x),
        mock.patch.object(SpanCache, "_there", lambda self, x: x),
    ):
        yield


def asks_every_token() -> AbstractContextManager[Any]:
    """The host reads how many rows live as soon as that is computed."""
    return mock.patch.object(decode_batch, "LAG", 0)


def selects() -> AbstractContextManager[Any]:
    """Metrics pick elements by a mask, as they once did."""

    def tally(places: Tensor, counted: Tensor, bins: int) -> Tensor:
        return torch.bincount(places[counted], minlength=bins).double()

    return mock.patch.object(ratios, "tally", tally)


@contextmanager
def makes_there() -> Iterator[None]:
    """A list becomes a tensor on the device in one call, which waits."""

    def for_rows(x: Tensor, rows: list[int]) -> Tensor:
        return x.repeat_interleave(torch.tensor(rows, device=x.device), dim=0)

    with mock.patch.object(decoding, "for_rows", for_rows), mock.patch.object(device_decoder, "for_rows", for_rows):
        yield


def copies_pageable_memory() -> AbstractContextManager[Any]:
    """The buffer that goes to the device is not pinned."""
    return mock.patch.object(device, "_pin", lambda size: torch.empty(size, dtype=torch.uint8))


def forgets_prompts() -> AbstractContextManager[Any]:
    """The mask of the device's kernel leaves prompts out: right on a CPU, wrong there."""
    real = flex._block_mask

    def mask(own: Tensor, last: Tensor, first: Tensor, end: Tensor, common: Tensor, device: torch.device) -> Any:
        return real(own, last, torch.zeros_like(first), torch.zeros_like(end), common, device)

    return mock.patch.object(flex, "_block_mask", mask)


def values_another_state() -> AbstractContextManager[Any]:
    """On the device the critic reads other hidden states."""
    real = Backbone.forward

    def forward(self: Backbone, batch: MicroBatch) -> tuple[Any, ...]:
        hidden, *rest = real(self, batch)
        return (hidden if hidden.device.type == "cpu" else hidden * 1.1), *rest

    return mock.patch.object(Backbone, "forward", forward)


def teaches_otherwise() -> AbstractContextManager[Any]:
    """On the device the teacher answers for another temperature."""
    real = FrozenPolicy.fill

    def fill(
        self: FrozenPolicy, batches: Sequence[MiniBatch], temperature: float, device: torch.device
    ) -> list[MiniBatch]:
        return real(self, batches, temperature if device.type == "cpu" else 2 * temperature, device)

    return mock.patch.object(FrozenPolicy, "fill", fill)


def _said(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except RuntimeError as error:
        return str(error)


def _between_compactions() -> list[int]:
    """Syncs between two compactions, the joins between them included."""
    seen: list[int] = []
    real = DeviceDecoder.keep

    def keep(self: DeviceDecoder, rows: Tensor) -> None:
        seen.append(COUNTS.syncs.total())
        real(self, rows)

    with mock.patch.object(DeviceDecoder, "keep", keep):
        sampled(Job(max_rows=8))
    return [after - before for before, after in itertools.pairwise(seen)]


def main() -> None:
    """Print what was found as one JSON object."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    backend()
    job = Job(work=Workload(2, 4, (4, 8), 5, 10))
    found: dict[str, Any] = {"sound": difference(job), "between compactions": _between_compactions()}
    with stays_here():
        found["stays here"] = _said(lambda: sampled(job))
    with asks_every_token():
        found["asks every token"] = dict(sampled(job).syncs)
    with selects():
        found["selects"] = dict(run_job(job, on_device=True).update.syncs)
    with makes_there():
        found["makes there"] = dict(sampled(job).syncs)
    with copies_pageable_memory():
        found["pageable memory"] = dict(waits_before_the_model())
    with forgets_prompts():
        found["forgets prompts"] = difference(job)
    with values_another_state():
        found["another value"] = difference(replace(job, asks="a critic"))
    with teaches_otherwise():
        found["another teacher"] = difference(replace(job, asks="a teacher"))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
