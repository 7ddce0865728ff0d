"""Token log-probabilities and entropies from hidden states, in chunks.

A [N, S, V] tensor of logits never exists: hidden states pass through the output head ``chunk`` rows at a time, and
their logits are recomputed in the backward pass. At V = 151,936 that is the largest tensor of a naive trainer. The
gradient of the head's weight is as large as the head, so it is allocated once and accumulated in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from gspo_lightning.policy.kernels.fused import Definition, kernels_for
from gspo_lightning.policy.kernels.linear import PLAIN_LINEAR, product
from gspo_lightning.policy.unsaid import UNSAID, SuppressingHead

DEFAULT_CHUNK = 1024
"""Rows of hidden states per chunk. At V = 151,936 one chunk of float32 logits is 0.6 GiB."""
BUFFER = {True: 1 << 17, False: 1 << 24}
"""Elements of the buffer that logits pass through, on a CPU (half a MiB: the size of its cache) and elsewhere."""
KEPT_LOGITS = 192 << 20
"""Bytes of float32 logits of a micro-batch up to which they are computed once; beyond, again in the backward pass."""
CHUNK_LOGITS = {True: 32 << 20, False: 1 << 30}
"""Bytes of float32 logits that exist at a time if they are computed twice, on a CPU and elsewhere.

Every chunk reads and writes the gradient of the head's weight, which on a GPU costs more beside its arithmetic
(estimated, not measured).
"""
LONG = 1 << 15
"""Elements from which PyTorch's threads share a sum."""
STEP = 256
"""Length of the sums that such a sum is made of instead."""


