"""Qwen3 and Qwen3-MoE in float64, written out: no transformers, whose norms and routers compute in float32.

With :class:`Rounded` every product is rounded to a shorter format, forward and backward: what that does to a step is
what rounding may do to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["Round", "Routing", "hidden_states", "logprobs", "rounding"]

Round = Callable[[Tensor], Tensor]
"""Rounds a tensor and its gradient, or does nothing."""


@dataclass
class Routing:
    """Routers of one forward pass, by layer."""

    experts: list[Tensor] = field(default_factory=list)
    """[M, k] int64: those that each token goes to, the one with the lowest score last."""
    scores: list[Tensor] = field(default_factory=list)
    """[M, E]: logarithms of all experts' scores."""


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        ctx.dtype = dtype
        return values.to(dtype).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient.to(ctx.dtype).to(gradient.dtype), None


def rounding(dtype: torch.dtype) -> Round:
    """What rounds to ``dtype``, forward and backward; float64 rounds nothing."""
    if dtype == torch.float64:
        return lambda values: values
    return lambda values: _Rounded.apply(values, dtype)  # type: ignore[no-untyped-call, no-any-return]


def hidden_states(
    weights: Mapping[str, Tensor],
    ids: Tensor,
    config: Any,
    r: Round,
    routes: list[Tensor] | None = None,
    swaps: Collection[tuple[int, int]] = (),
) -> tuple[Tensor, Routing]:
    """Normalised hidden states [N, T, D] of right-padded rows, and what routers did with their N * T tokens.

    Args:
        weights: by the names of transformers; a layer with adapters has ``lora_A`` and ``lora_B`` beside its weight.
        ids: [N, T] int64; a row's padding is behind it, where a causal model does not look.
        config: sizes.
        r: rounds every product.
        routes: experts to take, by layer; None: those with the highest scores.
        swaps: (layer, token) whose last expert gives way to the one with the next score.
    """
    product = _Products(weights, r)
    # a response may hold the padding token: as in torch's embedding, reading it teaches its row nothing
    table = weights["model.embed_tokens.weight"]
    hidden = torch.nn.functional.embedding(ids, table, padding_idx=config.pad_token_id)
    routing = Routing()
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        normed = _normed(hidden, weights[at + "input_layernorm.weight"], config)
        hidden = hidden + _attention(product, at + "self_attn.", normed, config, r)
        normed = _normed(hidden, weights[at + "post_attention_layernorm.weight"], config)
        if at + "mlp.gate.weight" in weights:
            values = normed.flatten(0, 1)
            scores = product(at + "mlp.gate", values).softmax(-1)
            swapped = [token for swapped_layer, token in swaps if swapped_layer == layer]
            experts = _chosen(scores, config.num_experts_per_tok, swapped) if routes is None else routes[layer]
            routing.experts.append(experts)
            routing.scores.append(scores.detach().log())
            mixed = _mixture(product, at + "mlp.", values, scores, experts)
            hidden = hidden + mixed.view_as(hidden)
        else:
            gated = torch.nn.functional.silu(product(at + "mlp.gate_proj", normed))
            hidden = hidden + product(at + "mlp.down_proj", gated * product(at + "mlp.up_proj", normed))
    return _normed(hidden, weights["model.norm.weight"], config), routing


def logprobs(weights: Mapping[str, Tensor], hidden: Tensor, ids: Tensor, temperature: float, r: Round) -> Tensor:
    """Log-probability of every token of a row but the first, [N, T - 1]."""
    name = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
    logits = r(r(hidden[:, :-1]) @ r(weights[name]).T)
    return (logits / temperature).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


class _Products:
    """Linear layers by name, with their adapters."""

    def __init__(self, weights: Mapping[str, Tensor], r: Round) -> None:
        self.weights = weights
        self.r = r

    def __call__(self, name: str, values: Tensor) -> Tensor:
        r = self.r
        result = r(r(values) @ r(self.weights[f"{name}.weight"]).T)
        if f"{name}.lora_A" in self.weights:
            inner = r(r(values) @ r(self.weights[f"{name}.lora_A"]).T)
            result = r(result + self.weights["lora.scale"] * r(inner @ r(self.weights[f"{name}.lora_B"]).T))
        return result


def _normed(values: Tensor, weight: Tensor, config: Any) -> Tensor:
    return values * (values.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * weight


def _attention(product: _Products, at: str, values: Tensor, config: Any, r: Round) -> Tensor:
    rows, tokens, _ = values.shape
    heads = config.num_attention_heads
    groups = config.num_key_value_heads
    width = config.head_dim

    def split(name: str, count: int) -> Tensor:
        return product(at + name, values).view(rows, tokens, count, width)

    query = _turned(_normed(split("q_proj", heads), product.weights[at + "q_norm.weight"], config), config)
    key = _turned(_normed(split("k_proj", groups), product.weights[at + "k_norm.weight"], config), config)
    value = split("v_proj", groups)
    key, value = (part.repeat_interleave(heads // groups, dim=2) for part in (key, value))
    scores = torch.einsum("nqhd,nkhd->nhqk", r(query), r(key)) / math.sqrt(width)
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(later, -math.inf).softmax(-1)
    mixed = r(torch.einsum("nhqk,nkhd->nqhd", r(shares), r(value)))
    return product(at + "o_proj", mixed.reshape(rows, tokens, heads * width))


def _turned(values: Tensor, config: Any) -> Tensor:
    """Rotary positions, each half of a head against the other."""
    half = config.head_dim // 2
    rates = config.rope_parameters["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (torch.arange(values.shape[1], dtype=torch.float64)[:, None] * rates)[:, None, :]
    first = values[..., :half]
    second = values[..., half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )


def _chosen(scores: Tensor, count: int, swapped: list[int]) -> Tensor:
    best = scores.topk(count + 1, dim=-1).indices
    experts = best[:, :count].clone()
    experts[swapped, -1] = best[swapped, -1]
    return experts


def _mixture(product: _Products, at: str, values: Tensor, scores: Tensor, experts: Tensor) -> Tensor:
    """Sum of the chosen experts' outputs by their scores, which are made to add up to 1."""
    r = product.r
    shares = scores.gather(-1, experts)
    shares = shares / shares.sum(-1, keepdim=True)
    total = torch.zeros_like(values)
    for number in range(scores.shape[1]):
        token, place = (experts == number).nonzero(as_tuple=True)
        if not len(token):
            continue
        inner = r(r(values[token]) @ r(product.weights[at + "experts.gate_up_proj"][number]).T)
        gate, up = inner.chunk(2, dim=-1)
        outer = r(r(torch.nn.functional.silu(gate) * up) @ r(product.weights[at + "experts.down_proj"][number]).T)
        total = total.index_add(0, token, outer * shares[token, place, None])
    return total
