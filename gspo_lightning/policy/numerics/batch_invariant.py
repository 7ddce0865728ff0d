"""Batch-invariant mode of a policy: a token's log-probability has the same bits in training and in decoding.

The last bits of a product, a sum or an activation usually depend on how many others are computed with it: kernels
choose their order of additions by the shape, and compute the ends of vectors by other code. Here products with weights
are computed by tiles of one fixed shape, attention by pages (:mod:`gspo_lightning.policy.attention.pages`), and SiLU
from an exponential that does not depend on an element's place. The idea is that of Thinking Machines ("Defeating
Nondeterminism in LLM Inference", 2025) and of VeXact, whose paper (arXiv 2605.14220) finds that the mismatch alone can
end a training. Gradients are those of whole batches and have no fixed bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import SiLUActivation

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.attention import windows
from gspo_lightning.policy.attention.interface import IMPLEMENTATIONS
from gspo_lightning.policy.kernels.linear import PLAIN_LINEAR
from gspo_lightning.policy.kernels.thread_state import without_autocast
from gspo_lightning.policy.policy import Policy

TILE = 32
"""Rows of a product. Fewer read the weights more often in training, more compute more empty rows in decoding."""
ALIGNED = 64
"""Bytes: the alignment of PyTorch's memory. A tile always begins at such an address."""
FAMILIES = tuple(f"{family}DecoderLayer" for family in ("Llama", "Mistral", "Qwen2", "Qwen3"))
"""Layers whose every operation was looked at: they compute tokens apart from each other, but for attention."""
_SILU = nn.SiLU, SiLUActivation


class TiledLinear(nn.Linear):
    """Linear layer whose result for a row does not depend on the other rows, nor on their number."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name in torch)
        """Map [..., in] to [..., out], in the dtype of autocast if it is on."""
        kind = input.device.type
        casts = torch.is_autocast_enabled(kind) and input.dtype != torch.float64
        dtype = torch.get_autocast_dtype(kind) if casts else input.dtype
        rows = input.reshape(-1, input.shape[-1])
        out: Tensor = _TiledProduct.apply(rows, self.weight, self.bias, dtype)  # type: ignore[no-untyped-call]
        return out.view(*input.shape[:-1], -1)


class _TiledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.dtype = dtype
        ctx.bias = None if bias is None else bias.dtype
        with without_autocast(rows.device):
            out = tiled_product(rows.to(dtype), weight.to(dtype).t())
            return out if bias is None else out.add_(bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        d_rows = d_weight = d_bias = None
        with without_autocast(rows.device):
            gradient = gradient.to(ctx.dtype)
            if ctx.needs_input_grad[0]:
                d_rows = (gradient @ weight.to(ctx.dtype)).to(rows.dtype)
            if ctx.needs_input_grad[1]:
                d_weight = (gradient.t() @ rows.to(ctx.dtype)).to(weight.dtype)
            if ctx.bias is not None and ctx.needs_input_grad[2]:
                d_bias = gradient.sum(0).to(ctx.bias)
        return d_rows, d_weight, d_bias, None


def tiled_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Return [M, in] times [in, out], :data:`TILE` rows at a time; rows beyond the last one are 0.

    >>> rows, weight = torch.randn(70, 48), torch.randn(48, 20)
    >>> torch.equal(tiled_product(rows, weight)[69:], tiled_product(rows[69:], weight))
    True
    """
    count = len(rows)
    whole = -(-count // TILE) * TILE
    rows = rows.contiguous()
    if whole != count:
        rows = nn.functional.pad(rows, (0, 0, 0, whole - count))
    elif rows.data_ptr() % ALIGNED:
        rows = rows.clone()
    out = rows.new_empty(whole, weight.shape[1])
    for part, into in zip(rows.split(TILE), out.split(TILE), strict=True):
        if part.data_ptr() % ALIGNED or into.data_ptr() % ALIGNED:
            into.copy_(torch.mm(part.clone(), weight))
        else:
            torch.mm(part, weight, out=into)
    return out[:count]


class PlacelessSiLU(nn.Module):
    """SiLU, ``x / (1 + exp(-x))``, whose bits do not depend on the place of an element in its tensor."""

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor element by element."""
        out: Tensor = _SiLU.apply(x)  # type: ignore[no-untyped-call]
        return out


class _SiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return wide.div(wide.neg().exp_().add_(1)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        d_x: Tensor = torch.ops.aten.silu_backward(gradient, x)
        return d_x


def make_batch_invariant(policy: Policy) -> None:
    """Put tiled products and activations into a policy's model, in place, and say so in ``policy.batch_invariant``.

    Weights, their names and the files of a model stay as they are.

    Raises:
        UserError: the model has a layer of a kind that was not made invariant.
    """
    name = type(policy.model).__name__
    model = policy.model
    reason = _why_not(policy)
    if reason is not None:
        raise UserError(
            "model.batch_invariant",
            f"is true, but {name} has {reason}",
            fix="use a dense Llama, Mistral, Qwen2 or Qwen3 model without windows, or batch_invariant: false",
        )
    for module in list(model.modules()):
        if type(module) in PLAIN_LINEAR:
            module.__class__ = TiledLinear
        for child, activation in module.named_children():
            if isinstance(activation, _SILU):
                setattr(module, child, PlacelessSiLU())
    policy.batch_invariant = True


def _why_not(policy: Policy) -> str | None:
    """Return what a policy's model has that depends on the batch, or None."""
    layers = list(getattr(policy.backbone, "layers", ()))
    kinds = sorted({type(layer).__name__ for layer in layers})
    if policy.image_processor is not None:
        return "a vision tower"
    if not layers or any(kind not in FAMILIES for kind in kinds):
        return f"layers of type {', '.join(kinds) or 'unknown'}, whose order of additions may depend on the batch"
    sliding = windows(policy.backbone)
    if sliding:
        return f"a sliding window of {sliding[0]} tokens"
    attention = str(policy.model.config._attn_implementation)
    if attention not in IMPLEMENTATIONS:
        return f"attn_implementation {attention!r}, which takes no other attention"
    if any(not isinstance(layer.mlp.act_fn, _SILU) for layer in layers):
        return f"the activation {type(layers[0].mlp.act_fn).__name__}; only SiLU was made invariant"
    unknown = set()
    for module in policy.model.modules():
        weight: Any = getattr(module, "weight", None)
        is_leaf = not list(module.children())
        if is_leaf and weight is not None and weight.dim() == 2 and type(module) not in (*PLAIN_LINEAR, nn.Embedding):
            unknown.add(type(module).__name__)
    return f"weights in {', '.join(sorted(unknown))}" if unknown else None
