"""Linear layers on a CPU: through oneDNN where MKL leaves AVX-512 unused, and in bfloat16 without copies of weights.

PyTorch multiplies float32 matrices on a CPU by MKL, which takes its AVX-512 kernels on Intel processors only. On an AMD
EPYC with AVX-512 it reaches 110 GFLOP/s on a core and oneDNN 230, for products of the same precision: sums in float32,
in another order. Weights, their names and the files of a model stay as they are.

Under autocast to bfloat16 autograd keeps the cast of every weight until the backward pass has read it. Here it is cast
again there, which takes no longer: a copy that lives for one product is written to memory that is in the cache already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gspo_lightning.policy.kernels.processor import multiplies_bfloat16, prefers_onednn

FEWEST = 1 << 23
"""Multiplications from which a product goes through oneDNN: 0.15 ms of MKL.

A number of rows that was never seen takes 0.1 to 0.4 ms to prepare, and each call 10 us more. Training a hidden size of
64 takes 13 % longer than by MKL with a limit of 2**20, and as long with 2**23; a hidden size of 128 takes 24 % less.
"""
NARROW = 8
"""Outputs for each input from which the gradient of a weight is computed transposed.

oneDNN wants the larger factor second: of an adapter [576, 16] with 500 rows in 0.06 instead of 0.17 ms.
"""
LARGE = 1 << 20
"""Numbers of a weight from which that does not pay: autograd copies a transposed gradient into its weight's layout.

Of a head [49152, 576] with 147 rows, transposed 160 ms, and 260 with the copy; directly 190. If the head is tied to the
embedding, whose gradient is added to it, 700 and 190 ms: only a gradient that is no view is added to in place.
"""
PIECE = 1 << 22
"""Numbers of a weight whose gradient is made in bfloat16 at a time, before it is written in float32."""


class OneDNNLinear(nn.Linear):
    """Linear layer with the products of this file on a CPU; otherwise a layer like any other."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name in torch)
        """Map [..., in] to [..., out]."""
        if is_narrow(input, self.weight):
            narrow: Tensor = _NarrowProduct.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return narrow
        if not _is_faster(input, self.weight):
            return super().forward(input)
        out: Tensor = _Product.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out


PLAIN_LINEAR = (nn.Linear, OneDNNLinear)
"""Types of a linear layer that is only a product and a bias."""


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        d_x = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            d_x = _multiply(gradient, weight.t())
        rows = gradient.reshape(-1, gradient.shape[-1])
        inputs = x.reshape(-1, x.shape[-1])
        if ctx.needs_input_grad[1]:
            if weight.shape[0] < NARROW * weight.shape[1] or weight.numel() >= LARGE:
                d_weight = _multiply(rows.t(), inputs.t())
            else:
                d_weight = _multiply(inputs.t(), rows.t()).t()
        if ctx.needs_input_grad[2]:
            d_bias = rows.sum(0)
        return d_x, d_weight, d_bias


class _NarrowProduct(torch.autograd.Function):
    """Product in bfloat16 with a weight in float32: autocast's values to the bit, its gradients but for rounding."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        narrow = x.bfloat16()
        ctx.save_for_backward(narrow, weight)
        ctx.dtype = x.dtype
        return narrow_product(narrow, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        narrow, weight = ctx.saved_tensors
        d_x = d_weight = d_bias = None
        rows = gradient.reshape(-1, gradient.shape[-1])
        if ctx.needs_input_grad[0]:
            d_x = (gradient @ weight.bfloat16()).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            d_weight = narrow_weight_gradient(rows, narrow.reshape(-1, narrow.shape[-1]))
        if ctx.needs_input_grad[2]:
            d_bias = rows.sum(0).float()
        return d_x, d_weight, d_bias


def narrow_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.t() + bias`` in bfloat16, for bfloat16 ``x`` [..., in] and float32 ``weight`` [out, in]."""
    return nn.functional.linear(x, weight.bfloat16(), None if bias is None else bias.bfloat16())


def narrow_weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the float32 gradient [out, in] of a weight, from ``gradient`` [rows, out] and ``x`` [rows, in]."""
    d_weight = x.new_empty(gradient.shape[1], x.shape[1], dtype=torch.float32)
    size = max(1, PIECE // x.shape[1])
    for part, columns in zip(d_weight.split(size), gradient.split(size, dim=1), strict=True):
        part.copy_(columns.t() @ x)
    return d_weight


def is_narrow(x: Tensor, weight: Tensor) -> bool:
    """True if autocast multiplies float32 weights that are trained or passed through, in bfloat16 on a CPU that can."""
    if not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return False
    if any(type(t) not in (nn.Parameter, Tensor) or not t.is_cpu for t in (x, weight)):
        return False
    if weight.dtype != torch.float32 or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    return torch.is_grad_enabled() and multiplies_bfloat16() and not torch.compiler.is_compiling()


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _is_faster(x: Tensor, weight: Tensor) -> bool:
    """True if ``x @ weight.t()`` is a product of plain float32 tensors on a CPU, and large enough for oneDNN."""
    if any(type(t) not in (nn.Parameter, Tensor) or t.dtype != torch.float32 or not t.is_cpu for t in (x, weight)):
        return False
    if not prefers_onednn() or x.shape[-1] != weight.shape[1] or x.numel() * len(weight) < FEWEST:
        return False
    if not torch.backends.mkldnn.enabled or torch.is_autocast_enabled("cpu"):
        return False
    return not torch.compiler.is_compiling()  # Inductor knows packed weights only


def product(form: type, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Return ``x @ weight.t()`` without gradients, with the bits of a layer's forward.

    Args:
        form: type of the layer.
        x: [m, in].
        weight: [out, in].
        out: [m or more, out], room for the result, which need not be used.
    """
    if form is OneDNNLinear and _is_faster(x, weight):
        return _multiply(x, weight)
    return torch.mm(x, weight.t(), out=out[: len(x)])


def plain_product(form: type, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.t() + bias`` inside a function with a gradient of its own, as a layer of a type computes it.

    A float32 weight is cast to the dtype of ``x``.

    Args:
        form: type of the layer.
        x: [..., in].
        weight: [out, in].
        bias: [out].
    """
    if form is OneDNNLinear and _is_faster(x, weight):
        return _multiply(x, weight, bias)
    if x.dtype == torch.bfloat16 and weight.dtype == torch.float32:
        return narrow_product(x, weight, bias)
    return nn.functional.linear(x, weight, bias)


def use_onednn(model: nn.Module) -> None:
    """Turn a model's linear layers into :class:`OneDNNLinear`, in place, if that is faster on this processor."""
    if prefers_onednn() or multiplies_bfloat16():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = OneDNNLinear
