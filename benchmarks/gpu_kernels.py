"""Parts of :mod:`benchmarks.gpu_check` that time one thing in two ways: pieces of the head, blocks without a mask."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from benchmarks.gpu_parts import Bench
from gspo_lightning.policy.attention.flex import FlexPlan, kernel
from gspo_lightning.policy.logprobs import token_logprobs
from gspo_lightning.policy.policy import CHUNK_LOGITS

__all__ = ["measure_head", "measure_masks"]

REPEATS = 5


def _seconds(bench: Bench, work: Callable[[], object]) -> float:
    """The quickest of some, after one that compiles."""
    work()
    found = []
    for _ in range(REPEATS):
        bench.sync()
        start = time.perf_counter()
        work()
        bench.sync()
        found.append(time.perf_counter() - start)
    return min(found)


def measure_head(bench: Bench) -> dict[str, Any]:
    """Forward and backward of the head under bf16-mixed: cast once against cast in every piece; MiB and seconds."""
    rows, width, vocabulary = (64, 16, 100) if bench.toy else (16_384, 2048, 151_936)
    with bench.device:
        head = nn.Linear(width, vocabulary, bias=False)
        hidden = torch.randn(rows, width, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.randint(vocabulary, (rows,))
    found: dict[str, Any] = {}

    def step(form: Callable[[Tensor], Tensor], size: int) -> None:
        chunk = max(16, size // (4 * vocabulary))
        with bench.autocast():
            chosen, entropy = token_logprobs(form, hidden, targets, chunk=chunk)
        torch.autograd.grad(chosen.sum() + entropy.sum(), [hidden, head.weight])

    forms: dict[str, Callable[[Tensor], Tensor]] = {"cast once": head, "cast in each piece": lambda x: head(x)}
    for name, form in forms.items():
        for size in (256 << 20, CHUNK_LOGITS[bench.toy]):
            key = f"{name}, {size >> 20} MiB"
            found[f"seconds, {key}"] = _seconds(bench, lambda f=form, s=size: step(f, s))  # type: ignore[misc]
            with bench.peak(found, f"MiB, {key}"):
                step(form, size)
    return found


def measure_masks(bench: Bench) -> dict[str, Any]:
    """Forward and backward of packed attention with and without a list of blocks that need no mask; seconds."""
    prompt, response, count, heads, size = (40, 300, 4, 2, 16) if bench.toy else (512, 2048, 8, 16, 128)
    segments = [(0, prompt), *((prompt + i * response, response) for i in range(count))]
    tokens = prompt + count * response
    plan = FlexPlan(segments, [(prompt, count * response, 0, prompt)], prompt + response, bench.device)
    listed = plan.mask
    assert listed.full_kv_num_blocks is not None
    full, partial = int(listed.full_kv_num_blocks.sum()), int(listed.kv_num_blocks.sum())
    found: dict[str, Any] = {"share of blocks without a mask": full / (full + partial)}
    with bench.device:
        inputs = [torch.randn(tokens, heads, size, dtype=torch.bfloat16) for _ in range(3)]
    trained = not bench.toy  # FlexAttention has no backward pass on a CPU
    for tensor in inputs:
        tensor.requires_grad_(trained)
    query, key, value = inputs
    values = []
    for name, mask in (("with full blocks", listed), ("every block masked", _all_masked(listed))):
        plan.mask = mask

        def step() -> Tensor:
            out = plan.attend(0, query, key, value, 0.1)
            if trained:
                torch.autograd.grad(out.sum(), inputs)
            return out

        values.append(step().detach().float())
        found[f"seconds, {name}"] = _seconds(bench, step)
        kernel.cache_clear()
    gap = float((values[0] - values[1]).abs().max())
    assert gap < 0.02, f"blocks without a mask change values by {gap:.2g}"
    return found | {"largest difference": gap}


def _all_masked(mask: BlockMask) -> BlockMask:
    """The same blocks, all of them with the mask."""
    dense = mask.to_dense()[0, 0].bool()
    order = dense.int().argsort(dim=1, descending=True, stable=True).int()
    found: BlockMask = BlockMask.from_kv_blocks(
        dense.sum(1).int()[None, None], order[None, None], BLOCK_SIZE=mask.BLOCK_SIZE, mask_mod=mask.mask_mod,
        seq_lengths=mask.seq_lengths,
    )  # fmt: skip
    return found
