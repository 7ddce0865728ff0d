"""Shared-prefix attention on CUDA: one FlexAttention kernel over all packed tokens.

FlexAttention (Dong et al., arXiv 2412.05496) compiles a mask written in Python into one kernel for values and one for
gradients. Blocks of tokens that nothing sees are skipped. They follow from the lengths, so no [M, M] tensor is ever
created. :func:`gspo_lightning.policy.attention.check_attention` compares the compiled kernels with the definition on
the device before a model is trained with them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, cast

import torch
import torch._dynamo
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from gspo_lightning.core.transfer import to_device

BLOCK = 128
FEWEST = 2
"""Fewest blocks of a mask: ``torch.compile`` makes a separate kernel for a size of 1."""
LIMIT = 16
"""Largest number of kernels of one process; a run needs three (with and without gradients, inference mode).

More raise an error: PyTorch would otherwise compute attention without a kernel, in memory quadratic in all tokens.
"""
_uncompiled: ContextVar[bool] = ContextVar("uncompiled", default=False)


def has_flex(device: torch.device) -> bool:
    """True if kernels can be compiled for a device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


class FlexPlan:
    """Attention plan of M packed tokens.

    Args:
        segments: (start, length) of prompts and responses; together they cover all tokens.
        crossings: (start and length of the responses to a prompt, start and length of the prompt).
        longest: tokens of the longest row.
        device: of the tensors that attend.
        blocks: (start, length) of tokens that see each other, each inside a segment.
        prefix: tokens of the first segment, if all others see it.
    """

    def __init__(
        self,
        segments: Sequence[tuple[int, int]],
        crossings: Sequence[tuple[int, int, int, int]],
        longest: int,
        device: torch.device,
        blocks: Sequence[tuple[int, int]] = (),
        prefix: int = 0,
    ) -> None:
        self.longest = longest
        self.tokens = sum(length for _, length in segments)
        self.padding = max(-self.tokens % BLOCK, FEWEST * BLOCK - self.tokens)
        # padding sees itself: a softmax over nothing would be NaN
        segment_starts = torch.arange(self.tokens + self.padding)
        for start, length in segments:
            segment_starts[start : start + length] = start
        prompt_starts = torch.zeros(len(segment_starts), dtype=torch.int64)
        prompt_ends = torch.zeros(len(segment_starts), dtype=torch.int64)
        for start, length, prompt, width in crossings:
            prompt_starts[start : start + length] = prompt
            prompt_ends[start : start + length] = prompt + width
        last_seen = torch.arange(len(segment_starts))  # causal, but for blocks whose tokens see each other
        for start, length in blocks:
            last_seen[start : start + length] = start + length - 1
        prefix_ends = torch.zeros_like(segment_starts)
        prefix_ends[prefix:] = prefix
        self.mask = _block_mask(segment_starts, last_seen, prompt_starts, prompt_ends, prefix_ends, device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend with [M, H, d] over [M, K, d]; returns [M, H, d]."""
        inputs = (pad(x, (0, 0, 0, 0, 0, self.padding)).transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        options: dict[str, Any] = {"block_mask": self.mask, "scale": scaling, "enable_gqa": True}
        # inputs are cast already, and a kernel is compiled for one state of autocast and of its cache
        with torch.autocast(query.device.type, enabled=False, cache_enabled=True):
            attention: Any = flex_attention if _uncompiled.get() else kernel(query.device.type)
            out: Tensor = attention(*inputs, **options)
        return out.squeeze(0).transpose(0, 1)[: self.tokens]


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Attend by the definition of the mask, in memory quadratic in all tokens: for a few of them, on any device."""
    token = _uncompiled.set(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            yield
    finally:
        _uncompiled.reset(token)


def kernel_options(size: int, dtype: torch.dtype) -> dict[str, int]:
    """Return options of FlexAttention's kernels for heads of a dimension; the rest is PyTorch's choice.

    Chosen by what compiles for sm_90 with the fewest spills (``make device-check-compile``, torch 2.14.1). With the
    default of 4 warps a thread spilled 3.8 to 28 kB in the float32 forward pass, up to 2.9 kB in its backward pass, and
    3.1 kB in the bfloat16 backward pass for 256; with 8 warps at most 0.7, 0.4 and 0.3 kB, in no more shared memory.
    Spills are not time, which has not been measured on a GPU.
    Blocks of tokens must divide :data:`BLOCK`.
    """
    if dtype.itemsize < 4:
        return {"bwd_num_warps": 8} if size > 128 else {}
    if 64 < size < 128:  # PyTorch has no blocks for these; 8 warps with its default of 64 x 64 spilled 28 kB
        return {"num_warps": 8, "fwd_BLOCK_M": 32, "fwd_BLOCK_N": 64}
    return {"num_warps": 8}


@functools.cache
def kernel(device: str) -> Callable[..., Any]:
    """Return FlexAttention compiled once for all lengths; on a CPU, for tests, not compiled."""
    return cast("Callable[..., Any]", flex_attention) if device == "cpu" else compiled()


def compiled(**options: Any) -> Callable[..., Any]:
    """Return FlexAttention through ``torch.compile``, which raises beyond :data:`LIMIT` kernels.

    Args:
        options: more arguments of ``torch.compile``.
    """
    if "recompile_limit" in inspect.signature(torch.compile).parameters:  # PyTorch 2.13
        options = {"recompile_limit": LIMIT, "isolate_recompiles": True, **options}
    else:  # the process has one limit, 8 by default: a policy, a critic and a teacher reach that
        limits: Any = torch._dynamo.config
        limits.recompile_limit = max(LIMIT, limits.recompile_limit)
    return torch.compile(_with_options, dynamic=True, fullgraph=True, **options)


def _with_options(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    """Call FlexAttention with kernel options that are constants: numbers from outside would become symbols."""
    of_kernel: Any = kernel_options(query.shape[-1], query.dtype)
    return flex_attention(query, key, value, kernel_options=of_kernel, **options)


def _block_mask(
    own: Tensor, last: Tensor, first: Tensor, end: Tensor, common: Tensor, device: torch.device
) -> BlockMask:
    """Build the mask: tokens see ``own`` to ``last`` of their segment, and ``first`` to before ``end`` of their prompt.

    They also see all tokens before ``common``.

    A block of tokens lists the blocks from the first to the last that any of its tokens sees, in its segments, in its
    prompts and in the prefix; the mask itself handles gaps between. Blocks that all of its tokens see whole, all in
    their own segment, all in their prompt or all in the prefix, are listed apart: the kernel evaluates no mask there.
    """
    blocks = len(own) // BLOCK
    query_block = torch.arange(blocks).unsqueeze(1)
    key_block = torch.arange(blocks)
    key_start = key_block * BLOCK
    key_stop = key_start + BLOCK

    def least(values: Tensor) -> Tensor:
        """Return the smallest value in each block of queries, [blocks, 1]."""
        return values.view(blocks, BLOCK).amin(1, keepdim=True)

    def most(values: Tensor) -> Tensor:
        return values.view(blocks, BLOCK).amax(1, keepdim=True)

    # blocks of keys that some token of a block of queries sees, in its segment, its prompt, or the prefix
    in_segment = (key_block >= least(own) // BLOCK) & (key_block <= most(last) // BLOCK)
    prompt_starts = first.masked_fill(end == 0, len(own))  # beyond all blocks for tokens without a prompt
    in_prompt = (key_block >= least(prompt_starts) // BLOCK) & (key_block <= most(end - 1) // BLOCK)
    listed = in_segment | in_prompt | (key_start < most(common))
    # blocks of keys that all its tokens see whole
    all_segment = (most(own) <= key_start) & (key_block < query_block)
    all_prompt = (most(first) <= key_start) & (least(end) >= key_stop)
    full = all_segment | all_prompt | (key_stop <= least(common))

    def numbered(chosen: Tensor) -> list[Tensor]:
        """Return the number of chosen blocks per row, and all blocks ordered with the chosen ones first."""
        return [chosen.sum(1), chosen.int().argsort(dim=1, descending=True, stable=True)]

    planned = [own, last, first, end, common, *numbered(listed & ~full), *numbered(full)]
    starts, lasts, firsts, ends, commons, *listed_blocks = to_device([x.int() for x in planned], device)
    counts, blocks_seen, full_counts, blocks_full = (x[None, None] for x in listed_blocks)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        within = (key <= lasts[query]) & (key >= starts[query])
        return within | ((key >= firsts[query]) & (key < ends[query])) | (key < commons[query])

    mask: BlockMask = BlockMask.from_kv_blocks(
        counts,
        blocks_seen,
        full_counts,
        blocks_full,
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(len(own), len(own)),
    )
    return mask
