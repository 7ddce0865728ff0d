"""Shared-prefix attention on CUDA: one FlexAttention kernel over all packed tokens.

FlexAttention (Dong et al., arXiv 2412.05496) compiles a mask that is written in Python into one kernel for values and
one for gradients. Blocks of tokens that nobody sees are left out; which those are follows from the lengths, so that no
[M, M] tensor is ever made. Nothing here is believed: :func:`gspo_lightning.policy.attention.check_attention` compares
the compiled kernels with the definition on the device before a model is trained with them.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

__all__ = ["FlexPlan", "compiled", "has_flex", "kernel"]

BLOCK = 128
FEWEST = 2
"""Blocks that a mask has at least: ``torch.compile`` makes a kernel of its own for a size of 1."""
LIMIT = 16
"""Kernels of one process; a run needs four (with and without gradients, inference mode). Beyond it there is an error:
PyTorch would compute attention without a kernel from then on, in memory of the square of all tokens."""


def has_flex(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


class FlexPlan:
    """The attention of M packed tokens.

    Args:
        segments: (start, length) of prompts and responses; together they are all tokens.
        crossings: (start and length of the responses to a prompt, start and length of the prompt).
        longest: tokens of the longest row.
        device: of the tensors that attend.
        blocks: (start, length) of tokens that see each other, each inside a segment.
    """

    def __init__(
        self,
        segments: Sequence[tuple[int, int]],
        crossings: Sequence[tuple[int, int, int, int]],
        longest: int,
        device: torch.device,
        blocks: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.longest = longest
        self.tokens = sum(length for _, length in segments)
        self.padding = max(-self.tokens % BLOCK, FEWEST * BLOCK - self.tokens)
        own = torch.arange(self.tokens + self.padding)  # padding sees itself: a softmax over nothing would be NaN
        for start, length in segments:
            own[start : start + length] = start
        first, end = (torch.zeros(len(own), dtype=torch.int64) for _ in range(2))
        for start, length, prompt, width in crossings:
            first[start : start + length], end[start : start + length] = prompt, prompt + width
        last = torch.arange(len(own))
        for start, length in blocks:
            last[start : start + length] = start + length - 1
        self.mask = _block_mask(own, last, first, end, device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[M, H, d] over [M, K, d] to [M, H, d]."""
        inputs = (pad(x, (0, 0, 0, 0, 0, self.padding)).transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        options: dict[str, Any] = {"block_mask": self.mask, "scale": scaling, "enable_gqa": True}
        # inputs are cast already, and a kernel is compiled for one state of autocast and of its cache
        with torch.autocast(query.device.type, enabled=False, cache_enabled=True):
            out: Tensor = kernel(query.device.type)(*inputs, **options)
        return out.squeeze(0).transpose(0, 1)[: self.tokens]


@functools.cache
def kernel(device: str) -> Callable[..., Any]:
    """Compiled once for all lengths; on a CPU, for tests, as it is."""
    return cast("Callable[..., Any]", flex_attention) if device == "cpu" else compiled()


def compiled(**options: Any) -> Callable[..., Any]:
    """FlexAttention through ``torch.compile``, which is more than :data:`LIMIT` kernels an error for.

    Args:
        options: more arguments of ``torch.compile``.
    """
    if "recompile_limit" in inspect.signature(torch.compile).parameters:  # PyTorch 2.13; before, 8 for the process
        options = {"recompile_limit": LIMIT, "isolate_recompiles": True, **options}
    return torch.compile(cast("Callable[..., Any]", flex_attention), dynamic=True, fullgraph=True, **options)


def _block_mask(own: Tensor, last: Tensor, first: Tensor, end: Tensor, device: torch.device) -> BlockMask:
    """A token sees its segment from its start ``own`` up to ``last``, and its prompt from ``first`` to before ``end``.

    A block of tokens lists the blocks from the first to the last that any of its tokens sees, in its segments and in
    its prompts; what lies between is left to the mask itself. Blocks that all of its tokens see as a whole, all in
    their own segment or all in their prompt, are listed apart: the kernel evaluates no mask there.
    """
    blocks = len(own) // BLOCK
    own_block, other = torch.arange(blocks).unsqueeze(1), torch.arange(blocks)
    lowest = own.view(blocks, BLOCK).amin(1, keepdim=True) // BLOCK
    highest = last.view(blocks, BLOCK).amax(1, keepdim=True) // BLOCK
    empty = end == 0
    low = first.masked_fill(empty, len(own)).view(blocks, BLOCK).amin(1, keepdim=True) // BLOCK
    high = (end - 1).view(blocks, BLOCK).amax(1, keepdim=True) // BLOCK
    listed = ((other >= lowest) & (other <= highest)) | ((other >= low) & (other <= high))
    start, stop = other * BLOCK, other * BLOCK + BLOCK
    within = (own.view(blocks, BLOCK).amax(1, keepdim=True) <= start) & (other < own_block)
    prompt = (first.view(blocks, BLOCK).amax(1, keepdim=True) <= start) & (
        end.view(blocks, BLOCK).amin(1, keepdim=True) >= stop
    )
    full = within | prompt

    def there(x: Tensor) -> Tensor:
        return x.to(dtype=torch.int32).to(device, non_blocking=True)

    def numbered(chosen: Tensor) -> tuple[Tensor, Tensor]:
        """How many blocks of each row, and all of them in an order that begins with these."""
        order = chosen.int().argsort(dim=1, descending=True, stable=True)
        return there(chosen.sum(1))[None, None], there(order)[None, None]

    starts, lasts, firsts, ends = there(own), there(last), there(first), there(end)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        within = (key <= lasts[query]) & (key >= starts[query])
        return within | ((key >= firsts[query]) & (key < ends[query]))

    mask: BlockMask = BlockMask.from_kv_blocks(
        *numbered(listed & ~full),
        *numbered(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(len(own), len(own)),
    )
    return mask
