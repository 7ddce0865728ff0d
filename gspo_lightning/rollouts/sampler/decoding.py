"""Decoders: forward passes during sampling, one token per row and step."""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from typing_extensions import override

from gspo_lightning.core.errors import first_line
from gspo_lightning.core.pictures import blocks_of
from gspo_lightning.policy.attention import GroupCache, PagedCache, attention_dtype, with_plan
from gspo_lightning.policy.attention.kv_cache_size import kv_cache_size
from gspo_lightning.policy.kernels.rounding import FLOOR, OPERATIONS, distribution_gap, nudged
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.packing.rows import common_prefix
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.admission_queue import Prefill
from gspo_lightning.rollouts.sampler.fast_decoder import DirectDecoderLayers, FastDecoderLayers, fast_decoder_layers
from gspo_lightning.rollouts.sampler.memory import Growth
from gspo_lightning.rollouts.sampler.preallocated_cache import cache_argument, only_states, preallocated_cache
from gspo_lightning.rollouts.sampler.step_graphs import StepGraphs

log = logging.getLogger(__name__)

TF32 = 2.0**-10
"""Unit in the last place of products in float32 that CUDA rounds to TF32."""

AS_EXACT = 2.0
"""Largest error of fast layers beside float64, in multiples of that of the model's own modules."""


class Decoder(ABC):
    """Decoder of a batch of rows, in the order in which their contexts were added."""

    may_grow: bool
    """True if contexts may join while rows are being decoded."""
    growth: Growth = "pages"
    """How rows get places."""
    free_bytes = 0
    """Bytes of keys and values that are held already and belong to no row."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @abstractmethod
    def add(self, prefill: Prefill) -> Tensor:
        """Read contexts; return the next-token logits of their rows, [sum(rows), V]."""

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (int64, no duplicates, on the host), in this order."""

    @abstractmethod
    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Feed one token per row, [R] at positions [R]; return the logits [R, V] of the next ones."""


DecodeBy = Literal["auto", "model"]


def decoder_for(policy: Policy, by: DecodeBy = "auto") -> Decoder:
    """Return the fast decoder if the model's attention is supported (``Policy.packed``) and no comparison ruled it out.

    Args:
        policy: the weights, which must not change while the decoder is used.
        by: ``model`` sends every token through the model's own modules; ``auto`` bypasses them if the result is known
            to be the same.
    """
    shared = policy.batch_invariant or (policy.packed and policy.decoding.way in (None, "shared"))
    return SharedDecoder(policy, by) if shared else PaddedDecoder(policy)


class SharedDecoder(Decoder):
    """Decoder that stores the keys and values of a prompt once for all its rows; only the cache is padded."""

    may_grow = True

    def __init__(self, policy: Policy, by: DecodeBy = "auto") -> None:
        super().__init__(policy)
        dtype = attention_dtype(compute_dtype(policy), device=policy.device)
        token = kv_cache_size(policy.model.config, dtype.itemsize).token
        if policy.batch_invariant:  # decoded by the very operations of training
            by = "model"
        self.cache = PagedCache(policy.device) if policy.batch_invariant else GroupCache(policy.device, token)
        with self._inference():
            self.fast_layers = _fast_layers(policy) if by == "auto" else None
        self.graphs = None
        if by == "auto" and isinstance(self.cache, GroupCache):
            self.graphs = StepGraphs.of(policy, self.cache, partial(rounding, policy))
        if self.graphs is not None:
            self.growth = "graph pages"

    @override
    def add(self, prefill: Prefill) -> Tensor:
        with self._inference():
            return self._add(prefill)

    def _add(self, prefill: Prefill) -> Tensor:
        contexts = prefill.contexts
        rows = prefill.rows
        media = prefill.media
        widths = [len(ids) for ids in contexts]
        device = self.policy.device
        prefix = common_prefix(contexts) if self.policy.shares_prefix and not any(media) else 0
        own_widths = [width - prefix for width in widths]
        parts = [contexts[0][:prefix], *(ids[prefix:] for ids in contexts)]
        packed = torch.tensor([token for ids in parts for token in ids]).to(device, non_blocking=True)
        steps = [torch.arange(prefix), *(torch.arange(prefix, width) for width in widths)]
        positions = torch.cat(steps).to(device, non_blocking=True)
        image_processor = self.policy.image_processor
        mutual = any(media) and image_processor is not None and image_processor.mutual
        starts = itertools.accumulate(widths[:-1], initial=0)
        self.cache.enter(widths, rows, blocks_of(media, list(starts)) if mutual else (), prefix)
        last = (prefix + torch.tensor(own_widths).cumsum(0) - 1).to(device, non_blocking=True)
        inputs: dict[str, Any] | None = None
        if any(media):
            vision_inputs = self.policy.vision_inputs(media, max(widths))
            owner = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths)).to(device, non_blocking=True)
            places = vision_inputs.places[owner, positions][None]
            table = vision_inputs.positions[:, owner, positions][:, None]
            inputs = vision_inputs.inputs(self.policy.model.get_input_embeddings(), packed[None], places, table)
        return for_rows(self.policy.head(self._forward(packed, positions, inputs)[last]), rows)

    @override
    def keep(self, rows: Tensor) -> None:
        with self._inference():
            self.cache.keep(rows)

    @override
    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        with self._inference():
            logits = self.graphs.step(self._logits, tokens, positions) if self.graphs else None
            if logits is None:
                self.cache.write()
                logits = self._logits(tokens, positions)
            self.cache.advance()
            return logits

    def _logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        if self.fast_layers is None:
            return self.policy.head(self._forward(tokens, positions))
        assert isinstance(self.cache, GroupCache)
        return self.fast_layers(tokens, positions, self.cache)

    def _inference(self) -> AbstractContextManager[Any]:
        """Return inference mode, which saves a tenth of a small model's step; ``no_grad`` for sharded weights."""
        return torch.no_grad() if self.policy.in_lockstep else torch.inference_mode()

    def _forward(self, tokens: Tensor, positions: Tensor, inputs: dict[str, Any] | None = None) -> Tensor:
        if inputs is None:
            inputs = {"input_ids": tokens.unsqueeze(0), "position_ids": positions.unsqueeze(0)}
        with with_plan(self.policy.backbone, self.cache) as options:
            out = self.policy.backbone(**inputs, **options)
        hidden: Tensor = out.last_hidden_state.squeeze(0)
        return hidden


