"""The weights of a decode step, copied once in the compute dtype: fused, with adapters merged, refilled in place.

On an accelerator a step of few rows is bounded by its launches. Products that read the same input are one, and a step
reads these copies at the same addresses for the whole run, which is what CUDA graphs need. Queries are ordered so that
a row's queries, key and value are what the attention kernel takes (:mod:`gspo_lightning.policy.attention.spans`): head
``h`` of a model, the ``h % n``-th of key-value head ``h // n``, is vector ``(h % n, h // n)`` of [n, K] here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import PretrainedConfig

from gspo_lightning.policy.adapters.lora import is_plain_linear, merged_weight
from gspo_lightning.policy.attention import windows
from gspo_lightning.policy.attention.span_cache import SpanCache
from gspo_lightning.policy.kernels.thread_state import without_autocast
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.fast_decoder.layers import linears, passed_over
from gspo_lightning.rollouts.sampler.fast_decoder.pieces import Pieces

HOST = "cpu"
"""Device type on which :class:`FastDecoderLayers` is faster."""
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
DENSE = {f"{family}DecoderLayer" for family in FAMILIES}
ROPES = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose frequencies do not depend on the length of a row."""


@dataclass(slots=True)
class _Norm:
    weight: Tensor
    eps: float


@dataclass(slots=True)
class _Product:
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(slots=True)
class _Layer:
    """One layer; ``scale`` [(n + 2) * K, d] is that of the query and key norms, if it has them."""

    index: int
    norms: tuple[_Norm, _Norm]
    qkv: _Product
    scale: Tensor | None
    scale_eps: float
    scaling: float
    out: _Product
    gate_up: _Product
    down: _Product
    act: Callable[[Tensor], Tensor]


