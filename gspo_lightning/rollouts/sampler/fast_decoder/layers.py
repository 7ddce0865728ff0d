"""Decode step of Llama-family models on a CPU, in as few operators as possible.

On a CPU a step of a small model is bounded by its number of operators, and that of a larger one by products of few rows
with weights in the wrong memory layout. Here the weights are copied once for a rollout: transposed or, if they are
large, packed by oneDNN; those of one input are concatenated and multiplied by the scale of the preceding norm before.
Low-rank adapters are added to the copies. A norm is four operators and a rotation three. Under autocast the copies have
its dtype, and all else is float32. The result equals that of the model's own modules up to rounding; the decoder
compares the two on a few tokens before it relies on it (:mod:`gspo_lightning.rollouts.sampler.decoding`).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.policy.adapters.lora import has_adapters, is_plain_linear, merged_weight
from gspo_lightning.policy.attention import GroupCache, windows
from gspo_lightning.policy.kernels.processor import multiplies_bfloat16
from gspo_lightning.policy.kernels.thread_state import without_autocast
from gspo_lightning.policy.numerics.autocast_weights import autocast_dtype, compute_dtype
from gspo_lightning.policy.policy import Policy

SPARSE_BLOCK = "Qwen3MoeSparseMoeBlock"
LARGEST_COPY = 2 << 30
"""Limit in bytes of copied weights. During a rollout they take the place of the gradients, which are as large."""
PACKED, ROWS = 1 << 17, 64
"""Number of weights above which a product of few rows is faster with packed weights, and rows that they are packed for.

