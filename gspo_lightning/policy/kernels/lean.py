"""Norms and gated MLPs that keep fewer activations for the backward pass, on a CPU.

transformers writes them as chains of operators, and autograd keeps what each of these reads: two tensors for a norm,
four of the inner size for an MLP. Here a norm keeps its input, and an MLP the results of its two products; all else is
computed again in the backward pass, number by number, which takes less time than writing it to fresh memory. Values and
the MLP's gradients have the same bits as those of the modules' own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import SiLUActivation

from gspo_lightning.policy.kernels.linear import (
    PLAIN_LINEAR,
    OneDNNLinear,
    narrow_weight_gradient,
    plain_product,
    use_onednn,
)

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe", "SmolLM3")
"""Families of transformers whose norm and MLP are computed as here."""
PLAIN_TENSOR = (nn.Parameter, Tensor)
"""Types of a weight that is whole: under FSDP it is a view of a flat one."""
SILU = (nn.SiLU, SiLUActivation)
_HOME = "transformers.models."


class _Lean(nn.Module):
    """Mixin of which there is a class for each family's: no import finds those, so that copies name the two bases."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how ``pickle`` and ``copy`` make the module again, on another rank too."""
        mixin, *families = type(self).__bases__
        if len(families) != 1 or not issubclass(mixin, _Lean):
            return super().__reduce_ex__(protocol)
        return _without_state, (families[0], mixin), dict(self.__dict__)


class _LeanNorm(_Lean):
    """Mixin before a family's ``RMSNorm``."""

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        float32 = hidden_states.dtype == self.weight.dtype == torch.float32
        if float32 and _keeps(hidden_states) and type(self.weight) in PLAIN_TENSOR:
            out: Tensor = _Norm.apply(hidden_states, self.weight, self.variance_epsilon)  # type: ignore[no-untyped-call]
            return out
        plain: Tensor = super().forward(hidden_states)
        return plain


class _LeanMLP(_Lean):
    """Mixin before a family's ``MLP``."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        if not _keeps(x) or type(self.act_fn) not in SILU:
            plain: Tensor = super().forward(x)
            return plain
        gate = self.gate_proj(x)
        up = self.up_proj(x)
        down = self.down_proj
        autocast = torch.is_autocast_enabled("cpu")
        whole = not autocast or (type(down) is OneDNNLinear and gate.dtype == up.dtype == torch.bfloat16)
        if type(down) in PLAIN_LINEAR and whole and not _watched(down):
            out: Tensor = _GatedProduct.apply(gate, up, down.weight, down.bias, type(down))  # type: ignore[no-untyped-call]
            return out
        gated: Tensor = down(_Gated.apply(gate, up))  # type: ignore[no-untyped-call]
        return gated


def _keeps(x: Tensor) -> bool:
    """True if a backward pass on a CPU will need what is kept of plain tensors."""
    return torch.is_grad_enabled() and x.is_cpu and type(x) is Tensor and not torch.compiler.is_compiling()


def _watched(layer: nn.Module) -> bool:
    """True if a layer has to be called as a module, or its weight is no plain tensor."""
    if type(layer.weight) not in PLAIN_TENSOR:
        return True
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return bool(hooks) or "forward" in vars(layer)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return weight * (x * scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        d_x = d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = (gradient * normed).flatten(0, -2).sum(0)
        if ctx.needs_input_grad[0]:
            d_normed = gradient * weight
            along = (d_normed * normed).mean(-1, keepdim=True)
            d_x = torch.addcmul(d_normed, normed, along, value=-1).mul_(scale)
        return d_x, d_weight, None


class _Gated(torch.autograd.Function):
    """SiLU of the gate, times the other product."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return nn.functional.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return _through_gate(gradient, gate, up)


class _GatedProduct(torch.autograd.Function):
    """:class:`_Gated`, and the product of its result with a weight, which it does not keep either."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, form: type) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        ctx.form = form
        return plain_product(form, nn.functional.silu(gate).mul_(up), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight = ctx.saved_tensors
        d_weight = d_bias = None
        rows = gradient.reshape(-1, gradient.shape[-1])
        if ctx.needs_input_grad[2]:
            inner = nn.functional.silu(gate).mul_(up).reshape(-1, gate.shape[-1])
            is_narrow = inner.dtype != weight.dtype
            d_weight = (
                narrow_weight_gradient(rows, inner) if is_narrow else plain_product(ctx.form, rows.t(), inner.t())
            )
            del inner
        if ctx.needs_input_grad[3]:
            d_bias = rows.sum(0).to(weight.dtype)
        d_gate, d_up = _through_gate(plain_product(ctx.form, gradient, weight.t()), gate, up)
        return d_gate, d_up, d_weight, d_bias, None


def _through_gate(gradient: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    d_gate: Tensor = torch.ops.aten.silu_backward(gradient * up, gate)
    return d_gate, nn.functional.silu(gate).mul_(gradient)


_CLASSES: dict[tuple[type, type], type] = {}
"""A family's class, and the mixin before it -> the class of both."""


def _lean(kind: type, mixin: type) -> type:
    """Return a class of the same name as a family's, which the rest of the package and transformers know it by."""
    if (kind, mixin) not in _CLASSES:
        _CLASSES[kind, mixin] = type(kind.__name__, (mixin, kind), {"__module__": kind.__module__})
    return _CLASSES[kind, mixin]


def _without_state(kind: type, mixin: type) -> nn.Module:
    """Return a module of a lean class that nothing has been set of yet."""
    module: nn.Module = object.__new__(_lean(kind, mixin))
    return module


def use_lean_modules(model: nn.Module) -> None:
    """Turn a model's norms and gated MLPs into those of this file, in place; weights and their names stay."""
    mixins: dict[str, type] = {}
    for family in FAMILIES:
        mixins |= {f"{family}RMSNorm": _LeanNorm, f"{family}MLP": _LeanMLP}
    for module in model.modules():
        kind = type(module)
        mixin = mixins.get(kind.__name__) if kind.__module__.startswith(_HOME) else None
        if mixin is not None and not issubclass(kind, mixin):
            module.__class__ = _lean(kind, mixin)


def use_cpu_kernels(model: nn.Module) -> None:
    """Let a model compute on a CPU with less time and memory, in place: oneDNN's products, lean norms and MLPs."""
    use_onednn(model)
    use_lean_modules(model)
