"""Packed attention on the simulated device: the package's own plans and masks, computed by their definition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from benchmarks.simulated.device import COUNTS, NAME
from gspo_lightning.policy.attention import flex, plans

__all__ = ["simulated_attention"]


def _by_definition(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: BlockMask, scale: float, enable_gqa: bool
) -> Tensor:
    """What the compiled kernel computes of [1, H, M, d]; it counts as one kernel."""
    with COUNTS.pause():
        every = torch.arange(query.shape[2], device=query.device)
        none = torch.zeros((), dtype=torch.int64, device=query.device)
        seen = block_mask.mask_mod(none, none, every[:, None], every[None, :])
        shared = query.shape[1] // key.shape[1]
        k, v = (x.unsqueeze(2).expand(-1, -1, shared, -1, -1).flatten(1, 2) for x in (key, value))
        scores = (query @ k.transpose(-1, -2)).float() * scale
        out = scores.masked_fill(~seen, -torch.inf).softmax(-1).to(v.dtype) @ v
    COUNTS.launch("flex_attention")
    return out


@contextlib.contextmanager
def simulated_attention() -> Iterator[None]:
    """The simulated device has the kernel that CUDA has."""
    has, kernel = flex.has_flex, flex.kernel

    def has_here(device: torch.device) -> bool:
        return device.type == NAME or has(device)

    def kernel_here(device: str) -> Any:
        return _by_definition if device == NAME else kernel(device)

    with mock.patch.object(plans, "has_flex", has_here), mock.patch.object(flex, "kernel", kernel_here):
        yield