16 rows times [576, 1536] take 0.35 ms packed and 0.59 ms transposed on a processor with AVX-512, 64 rows 1.15 and 1.45.
"""
FAMILIES = {f"{family}DecoderLayer" for family in ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe")}


class FastExperts:
    """Experts with transposed copies of the weights; the router is the model's own module, for hooks on it.

    Args:
        block: a ``Qwen3MoeSparseMoeBlock`` of transformers.
    """

    def __init__(self, block: Any) -> None:
        self.router: nn.Module = block.gate
        self.act: nn.Module = block.experts.act_fn
        weights = block.experts.gate_up_proj, block.experts.down_proj
        self.gate_up, self.down = (w.transpose(1, 2).contiguous().unbind() for w in weights)

    @staticmethod
    def fit(block: nn.Module) -> bool:
        """True if the block is supported."""
        return type(block).__name__ == SPARSE_BLOCK

    def __call__(self, x: Tensor) -> Tensor:
        """Map [R, D] to [R, D]."""
        _, weights, chosen = self.router(x)
        experts, order = chosen.flatten().sort(stable=True)
        counts = torch.bincount(experts, minlength=len(self.gate_up)).tolist()
        rows = order // chosen.shape[1]
        found = []
        for part, gate_up, down in zip(x.index_select(0, rows).split(counts), self.gate_up, self.down, strict=True):
            if len(part):
                gate, up = torch.mm(part, gate_up).chunk(2, dim=-1)
                found.append(torch.mm(self.act(gate).mul_(up), down))
        outs = torch.cat(found).mul_(weights.flatten().index_select(0, order).unsqueeze(1))
        return torch.zeros_like(x).index_add_(0, rows, outs)


@dataclass(slots=True)
class _Norm:
    """Root mean square norm of float32 states [R, D], in the dtype of the products that read it."""

    eps: Tensor
    scale: Tensor | None
    """None: the product that reads it has it in its weights."""
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        normed = _normed(x, self.eps)
        return normed if self.scale is None else normed.mul_(self.scale).to(self.dtype)


@dataclass(slots=True)
class _Product:
    """``x @ weight + bias`` for ``weight`` [in, out], or [out, in] packed by oneDNN; in the weight's dtype."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        if self.weight.is_mkldnn:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return out
        out = torch.mm(x, self.weight)
        return out if self.bias is None else out.add_(self.bias)

    def onto(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return ``residual`` plus the product."""
        if self.weight.dtype != residual.dtype:
            return residual + self(x)
        if self.weight.is_mkldnn:  # large models have large residuals: added once, and not to partial sums
            return self(x).add_(residual)
        out = torch.addmm(residual, x, self.weight)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(slots=True)
class _Dense:
    """Gated MLP."""

    gate_up: _Product
    down: _Product
    act: nn.Module

    def onto(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return ``residual`` plus the MLP of ``x``."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down.onto(residual, self.act(gate).mul_(up))


@dataclass(slots=True)
class _Other:
    """MLP computed by ``run`` from its normed input, under autocast to ``dtype`` unless that is float32."""

    run: Callable[[Tensor], Tensor]
    dtype: torch.dtype

    def onto(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return ``residual`` plus the MLP of ``x``."""
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            return residual + self.run(x)


@dataclass(slots=True)
class _Layer:
    """One layer; ``scale`` [H + K, d] of the query and key norms includes the scaling of attention."""

    index: int
    qkv: _Product
    heads: tuple[int, int]
    scale: Tensor
    head_eps: Tensor | None
    out: _Product
    mlp: _Dense | _Other
    norms: tuple[_Norm, _Norm]


class FastDecoderLayers:
    """Layers and head of a policy, with copies of its current weights, in the dtype of its products."""

    def __init__(self, policy: Policy) -> None:
        backbone: Any = policy.backbone
        dtype = compute_dtype(policy)
        self.policy, self.backbone = policy, backbone
        source = policy
        if policy.cast_from is not None and has_adapters(
            policy.model
        ):  # weights that are cast lose what is added to them
            source = policy.cast_from()
        layers: Any = source.backbone.layers
        with without_autocast(policy.device):
            self.layers = [_layer(layer, dtype) for layer in layers]
            self.norm = _Norm(_eps(backbone.norm), backbone.norm.weight, dtype)
            self.head = _product([source.model.get_output_embeddings()], dtype)

    @classmethod
    def of(cls, policy: Policy) -> FastDecoderLayers | None:
        """Return a decode step, or None for another family, device, precision or size, or with hooks."""
        return cls(policy) if _known(policy) and _plain(policy) else None

    def __call__(self, tokens: Tensor, positions: Tensor, cache: GroupCache) -> Tensor:
        """Return logits [R, V] after one token [R] per row at positions [R]; see :meth:`GroupCache.write`."""
        with without_autocast(self.policy.device):
            return self._logits(tokens, positions, cache)

    def _logits(self, tokens: Tensor, positions: Tensor, cache: GroupCache) -> Tensor:
        x: Tensor = self.backbone.embed_tokens(tokens).float()
        cos, sin = (table.squeeze(0).unsqueeze(1) for table in self.backbone.rotary_emb(x, positions.unsqueeze(0)))
        half = sin.shape[-1] // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        for layer in self.layers:
            x = layer.out.onto(x, self._attention(layer, layer.norms[0](x), cos, sin, cache))
            x = layer.mlp.onto(x, layer.norms[1](x))
        return self.policy.finish_logits(self.head(self.norm(x)))

    @staticmethod
    def _attention(layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, cache: GroupCache) -> Tensor:
        queries, keys = layer.heads
        qkv = layer.qkv(x).view(len(x), queries + 2 * keys, -1)
        qkv = qkv.float()
        value, qk = qkv[:, queries + keys :], qkv[:, : queries + keys]
        qk = (qk if layer.head_eps is None else _normed(qk, layer.head_eps)) * layer.scale
        qk = torch.addcmul(qk * cos, qk.roll(cos.shape[-1] // 2, -1), sin)
        return cache.attend(layer.index, qk[:, :queries], qk[:, queries:], value, 1.0).flatten(1)


def _known(policy: Policy) -> bool:
    layers = getattr(policy.backbone, "layers", ())
    known = len(layers) > 0 and all(type(layer).__name__ in FAMILIES for layer in layers)
    dtype = autocast_dtype(policy.device)
    fast = dtype is None or (dtype == torch.bfloat16 and multiplies_bfloat16())
    return policy.device.type == "cpu" and fast and known and not policy.in_lockstep and not windows(policy.backbone)


def _plain(policy: Policy) -> bool:
    """True if every bypassed module is plain float32 without hooks or patches, ``LARGEST_COPY`` bytes in all.

    Under autocast its products may have cast weights (:mod:`gspo_lightning.policy.numerics.autocast_weights`).
    """
    dtypes = {torch.float32, autocast_dtype(policy.device)}
    if not all(is_plain_linear(linear) for linear in linears(policy)):
        return False
    size = 0
    for module in passed_over(policy):
        weights = list(module.parameters(recurse=False))
        if any(type(w) is not nn.Parameter or w.dtype not in dtypes for w in weights):
            return False
        size += sum(w.nbytes for w in weights)
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return False
    return size <= LARGEST_COPY


def linears(policy: Policy) -> Iterator[nn.Module]:
    """Yield the linear layers of a decoder of a supported family."""
    backbone: Any = policy.backbone
    yield policy.model.get_output_embeddings()
    for layer in backbone.layers:
        yield from (getattr(layer.self_attn, f"{name}_proj") for name in "qkvo")
        if hasattr(layer.mlp, "gate_proj"):
            yield from (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)


def passed_over(policy: Policy) -> Iterator[nn.Module]:
    """Yield the modules that the decode step bypasses."""
    backbone: Any = policy.backbone
    yield from (backbone, backbone.norm, policy.model.get_output_embeddings())
    for layer in backbone.layers:
        yield from (layer, layer.input_layernorm, layer.post_attention_layernorm)
        yield from layer.self_attn.modules()
        if hasattr(layer.mlp, "gate_proj"):
            yield from layer.mlp.modules()
        elif FastExperts.fit(layer.mlp):
            yield from (layer.mlp, layer.mlp.experts)


def _normed(x: Tensor, eps: Tensor) -> Tensor:
    """Divide ``x`` by its root mean square, without a scale."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()


def _layer(layer: Any, dtype: torch.dtype) -> _Layer:
    attention = layer.self_attn
    size = attention.head_dim
    heads = attention.q_proj.out_features // size, attention.k_proj.out_features // size
    normed = hasattr(attention, "q_norm")
    first = layer.input_layernorm
    second = layer.post_attention_layernorm
    own = [attention.q_norm.weight, attention.k_norm.weight] if normed else [first.weight.new_ones(size)] * 2
    before_attention = _scale_of(first, dtype)
    before_mlp = _scale_of(second, dtype) if hasattr(layer.mlp, "gate_proj") else None
    return _Layer(
        index=attention.layer_idx,
        qkv=_product([attention.q_proj, attention.k_proj, attention.v_proj], dtype, before_attention),
        heads=heads,
        scale=torch.cat([(own[0] * attention.scaling).expand(heads[0], -1), own[1].expand(heads[1], -1)]),
        head_eps=_eps(attention.q_norm) if normed else None,
        out=_product([attention.o_proj], dtype),
        mlp=_mlp(layer.mlp, dtype, before_mlp),
        norms=(
            _Norm(_eps(first), first.weight if before_attention is None else None, dtype),
            _Norm(_eps(second), second.weight if before_mlp is None else None, dtype),
        ),
    )


def _scale_of(norm: Any, dtype: torch.dtype) -> Tensor | None:
    """Return a norm's scale, for the product that reads it; None in a dtype that would round the weights once more."""
    scale: Tensor = norm.weight
    return scale if dtype == torch.float32 else None


def _mlp(mlp: Any, dtype: torch.dtype, scale: Tensor | None) -> _Dense | _Other:
    if hasattr(mlp, "gate_proj"):
        gate_up = _product([mlp.gate_proj, mlp.up_proj], dtype, scale)
        return _Dense(gate_up, _product([mlp.down_proj], dtype), mlp.act_fn)
    if FastExperts.fit(mlp) and dtype == torch.float32:
        return _Other(FastExperts(mlp), dtype)
    return _Other(lambda x: mlp(x.unsqueeze(0)).squeeze(0), dtype)


def _product(linears: list[Any], dtype: torch.dtype, scale: Tensor | None = None) -> _Product:
    """Concatenate linear layers of the same input, in a dtype, with ``scale`` of that input multiplied in."""
    weights = [merged_weight(linear).to(dtype) for linear in linears]
    if scale is None and len(weights) == 1:
        (weight,) = weights  # both forms below copy it
    else:
        rows = sum(len(w) for w in weights)
        weight = weights[0].new_empty(rows, weights[0].shape[1])
        for part, w in zip(weight.split([len(w) for w in weights]), weights, strict=True):
            part.copy_(w) if scale is None else torch.mul(w, scale, out=part)
    bias = None
    if any(linear.bias is not None for linear in linears):
        bias = torch.cat([_bias(linear) for linear in linears]).to(dtype)
    if weight.numel() > PACKED and can_pack():
        return _Product(torch.ops.mkldnn._reorder_linear_weight(weight, ROWS), bias)
    return _Product(weight.t().contiguous(), bias)


def can_pack() -> bool:
    """True if PyTorch has oneDNN's packed products, which are tried on x86 only."""
    return torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


def _bias(linear: Any) -> Tensor:
    bias: Tensor = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
    return bias


def _eps(norm: Any) -> Tensor:
    return norm.weight.new_full((), norm.variance_epsilon)