def _fast_layers(policy: Policy) -> FastDecoderLayers | DirectDecoderLayers | None:
    """Return the policy's fast decode step, compared once a dtype with the policy's own modules, or None."""
    dtype = compute_dtype(policy)
    compared = policy.decoding.fast_decoder
    if compared.get(dtype) is False:
        return None
    try:
        fast_layers = fast_decoder_layers(policy)
        if fast_layers is not None and dtype not in compared:
            _check(policy, fast_layers)
            compared[dtype] = True
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # known by name only
        log.warning("decoding goes through the modules of %s: %s", type(policy.model).__name__, first_line(error))
        compared[dtype] = False
        return None
    return fast_layers


def _check(policy: Policy, fast_layers: FastDecoderLayers | DirectDecoderLayers) -> None:
    """Compare two steps of three rows with those of the policy's own modules.

    What is more than rounding by the yardstick may still be rounding, of a processor whose products are unlike others.
    So float64 decides between the two on a CPU, where only small models have fast layers.
    """
    decoder = SharedDecoder(policy, "model")
    decoder.fast_layers = fast_layers
    fast = two_steps(policy, decoder)
    plain = two_steps(policy, SharedDecoder(policy, "model"))
    difference = gap_of_steps(fast, plain)
    if difference <= rounding(policy):
        return
    if isinstance(fast_layers, FastDecoderLayers):
        exact = _in_float64(policy)
        reference = two_steps(exact, SharedDecoder(exact, "model"))
        if gap_of_steps(fast, reference) <= AS_EXACT * gap_of_steps(plain, reference):
            return
    raise ValueError(f"without them log-probabilities are off by {difference:.2g} nats")


def _in_float64(policy: Policy) -> Policy:
    """Return a copy of a policy in float64; nothing is shared."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach().double(), False) for p in policy.model.parameters()}
    memo |= {id(b): b.double() if b.is_floating_point() else b.clone() for b in policy.model.buffers()}
    twin = policy.frozen_copy(memo).train(policy.training)
    if getattr(twin.model.config.get_text_config(), "_experts_implementation", None) not in (None, "eager"):
        twin.model.set_experts_implementation("eager")  # grouped products have no float64
    return twin


def two_steps(policy: Policy, decoder: Decoder) -> list[Tensor]:
    """Return log-probabilities [3, V] after each of two steps of three rows, with different tokens."""
    vocabulary = policy.model.config.get_text_config().vocab_size
    contexts = [[t % vocabulary for t in ids] for ids in ([3, 11, 5, 7, 2], [13, 4, 6])]
    decoder.add(Prefill(contexts, [2, 1], room=[4, 4, 4]))
    positions = torch.tensor([5, 5, 3]).to(policy.device)
    logprobs: list[Tensor] = []
    for step, ids in enumerate(([8, 9, 10], [12, 8, 3])):
        tokens = (torch.tensor(ids) % vocabulary).to(policy.device)
        logprobs.append(decoder.step(tokens, positions + step).log_softmax(-1))
    return logprobs


def gap_of_steps(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the largest mean difference (nats) of two lists of log-probabilities; infinite if one is NaN."""
    return max(distribution_gap(a, b) for a, b in zip(one, other, strict=True))