def may_be_copied(config: PretrainedConfig) -> bool:
    """True if models of a config are copied on an accelerator, as far as a config says."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return config.model_type in {family.lower() for family in FAMILIES} and window is None


class DecoderTwin:
    """Copies of a policy's weights for decoding, and the forward pass over them.

    Args:
        policy: a supported one (:meth:`why_not`); the weights of policies of the same shape can be filled in later.
        dtype: of the products.
        pieces: what is computed between the products.
    """

    def __init__(self, policy: Policy, dtype: torch.dtype, pieces: Pieces | None = None) -> None:
        backbone: Any = policy.backbone
        attention = backbone.layers[0].self_attn
        self.dtype, self.size, self.pieces = dtype, int(attention.head_dim), pieces or Pieces()
        self.heads = attention.k_proj.out_features // self.size
        self.shared = attention.q_proj.out_features // attention.k_proj.out_features
        self._pairs: list[tuple[Tensor, Callable[[Policy], Tensor]]] = []
        """(view of a copy, its source in a policy), norms and biases included."""
        self._model = policy
        self.layers = [self._layer(i) for i in range(len(backbone.layers))]
        self.norm = self._norm(lambda p: _backbone(p).norm)
        self.head = self._product([lambda p: p.model.get_output_embeddings()], lambda x, _: x)
        self.inv_freq = self._copy(lambda p: _backbone(p).rotary_emb.inv_freq)
        self.rope_scaling = float(backbone.rotary_emb.attention_scaling)
        self.embedding: Tensor = policy.model.get_input_embeddings().weight
        del self._model
        self.fill(policy)

    @staticmethod
    def why_not(policy: Policy) -> str | None:
        """Return why a policy's weights are not copied: another device, family or layer, sharded weights, or hooks."""
        backbone: Any = policy.backbone
        layers = getattr(backbone, "layers", ())
        if policy.device.type == HOST:
            return "a CPU"
        if not len(layers) or any(type(layer).__name__ not in DENSE for layer in layers):
            return f"layers of {type(backbone).__name__}"
        if policy.in_lockstep or windows(backbone) or policy.image_processor is not None:
            return "sharded weights, a sliding window or pictures"
        if not all(is_plain_linear(module) for module in linears(policy)):
            return "layers that are not linear, or adapters that are not a product"
        heads = {
            (layer.self_attn.q_proj.out_features, layer.self_attn.k_proj.out_features, layer.self_attn.head_dim)
            for layer in layers
        }
        if len(heads) > 1 or getattr(backbone.rotary_emb, "rope_type", "default") not in ROPES:
            return "layers of different shapes, or a rotary embedding that depends on the length"
        modules = [*passed_over(policy), policy.model.get_input_embeddings(), backbone.rotary_emb]
        if any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules):
            return "a hook or a patch"
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        storages = [view.untyped_storage() for view, _ in self._pairs]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    @torch.no_grad()
    def fill(self, policy: Policy) -> None:
        """Copy the weights of a policy in place, with its adapters merged in their own precision.

        The bits depend on the weights only: a run that is resumed decodes as one that went on.
        """
        self.embedding = policy.model.get_input_embeddings().weight.detach()
        alike: tuple[list[Tensor], list[Tensor]] = [], []
        with without_autocast(policy.device):
            for view, source in self._pairs:
                found = source(policy)
                if view.is_contiguous() and found.is_contiguous() and isinstance(found, torch.nn.Parameter):
                    alike[0].append(view)
                    alike[1].append(found.detach().view_as(view))
                else:  # merged, which exists one at a time, or in another order
                    view.copy_(found.detach().view(view.shape))
            if alike[0]:
                torch._foreach_copy_(*alike)

    def hidden(self, tokens: Tensor, positions: Tensor, cache: SpanCache, *, prefill: bool) -> Tensor:
        """Return the normed states [M, D] of tokens [M] at positions [M]; see :class:`SpanCache`."""
        x = torch.nn.functional.embedding(tokens, self.embedding)
        angles = positions.unsqueeze(1) * self.inv_freq
        cos, sin = (f().mul_(self.rope_scaling).unsqueeze(1) for f in (angles.cos, angles.sin))
        cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        pieces, norms = self.pieces, [norm for layer in self.layers for norm in layer.norms] + [self.norm]
        h = pieces.normed(x, norms[0].weight, norms[0].eps, self.dtype)
        for i, layer in enumerate(self.layers):
            qkv = self._qkv(layer, h, cos, sin)
            attended = self._prefill(layer, qkv, cache) if prefill else cache.decode(layer.index, qkv, layer.scaling)
            after = layer.norms[1]
            x, h = pieces.added(x, layer.out(attended.reshape(len(x), -1)), after.weight, after.eps, self.dtype)
            after = norms[2 * i + 2]
            x, h = pieces.added(
                x, layer.down(pieces.gated(layer.gate_up(h), layer.act)), after.weight, after.eps, self.dtype
            )
        return h

    def _qkv(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return rotated queries and keys, and values, [M, n + 2, K, d]."""
        qkv, count = layer.qkv(x).view(len(x), -1, self.size), (self.shared + 1) * self.heads
        qkv = self.pieces.turned(qkv, count, cos, sin, layer.scale, layer.scale_eps)
        return qkv.view(len(x), self.shared + 2, self.heads, self.size)

    def _prefill(self, layer: _Layer, qkv: Tensor, cache: SpanCache) -> Tensor:
        query = qkv[:, :-2].transpose(1, 2).flatten(1, 2)  # the order of the model
        out = cache.attend(layer.index, query, qkv[:, -2], qkv[:, -1], layer.scaling)
        return out.view(len(qkv), self.heads, self.shared, self.size).transpose(1, 2)

    # copies ------------------------------------------------------------------------------------------------------

    def _copy(self, source: Callable[[Policy], Tensor], dtype: torch.dtype | None = None) -> Tensor:
        """Make room for a copy of a tensor."""
        like = source(self._model)
        copy = torch.empty(like.shape, dtype=dtype or like.dtype, device=like.device)
        self._pairs.append((copy, source))
        return copy

    def _norm(self, find: Callable[[Policy], Any]) -> _Norm:
        return _Norm(self._copy(lambda p: find(p).weight), find(self._model).variance_epsilon)

    def _product(self, finds: list[Callable[[Policy], Any]], order: Callable[[Tensor, int], Tensor]) -> _Product:
        """Make room for linear layers of the same input, one below the other.

        Args:
            finds: each returns a linear layer of a policy.
            order: returns the view, in the order of the model, of the copy of a weight or bias, by its number.
        """
        modules = [find(self._model) for find in finds]
        heights, first = [module.out_features for module in modules], modules[0].weight
        weight = torch.empty(sum(heights), modules[0].in_features, dtype=self.dtype, device=first.device)
        biased = any(module.bias is not None for module in modules)
        bias = torch.empty(sum(heights), dtype=self.dtype, device=first.device) if biased else None
        for i, (find, part) in enumerate(zip(finds, weight.split(heights), strict=True)):
            self._pairs.append((order(part, i), partial(_of, merged_weight, find)))
        for i, (find, part) in enumerate(zip(finds, bias.split(heights) if bias is not None else (), strict=False)):
            self._pairs.append((order(part, i), partial(_of, _bias, find)))
        return _Product(weight, bias)

    def _layer(self, i: int) -> _Layer:
        def at(path: str) -> Callable[[Policy], Any]:
            return lambda p: _backbone(p).layers[i].get_submodule(path)

        def reordered(x: Tensor, number: int) -> Tensor:
            if number:
                return x
            return x.view(self.shared, self.heads, self.size, *x.shape[1:]).transpose(0, 1)

        def back(x: Tensor, _: int) -> Tensor:
            return x if x.dim() == 1 else x.view(len(x), self.shared, self.heads, self.size).transpose(1, 2)

        attention = at("self_attn")(self._model)
        scale, eps = None, 0.0
        if hasattr(attention, "q_norm"):
            eps = attention.q_norm.variance_epsilon
            heads = self.shared * self.heads, self.heads, self.heads  # self in a closure would be freed late
            scale = self._copy(partial(_of, partial(_scales, heads), at("self_attn")))
        return _Layer(
            index=attention.layer_idx,
            norms=(self._norm(at("input_layernorm")), self._norm(at("post_attention_layernorm"))),
            qkv=self._product([at(f"self_attn.{name}_proj") for name in "qkv"], reordered),
            scale=scale, scale_eps=eps, scaling=attention.scaling,
            out=self._product([at("self_attn.o_proj")], back),
            gate_up=self._product([at("mlp.gate_proj"), at("mlp.up_proj")], lambda x, _: x),
            down=self._product([at("mlp.down_proj")], lambda x, _: x),
            act=at("mlp")(self._model).act_fn,
        )  # fmt: skip


def _backbone(policy: Policy) -> Any:
    return policy.backbone


def _of(read: Callable[[Any], Tensor], find: Callable[[Policy], Any], policy: Policy) -> Tensor:
    return read(find(policy))


def _scales(heads: tuple[int, int, int], attention: Any) -> Tensor:
    """Return the scales of the norms of so many queries, keys and values, which have none, [(n + 2) * K, d]."""
    norms = attention.q_norm.weight, attention.k_norm.weight, attention.k_norm.weight
    return torch.cat([weight.expand(n, -1) for weight, n in zip(norms, heads, strict=True)])


def _bias(module: Any) -> Tensor:
    bias: Tensor = module.weight.new_zeros(module.out_features) if module.bias is None else module.bias
    return bias