def head_chunk(count: int, vocabulary: int, *, cpu: bool) -> int:
    """Return the number of hidden states, out of ``count``, whose logits exist at a time.

    >>> head_chunk(300, 151_936, cpu=True), head_chunk(9_000, 151_936, cpu=True), head_chunk(9_000, 151_936, cpu=False)
    (300, 55, 1766)
    """
    row_bytes = 4 * vocabulary
    rows = max(1, count)
    return rows if rows * row_bytes <= KEPT_LOGITS else max(16, CHUNK_LOGITS[cpu] // row_bytes)


def logprobs_from_logits(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target and the entropy of its distribution, in float32 or wider.

    Args:
        logits: [M, V], any float dtype; upcast before the log-softmax (which in bf16 alone costs 1e-3 nats).
        targets: [M] int64.
        temperature: divides the logits; every log-probability that training uses must include it.

    Returns:
        ``logprobs`` [M] and ``entropies`` [M], nats; both have gradients.
    """
    chosen, entropy = _LogProbs.apply(logits, targets, temperature)  # type: ignore[no-untyped-call]
    return chosen, entropy


class _LogProbs(torch.autograd.Function):
    """Log-probabilities and entropies that keep only the logits of all [M, V] tensors, and create only their gradient.

    The rest passes through a buffer of a few rows, which on a CPU stays in the cache. A plain log-softmax and entropy
    would read and write tensors of that size a dozen times. CUDA has kernels that read the logits once
    (:mod:`gspo_lightning.policy.kernels.fused`).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        chosen, entropy, log_z = _measured(logits)
        measure, _ = _functions(logits)
        measure(logits, targets, temperature, chosen, entropy, log_z)
        ctx.save_for_backward(logits, targets, log_z, entropy)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_chosen: Tensor | None, d_entropy: Tensor | None) -> tuple[Tensor | None, None, None]:
        logits, targets, log_z, entropy = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        _, differentiate = _functions(logits)
        differentiate(gradient, logits, targets, ctx.temperature, log_z, entropy, d_chosen, d_entropy)
        return gradient, None, None


class _HeadLogProbs(torch.autograd.Function):
    """Product with the head's weight [V, D] followed by :class:`_LogProbs`, ``chunk`` rows at a time, in one buffer.

    Computed in ``dtype``, autocast's if it is on: both factors are cast once in the forward pass and once in the
    backward pass, and the gradient of the weight accumulates in float32 or wider.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int, dtype: torch.dtype,
        form: type, unsaid: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        chosen, entropy, log_z = _measured(hidden.to(dtype))
        with torch.autocast(hidden.device.type, enabled=False):
            narrow = hidden.to(dtype)
            factor = weight.to(dtype)
            buffer = narrow.new_empty(chunk, len(weight))
            for rows in _slices(hidden, chunk):
                logits = product(form, narrow[rows], factor, buffer)
                if unsaid is not None:
                    logits.index_fill_(-1, unsaid, UNSAID)
                measure, _ = _functions(logits)
                measure(logits, targets[rows], temperature, chosen[rows], entropy[rows], log_z[rows])
                del logits
        ctx.save_for_backward(hidden, weight, targets, log_z, entropy, unsaid)
        ctx.temperature = temperature
        ctx.chunk = chunk
        ctx.dtype = dtype
        ctx.form = form
        ctx.set_materialize_grads(False)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_chosen: Tensor | None, d_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None, None, None]:
        hidden, weight, targets, log_z, entropy, unsaid = ctx.saved_tensors
        d_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        wide = torch.promote_types(weight.dtype, torch.float32)
        d_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden.device.type, enabled=False):
            narrow = hidden.to(ctx.dtype)
            factor = weight.to(ctx.dtype)
            buffer = narrow.new_empty(ctx.chunk, len(weight))
            for rows in _slices(hidden, ctx.chunk):
                part = narrow[rows]
                logits = product(ctx.form, part, factor, buffer)
                if unsaid is not None:
                    logits.index_fill_(-1, unsaid, UNSAID)
                d_chosen_rows = None if d_chosen is None else d_chosen[rows]
                d_entropy_rows = None if d_entropy is None else d_entropy[rows]
                _, differentiate = _functions(logits)
                differentiate(  # in place: logits become their gradient
                    logits, logits, targets[rows], ctx.temperature, log_z[rows], entropy[rows], d_chosen_rows,
                    d_entropy_rows,
                )  # fmt: skip
                if d_hidden is not None:
                    d_hidden[rows] = logits @ factor
                if d_weight is not None and d_weight.dtype == logits.dtype:
                    d_weight.addmm_(logits.t(), part)
                elif d_weight is not None:
                    d_weight.add_(logits.t() @ part)
                del logits
        return d_hidden, None if d_weight is None else d_weight.to(weight.dtype), None, None, None, None, None, None


def _measured(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate per-row results: log-probability, entropy and log Z, float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    first, second, third = (x.new_empty(len(x), dtype=wide) for _ in range(3))
    return first, second, third


def _measure(
    logits: Tensor, targets: Tensor, temperature: float, chosen: Tensor, entropy: Tensor, log_z: Tensor
) -> None:
    """Write log-probabilities, entropies and log Z of [M, V] logits into three [M] tensors, by their definition."""
    for rows in _blocks(logits):
        part = logits[rows].to(log_z.dtype)
        top = part.amax(-1, keepdim=True)
        relative = torch.sub(part, top).div_(temperature)  # x, at most 0
        target_logits = relative.gather(-1, targets[rows].unsqueeze(-1)).squeeze(-1)
        weights = torch.exp(relative)
        total = _row_sums(weights)
        relative_log_z = total.log()
        chosen[rows] = target_logits - relative_log_z
        # H = log Z - sum p x, with x relative to the largest: nothing cancels
        entropy[rows] = relative_log_z - weights.mul_(relative).sum(-1).div_(total)
        log_z[rows] = top.squeeze(-1).div_(temperature).add_(relative_log_z)


def _differentiate(
    gradient: Tensor,
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    log_z: Tensor,
    entropy: Tensor,
    d_chosen: Tensor | None,
    d_entropy: Tensor | None,
) -> None:
    """Write the gradient of [M, V] ``logits`` into ``gradient``, which may be ``logits``, by its definition."""
    for rows in _blocks(logits):
        log_p = logits[rows].to(log_z.dtype).div(temperature).sub_(log_z[rows].unsqueeze(-1))
        part = torch.exp(log_p)  # p, then the gradient
        if d_entropy is None:
            scale = None
        else:  # dH / dx = -p (log p + H)
            scale = log_p.add_(entropy[rows].unsqueeze(-1)).mul_(d_entropy[rows].unsqueeze(-1))
        if d_chosen is not None:  # d log p(target) / dx = (x is the target) - p
            d_target = d_chosen[rows].unsqueeze(-1)
            part = part.mul_(-d_target if scale is None else scale.add_(d_target).neg_())
            part.scatter_add_(-1, targets[rows].unsqueeze(-1), d_target)
        elif scale is not None:
            part = part.mul_(scale.neg_())
        else:
            part.zero_()
        if gradient.dtype == part.dtype:
            torch.div(part, temperature, out=gradient[rows])
        else:
            gradient[rows] = part.div_(temperature)


DEFINITION = (_measure, _differentiate)
"""What the kernels are compared with."""


def _functions(logits: Tensor) -> Definition:
    """Return the two functions that compute these logits: kernels of their device, or else the definition."""
    kernels = kernels_for(logits, DEFINITION)
    return DEFINITION if kernels is None else (kernels.measure, kernels.differentiate)


def _row_sums(x: Tensor) -> Tensor:
    """Sum rows [m, V] to [m]; long ones in two steps, as threads would otherwise cut them by the number of rows."""
    if x.shape[-1] < LONG:
        return x.sum(-1)
    padded = nn.functional.pad(x, (0, -x.shape[-1] % STEP))
    return padded.unflatten(-1, (-1, STEP)).sum(-1).sum(-1)


def _blocks(logits: Tensor) -> list[slice]:
    """Return slices of rows that fit into a buffer of :data:`BUFFER` elements."""
    elements = BUFFER[logits.device.type == "cpu"]
    return _slices(logits, max(1, elements // max(1, logits.shape[-1])))


def _slices(x: Tensor, size: int) -> list[slice]:
    """Return slices of ``size`` rows; for fake tensors, which have only shapes, just the first."""
    starts = range(0, len(x), size)
    if isinstance(x, FakeTensor):
        starts = starts[:1]
    return [slice(start, start + size) for start in starts]


def token_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = DEFAULT_CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of ``targets`` under ``head(hidden)``, computing ``chunk`` rows of logits at a time.

    Args:
        head: maps hidden states [m, D] to logits [m, V] (output embedding, scaling and soft-capping). A plain
            ``nn.Linear`` without bias, also in a ``SuppressingHead``, is not called in chunks: its product is part of
            the fast path.
        hidden: [M, D], hidden states that predict the targets.
        targets: [M] int64.
        temperature: sampling temperature, > 0.
        chunk: rows per chunk.

    Returns:
        ``logprobs`` [M] and ``entropies`` [M] in nats, float32 or wider.

    >>> head = torch.nn.Linear(3, 5, bias=False)
    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
    >>> whole = torch.log_softmax(head(x), -1).gather(1, y[:, None])[:, 0]
    >>> torch.allclose(token_logprobs(head, x, y, chunk=2)[0], whole, atol=1e-6)
    True
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    if len(hidden) != len(targets):
        raise ValueError(f"{len(hidden)} hidden states and {len(targets)} targets: one each is needed")

    dtype = _dtype(hidden)
    linear = head.linear if isinstance(head, SuppressingHead) else head
    unsaid = head.index if isinstance(head, SuppressingHead) else None
    if torch.is_grad_enabled() and hidden.shape[0] > chunk and _is_product(linear, hidden, dtype):
        options = targets, temperature, chunk, dtype, type(linear), unsaid
        logprobs, entropy = _HeadLogProbs.apply(hidden, linear.weight, *options)  # type: ignore
        return logprobs, entropy

    def run(part: Tensor, part_targets: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs_from_logits(head(part), part_targets, temperature)

    all_logprobs: list[Tensor] = []
    all_entropies: list[Tensor] = []
    # Without rows, one empty chunk still runs, so every parameter of the head gets a gradient.
    for part, part_targets in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True):
        if torch.is_grad_enabled() and hidden.shape[0] > chunk:
            logprobs, entropy = checkpoint(run, part, part_targets, use_reentrant=False, preserve_rng_state=False)
        else:
            logprobs, entropy = run(part, part_targets)
        all_logprobs.append(logprobs)
        all_entropies.append(entropy)
    return torch.cat(all_logprobs), torch.cat(all_entropies)


def _dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of a product with hidden states under the present autocast."""
    kind = hidden.device.type
    casts = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if casts else hidden.dtype


def _is_product(head: Callable[[Tensor], Tensor], hidden: Tensor, dtype: torch.dtype) -> bool:
    """True if the head is only a product with a weight, in ``dtype``, without hooks."""
    plain_weights = (nn.Parameter, Tensor, FakeTensor)  # Tensor: under FSDP
    if not isinstance(head, PLAIN_LINEAR) or type(head) not in PLAIN_LINEAR or type(head.weight) not in plain_weights:
        return False
    has_hooks = head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or "forward" in vars(head)
    casts = dtype != hidden.dtype or torch.is_autocast_enabled(hidden.device.type)
    fits = head.weight.dtype == hidden.dtype or (casts and head.weight.dtype != torch.float64)
    return getattr(head, "bias", None) is None and not has_hooks and fits