def rounding(policy: Policy) -> float:
    """Return the largest mean difference of log-probabilities (nats) of two decoders that rounding alone explains.

    Measured on the model itself, in the dtype of its products, by a move of its embeddings by one unit in the last
    place (:mod:`gspo_lightning.policy.kernels.rounding`); once per run and dtype.
    """
    dtype = compute_dtype(policy)
    measured = policy.decoding.rounding
    if dtype not in measured:
        plain = two_steps(policy, SharedDecoder(policy, "model"))
        with nudged(policy.model, unit_in_last_place(policy)):
            moved = two_steps(policy, SharedDecoder(policy, "model"))
        measured[dtype] = FLOOR.get(dtype, 1e-5) + OPERATIONS * gap_of_steps(plain, moved)
    return measured[dtype]


def unit_in_last_place(policy: Policy) -> float:
    """Return the unit in the last place of a policy's products, relative to 1."""
    rounds = policy.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return max(torch.finfo(compute_dtype(policy)).eps, TF32 if rounds else 0.0)


class PaddedDecoder(Decoder):
    """Decoder with transformers' own cache, for every family; prompts are left-padded and copied for every row."""

    may_grow = False

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._argument = cache_argument(policy.backbone)

    def add(self, prefill: Prefill) -> Tensor:
        """Add rows, which replace all earlier ones."""
        contexts = prefill.contexts
        rows = prefill.rows
        media = prefill.media
        device = self.policy.device
        width = max(len(context) for context in contexts)
        ids = torch.zeros(len(contexts), width, dtype=torch.int64)
        mask = torch.zeros(len(contexts), width, dtype=torch.bool)
        for i, context in enumerate(contexts):
            ids[i, width - len(context) :] = torch.tensor(context)
            mask[i, width - len(context) :] = True
        ids = ids.to(device, non_blocking=True)
        mask = mask.to(device, non_blocking=True)
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)  # from the mask: padding never shifts a position
        self.cache = self.new_cache()
        inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions}
        attended: Any = mask.long()
        if any(media):
            vision_inputs = self.policy.vision_inputs(media, width, [width - len(context) for context in contexts])
            inputs = vision_inputs.inputs(
                self.policy.model.get_input_embeddings(), ids, vision_inputs.places, vision_inputs.positions
            )
            attended = vision_inputs.attention(
                self.policy.backbone.config, inputs, attended, vision_inputs.places, self.cache
            )
        hidden = self._forward(inputs, attended)
        self._select(for_rows(torch.arange(len(contexts), device=device), rows))
        self.mask = for_rows(mask, rows)
        return for_rows(self.policy.head(hidden), rows)

    def new_cache(self) -> DynamicCache:
        """Return an empty cache with the model's kinds of layers."""
        return preallocated_cache(self.policy.model.config)

    @override
    def keep(self, rows: Tensor) -> None:
        there = rows.to(self.policy.device, non_blocking=True)
        self._select(there)
        self.mask = self.mask[there]

    def _select(self, rows: Tensor) -> None:
        """Select these rows of the cache: keys and values, convolution windows, recurrent states."""
        self.cache.reorder_cache(rows)

    @override
    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], dim=1)
        mask = None if only_states(self.cache) else self.mask.long()
        return self.policy.head(
            self._forward({"input_ids": tokens.unsqueeze(1), "position_ids": positions.unsqueeze(1)}, mask)
        )

    def _forward(self, inputs: dict[str, Any], mask: Any) -> Tensor:
        cache = {self._argument: self.cache}
        out = self.policy.backbone(**inputs, attention_mask=mask, use_cache=True, **cache)
        hidden: Tensor = out.last_hidden_state[:, -1]
        return hidden


def for_rows(x: Tensor, rows: Sequence[int]) -> Tensor:
    """Repeat entries of [P, ...] to [sum(rows), ...], each once for each of its rows."""
    order = torch.arange(len(rows)).repeat_interleave(torch.tensor(rows))  # on the host: on the device it would sync
    return x.index_select(0, order.to(x.device, non_blocking=True))
