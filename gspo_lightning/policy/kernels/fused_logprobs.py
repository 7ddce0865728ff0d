"""Triton kernels for log-probabilities and entropies: logits are read once, and their gradient replaces them.

The definition is in :mod:`gspo_lightning.policy.logprobs`. There every block of logits passes through
memory a dozen times, with as many launches. Here a program reads a row of any dtype once, in float32, with a
running maximum (Milakov and Gimelshein, arXiv 1805.02867), and a second kernel turns it into its gradient in place.

Triton may be missing: only :func:`gspo_lightning.policy.kernels.fused.kernels_for` imports this module.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH = 4096
"""Logits of a row that a program holds at a time."""
WARPS = 8


@triton.jit
def _measure(
    logits: tl.tensor,
    targets: tl.tensor,
    chosen: tl.tensor,
    entropy: tl.tensor,
    log_z: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    lanes = tl.arange(0, BLOCK)
    # per lane: largest x, sum of e^y and sum of y e^y, where y = (x - largest) / temperature: no less exact
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    moment = tl.zeros([BLOCK], tl.float32)
    for first in range(0, COLUMNS, BLOCK):
        inside = first + lanes < COLUMNS
        x = tl.load(start + first + lanes, mask=inside, other=-float("inf")).to(tl.float32)
        above = tl.maximum(top, x)
        base = tl.where(above == -float("inf"), 0.0, above)  # a lane that has seen nothing
        fall = tl.where(top == -float("inf"), 0.0, (top - base) * scale)
        decay = tl.where(top == -float("inf"), 0.0, tl.exp(fall))
        rise = tl.where(x == -float("inf"), 0.0, (x - base) * scale)
        weight = tl.where(x == -float("inf"), 0.0, tl.exp(rise))
        moment = decay * (moment + fall * total) + weight * rise
        total = decay * total + weight
        top = above
    highest = tl.max(top, 0)
    fall = tl.where(top == -float("inf"), 0.0, (top - highest) * scale)
    decay = tl.where(top == -float("inf"), 0.0, tl.exp(fall))
    moment = tl.sum(decay * (moment + fall * total), 0)
    total = tl.sum(decay * total, 0)
    shift = tl.log(total)
    target = tl.load(targets + row)
    target_logit = tl.load(start + target).to(tl.float32)
    tl.store(chosen + row, (target_logit - highest) * scale - shift)
    tl.store(entropy + row, shift - moment / total)
    tl.store(log_z + row, highest * scale + shift)


@triton.jit
def _differentiate(
    gradient: tl.tensor,
    logits: tl.tensor,
    targets: tl.tensor,
    log_z: tl.tensor,
    entropy: tl.tensor,
    d_chosen: tl.tensor,
    d_entropy: tl.tensor,
    gradient_stride: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    ENTROPY: tl.constexpr,  # noqa: N803
) -> None:
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = places < COLUMNS
    x = tl.load(logits + row * stride + places, mask=inside, other=-float("inf")).to(tl.float32) * scale
    logp = x - tl.load(log_z + row)
    p = tl.exp(logp)
    derivative = tl.zeros([BLOCK], tl.float32)
    if ENTROPY:  # dH / dx = -p (log p + H); p log p is 0 where p is
        spread = tl.where(p > 0, logp, 0.0) + tl.load(entropy + row)
        derivative -= p * spread * tl.load(d_entropy + row)
    if CHOSEN:
        d_target = tl.load(d_chosen + row)
        derivative += d_target * (tl.where(places == tl.load(targets + row), 1.0, 0.0) - p)
    kind = gradient.dtype.element_ty
    tl.store(gradient + row * gradient_stride + places, (derivative * scale).to(kind), mask=inside)


def measure(
    logits: Tensor, targets: Tensor, temperature: float, chosen: Tensor, entropy: Tensor, log_z: Tensor
) -> None:
    """Write log-probabilities, entropies and log Z of [M, V] logits into three [M] float32 tensors.

    Args:
        logits: [M, V], float32, bfloat16 or float16; rows may have gaps between them, elements not.
        targets: [M] int64.
        temperature: divides the logits.
        chosen: receives the log-probability of each target.
        entropy: receives the entropies, nats.
        log_z: receives the logarithms of the sums.
    """
    rows, columns = logits.shape
    if rows:
        with torch.cuda.device_of(logits):  # a thread's current device may be another
            _measure[(rows,)](
                logits, targets, chosen, entropy, log_z, logits.stride(0), 1.0 / temperature,
                COLUMNS=columns, BLOCK=_block(columns), num_warps=WARPS,
            )  # fmt: skip


def differentiate(
    gradient: Tensor,
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    log_z: Tensor,
    entropy: Tensor,
    d_chosen: Tensor | None,
    d_entropy: Tensor | None,
) -> None:
    """Write the gradient of [M, V] ``logits`` into ``gradient``, which may be ``logits``; arguments as above."""
    rows, columns = logits.shape
    block = _block(columns)
    unread = log_z  # a pointer that no branch reads stands for one that is missing
    d_chosen_rows = unread if d_chosen is None else d_chosen.contiguous()
    d_entropy_rows = unread if d_entropy is None else d_entropy.contiguous()
    if rows:
        with torch.cuda.device_of(logits):
            _differentiate[(rows, triton.cdiv(columns, block))](
                gradient, logits, targets, log_z, entropy, d_chosen_rows, d_entropy_rows, gradient.stride(0),
                logits.stride(0),
                1.0 / temperature, COLUMNS=columns, BLOCK=block, CHOSEN=d_chosen is not None,
                ENTROPY=d_entropy is not None, num_warps=WARPS,
            )  # fmt: skip


def _block(columns: int) -> int:
    return int(min(WIDTH, triton.next_power_of_2(columns)))
