"""Decode step of Llama-family models on an accelerator: the policy's own weights, fewer kernels.

A step of few rows is bounded by its number of kernels there. Nothing is copied, unlike on a CPU
(:mod:`gspo_lightning.rollouts.sampler.fast_decoder.layers`): norms are one kernel each, queries and keys are normed and
rotated together, and there is no mask. The result equals that of the modules up to rounding, and is compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm

from gspo_lightning.policy.attention import GroupCache, attention_dtype, windows
from gspo_lightning.policy.kernels.linear import PLAIN_LINEAR
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.fast_decoder.layers import FAMILIES, linears, passed_over


@dataclass(slots=True)
class _Norm:
    """Root mean square norm: its module's scale and epsilon."""

    weight: Tensor
    eps: float

    @classmethod
    def of(cls, module: Any) -> _Norm:
        return cls(module.weight, module.variance_epsilon)

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(slots=True)
class _Layer:
    """One layer; ``scale`` [H + K, d] is that of the query and key norms, if it has them."""

    attention: Any
    heads: tuple[int, int]
    scale: Tensor | None
    eps: float
    mlp: Any
    norms: tuple[_Norm, _Norm]


class DirectDecoderLayers:
    """Layers and head of a policy, used in place."""

    def __init__(self, policy: Policy) -> None:
        backbone: Any = policy.backbone
        self.policy, self.backbone = policy, backbone
        self.layers = [_layer(layer) for layer in backbone.layers]
        self.norm = _Norm.of(backbone.norm)

    @classmethod
    def of(cls, policy: Policy) -> DirectDecoderLayers | None:
        """Return a decode step, or None on a CPU, for another family, sharded weights, adapters or hooks."""
        layers = getattr(policy.backbone, "layers", ())
        known = len(layers) > 0 and all(type(layer).__name__ in FAMILIES for layer in layers)
        if policy.device.type == "cpu" or not known or policy.in_lockstep or windows(policy.backbone):
            return None
        plain = all(type(module) in PLAIN_LINEAR for module in linears(policy)) and not any(
            module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
            for module in passed_over(policy)
        )
        return cls(policy) if plain else None

    def __call__(self, tokens: Tensor, positions: Tensor, cache: GroupCache) -> Tensor:
        """Return logits [R, V] after one token [R] per row at positions [R]; see :meth:`GroupCache.write`."""
        x: Tensor = self.backbone.embed_tokens(tokens)
        cos, sin = (table.squeeze(0).unsqueeze(1) for table in self.backbone.rotary_emb(x, positions.unsqueeze(0)))
        half = sin.shape[-1] // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        for layer in self.layers:
            x = x + self._attention(layer, layer.norms[0](x), cos, sin, cache)
            x = x + _mlp(layer.mlp, layer.norms[1](x))
        return self.policy.head(self.norm(x))

    @staticmethod
    def _attention(layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, cache: GroupCache) -> Tensor:
        own, (queries, keys) = layer.attention, layer.heads
        x = x.to(own.q_proj.weight.dtype)
        qkv = torch.cat([_product(part, x) for part in (own.q_proj, own.k_proj, own.v_proj)], dim=-1)
        qkv = qkv.view(len(x), queries + 2 * keys, -1)
        value, qk = qkv[:, queries + keys :], qkv[:, : queries + keys]
        if layer.scale is not None:
            qk = rms_norm(qk, qk.shape[-1:], None, layer.eps) * layer.scale
        dtype = attention_dtype(value.dtype, device=x.device)
        value = value.to(dtype)
        qk = torch.addcmul(qk * cos, qk.roll(cos.shape[-1] // 2, -1), sin).to(dtype)
        scaling = own.scaling if layer.scale is None else 1.0
        out = cache.attend(own.layer_idx, qk[:, :queries], qk[:, queries:], value, scaling)
        return _product(own.o_proj, out.flatten(1).to(own.o_proj.weight.dtype))


def _product(module: Any, x: Tensor) -> Tensor:
    return linear(x, module.weight, module.bias)


def _mlp(mlp: Any, x: Tensor) -> Tensor:
    if not hasattr(mlp, "gate_proj"):  # a mixture of experts
        out: Tensor = mlp(x.unsqueeze(0)).squeeze(0)
        return out
    x = x.to(mlp.gate_proj.weight.dtype)
    return _product(mlp.down_proj, mlp.act_fn(_product(mlp.gate_proj, x)) * _product(mlp.up_proj, x))


def _layer(layer: Any) -> _Layer:
    attention = layer.self_attn
    size = attention.head_dim
    heads = attention.q_proj.out_features // size, attention.k_proj.out_features // size
    scale, eps = None, 0.0
    if hasattr(attention, "q_norm"):
        own = attention.q_norm.weight * attention.scaling, attention.k_norm.weight
        scale = torch.cat([w.expand(n, -1) for w, n in zip(own, heads, strict=True)])
        eps = attention.q_norm.variance_epsilon
    return _Layer(
        attention, heads, scale, eps, layer.mlp,
        (_Norm.of(layer.input_layernorm), _Norm.of(layer.post_attention_layernorm)),
    )  # fmt: skip
