"""Policy: a transformers causal language model, its tokenizer, and the one forward behind every log-probability."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.pictures import Media
from gspo_lightning.core.temp_files import share
from gspo_lightning.core.types import MicroBatch, WeightsOn
from gspo_lightning.policy.adapters.freezing import trains_vision
from gspo_lightning.policy.adapters.lora import has_adapters, merge_adapters, remove_adapters
from gspo_lightning.policy.attention import PackedLayout, PagedPlan, Plan, attention_plan, with_plan
from gspo_lightning.policy.decoding import Decoding
from gspo_lightning.policy.disable_dropout import DisabledDropout, disable_dropout, hold
from gspo_lightning.policy.kernels import grouped_experts as grouped_experts
from gspo_lightning.policy.kernels.lean import use_cpu_kernels
from gspo_lightning.policy.logprobs import head_chunk, token_logprobs
from gspo_lightning.policy.no_gradient import by_gradient
from gspo_lightning.policy.older_readers import add_older_names
from gspo_lightning.policy.parallel.context_parallel import ContextGroup
from gspo_lightning.policy.routing import Routing, TokenPlaces, gather_routes, routed
from gspo_lightning.policy.states import Distribution, States, scattered, vocabulary_kl
from gspo_lightning.policy.unsaid import SuppressingHead, padding_of, placeholders_of, suppressed
from gspo_lightning.policy.vision.families import FAMILIES, SAID, reads_pictures
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.policy.vision.vision_inputs import VisionInputs

FINISHED = ("logit_scale", "logits_scaling", "final_logit_softcapping")
"""Fields of a config by which :meth:`Policy.finish_logits` changes the products with the head."""
FILE_SIZE = "5GB"
"""Largest file of exported weights, and what an export copies in memory at a time."""


class Policy(nn.Module):
    """Causal language model whose ``forward`` returns log-probabilities of responses.

    Training, old policy and reference all compute log-probabilities by :meth:`forward`: one code path and one layout,
    so that an unchanged policy has ratios of exactly 1.

    Args:
        model: its randomness in training is switched off (:mod:`gspo_lightning.policy.disable_dropout`).
        tokenizer: the model's.
        disabled_dropout: record of that for a copy of a policy's model; None: not done yet.
        unsaid: tokens that are never sampled, beside placeholders of pictures; None: rows of the head without a token.

    Raises:
        UserError: the model cannot be run, or stays random in training.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        disabled_dropout: DisabledDropout | None = None,
        unsaid: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.packed = False
        """True if :meth:`forward` shares prompts, pads nothing (:mod:`gspo_lightning.policy.model_checks.checks`)."""
        self.padded_because = "model.layout: padded"
        """Reason for padding, unless ``packed``."""
        self.batch_invariant = False
        """True if log-probabilities are those of any batch (:mod:`gspo_lightning.policy.numerics.batch_invariant`)."""
        self.decoding = Decoding()
        """Measured decoding choices, shared with copies of the policy."""
        self.gathering: Any = None
        """Gathers sharded weights (:mod:`gspo_lightning.policy.strategies.gathering`); None if they are whole."""
        self.stream: Any = None
        """Gathers weights one by one for a policy that has none; else None."""
        self.context: ContextGroup | None = None
        """Ranks that compute the same rows (context parallelism), set when the weights are sharded, else None."""
        self.on_release: Callable[[], None] | None = None
        """Frees weights that were gathered from shards for this policy; None: the weights are its own."""
        self.cast_from: Callable[[], Policy] | None = None
        """Returns the policy whose weights this one has in autocast's dtype; None: they are no casts."""
        self.weights_on = WeightsOn.EVERY_RANK
        """Ranks that hold the weights; others have them on the meta device until a strategy has sharded them."""
        self.routing: Routing | None = None
        """Routers of a mixture of experts, if they are measured, balanced or replayed."""
        self.disabled_dropout = disable_dropout(self.model) if disabled_dropout is None else disabled_dropout
        use_cpu_kernels(self.model)
        self.image_processor = image_processor_of(tokenizer) if reads_pictures(model.config) else None
        """Picture processor, if the model reads pictures."""
        if unsaid is None and tokenizer is not None:
            unsaid = padding_of(tokenizer, int(model.config.get_text_config().vocab_size), self.eos_token_ids)
        self.unsaid = tuple(sorted({*(unsaid or ()), *placeholders_of(self.image_processor)}))
        """Tokens that are never sampled, ascending: their logits are suppressed."""
        self.unsaid_on: dict[torch.device, Tensor] = {}
        """Those tokens on devices, copied once; clear it where :attr:`unsaid` changes."""

    def train(self, mode: bool = True) -> Policy:
        """Set train or eval mode like any module; held modules stay in eval mode."""
        super().train(mode)
        if self.disabled_dropout.held:
            hold(self.model)
        return self

    @property
    def device(self) -> torch.device:
        """Compute device; also that of the weights, unless they are sharded and offloaded."""
        owner = self.gathering if self.gathering is not None else self.stream
        return next(self.model.parameters()).device if owner is None else torch.device(owner.device)

    @property
    def in_lockstep(self) -> bool:
        """True if every forward pass waits for the other ranks, so that none may fail or be repeated alone."""
        return self.gathering is not None and bool(self.gathering.lockstep)

    @property
    def shares_prefix(self) -> bool:
        """True if :meth:`forward` computes first tokens that all prompts of a micro-batch share once.

        Not for measured routers: their losses and routes count a token once for each of its rows.
        """
        return self.packed and self.routing is None

    @property
    def backbone(self) -> nn.Module:
        """Text model without its output head."""
        base: nn.Module = self.model.base_model
        if (family := FAMILIES.get(self.model.config.model_type)) is not None:
            return base.get_submodule(family.text)
        if base is self.model:  # Llama 4's and Mllama's text classes name a part of the whole model that they lack
            base = getattr(self.model, "model", base)
        return base

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., D], with the family's scaling and soft-capping."""
        return self.finish_logits(self.model.get_output_embeddings()(hidden))

    def finish_logits(self, logits: Tensor) -> Tensor:
        """Apply the scaling and soft-capping of :meth:`head` to products with the head's weights."""
        config = self.model.config.get_text_config()
        if (factor := getattr(config, "logit_scale", None)) is not None:  # Cohere
            logits = logits * factor
        if (divisor := getattr(config, "logits_scaling", None)) is not None:  # Granite
            logits = logits / divisor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:  # Gemma 2, 3
            logits = torch.tanh(logits / cap) * cap
        return self.sayable(logits)

    def sayable(self, logits: Tensor) -> Tensor:
        """Return logits [..., V] with the tokens that are never said suppressed; in place without gradients."""
        return suppressed(logits, self._suppressed(logits.device)) if self.unsaid else logits

    def _suppressed(self, device: torch.device) -> Tensor:
        if device not in self.unsaid_on:  # made once: a recorded step may not copy from the host
            with torch.inference_mode(False):  # a backward pass needs it, too
                self.unsaid_on[device] = torch.tensor(self.unsaid, device=device)
        return self.unsaid_on[device]

    def forward(
        self, batch: MicroBatch, temperature: float = 1.0, against: Distribution | None = None
    ) -> tuple[Tensor, ...]:
        """Return log-probabilities and entropies of the response tokens.

        Args:
            batch: N rows, left-aligned.
            temperature: sampling temperature of the responses, > 0.
            against: prediction of another policy with the same vocabulary for the same rows (:meth:`distribution`).

        Returns:
            ``logprobs`` and ``entropies``, both [N, T], float32 or wider, nats; 0 beyond a row's response. With
            ``against`` also the KL(this policy || the other) over the vocabulary at each token, [N, T], nats.
        """
        if batch.no_gradient is not None and against is None:
            return by_gradient(lambda part: self.forward(part, temperature), batch)
        states = self.states(batch)
        chunk = self._chunk(len(states.hidden))
        per_token: tuple[Tensor, ...] = token_logprobs(
            self._head(), states.hidden, states.targets, temperature=temperature, chunk=chunk
        )
        if self.context is not None:
            per_token = states.collect(torch.stack(per_token, dim=1)).unbind(1)
        if against is not None:
            other_hidden = against.hidden[states.order().argsort()]  # from the order of rows and steps to this layout
            heads = self._head(), against.head
            per_token += (vocabulary_kl(heads, (states.hidden, other_hidden), temperature, chunk),)
        return tuple(scattered(states, values, batch.response_mask.shape) for values in per_token)

    @torch.no_grad()
    def distribution(self, batch: MicroBatch) -> Distribution:
        """Return the prediction for every response token, before the product with the head, for comparisons."""
        states = self.states(batch)
        return Distribution(states.hidden[states.order()], self._head())

    def states(self, batch: MicroBatch) -> States:
        """Return the hidden states that predict the response tokens of a micro-batch."""
        if self.context is not None:
            return self.context.states(self.backbone, batch, shares_prefix=self.shares_prefix)
        return self._packed(batch) if self.packed else self._padded(batch)

    def _packed(self, batch: MicroBatch) -> States:
        """Compute states with every distinct token once: a prompt serves all its responses."""
        layout = PackedLayout.of(batch, batch.common_prefix if self.shares_prefix else 0)
        places = TokenPlaces(layout.sources, layout.positions, layout.predicts, layout.rows, layout.steps)
        blocks = layout.pictures if self.image_processor is not None and self.image_processor.mutual else ()
        device = batch.input_ids.device
        plan: Plan
        if self.batch_invariant:
            plan = PagedPlan(layout.segments, layout.crossings, layout.longest, layout.prefix)
        else:
            plan = attention_plan(layout.segments, layout.crossings, layout.longest, device, blocks, layout.prefix)
        ids = layout.token_ids.unsqueeze(0)
        positions = layout.positions.unsqueeze(0)
        inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions}
        vision_inputs = self._vision_inputs(batch)
        if vision_inputs is not None:  # its tables are those of padded rows: take the packed tokens' entries
            picture_places = vision_inputs.places[layout.sources, layout.positions].unsqueeze(0)
            position_ids = vision_inputs.positions[:, layout.sources, layout.positions].unsqueeze(1)
            inputs = vision_inputs.inputs(self.model.get_input_embeddings(), ids, picture_places, position_ids)
        with (
            with_plan(self.backbone, plan) as options,
            routed(places, self._prescribed(batch, places)),
        ):
            hidden: Tensor = self.backbone(**inputs, **options).last_hidden_state
        return States(hidden.squeeze(0)[layout.predicts], layout.targets, layout.rows, layout.steps)

    def _padded(self, batch: MicroBatch) -> States:
        """Compute states of padded rows side by side; the reference for the packed path, and the fallback."""
        prompt = batch.prompt_lengths
        response = batch.response_lengths
        width = batch.input_ids.shape[1] - 1  # the last token of a row predicts nothing: it is never forwarded
        positions = torch.arange(width, device=prompt.device).expand(batch.input_ids.shape[0], -1)
        mask = positions < (batch.lengths - 1).unsqueeze(1)
        steps = torch.arange(batch.response_mask.shape[1], device=prompt.device)
        rows, offsets = torch.nonzero(steps.unsqueeze(0) < response.unsqueeze(1), as_tuple=True)
        predicts = prompt[rows] + offsets - 1  # the position that predicts response token ``offset``
        all_places = torch.arange(batch.input_ids.shape[0] * width, device=prompt.device)
        places = TokenPlaces(all_places // width, all_places % width, rows * width + predicts, rows, offsets)
        ids = batch.input_ids[:, :-1]
        inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions.masked_fill(~mask, 0)}
        attention_mask: Any = mask.long()
        vision_inputs = self._vision_inputs(batch)
        if vision_inputs is not None:
            picture_places = vision_inputs.places[:, :-1]
            position_ids = vision_inputs.positions[..., :-1].masked_fill(~mask, 0)
            inputs = vision_inputs.inputs(self.model.get_input_embeddings(), ids, picture_places, position_ids)
            attention_mask = vision_inputs.attention(self.backbone.config, inputs, attention_mask, picture_places)
        if self.batch_invariant:
            hidden = self._side_by_side(ids, inputs["position_ids"])
        else:
            with routed(places, self._prescribed(batch, places)):
                out = self.backbone(**inputs, attention_mask=attention_mask, use_cache=False)
            hidden = out.last_hidden_state
        return States(hidden[rows, predicts], batch.input_ids[rows, predicts + 1], rows, offsets)

    def _side_by_side(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return states [N, S, D] of padded rows, attended by pages."""
        count, width = ids.shape
        plan = PagedPlan([(row * width, width) for row in range(count)], [], width)
        with with_plan(self.backbone, plan) as options:
            out = self.backbone(input_ids=ids.reshape(1, -1), position_ids=positions.reshape(1, -1), **options)
        hidden: Tensor = out.last_hidden_state
        return hidden.view(count, width, -1)

    def _vision_inputs(self, batch: MicroBatch) -> VisionInputs | None:
        """Return the picture inputs of a micro-batch, each picture once; None if it has none.

        Ranks step together: if another one may gather the tower, or wait for its gradient, a blank picture is computed.
        """
        rows = batch.media or ()
        if not any(rows):
            if self.image_processor is None:
                return None
            if self.gathering is None and not (torch.is_grad_enabled() and trains_vision(self.model)):
                return None
        return self.vision_inputs(rows or ((),) * len(batch.input_ids), batch.input_ids.shape[1])

    def vision_inputs(self, rows: Sequence[Media], width: int, offsets: Sequence[int] = ()) -> VisionInputs:
        """Return the pictures of some rows as the text model reads them; see :meth:`VisionInputs.at`.

        Raises:
            UserError: this model reads text only.
        """
        if self.image_processor is None:
            raise UserError(
                "model.name_or_path",
                f"{type(self.model).__name__} reads text only, and a prompt holds a picture",
                fix=f"use prompts without pictures, or a model that reads them: {SAID}",
            )
        return VisionInputs.at(self.model.base_model, self.image_processor, rows, width, offsets)

    def _prescribed(self, batch: MicroBatch, places: TokenPlaces) -> list[Tensor] | None:
        """Return the experts prescribed for each forwarded token under Routing Replay, else None."""
        if self.routing is None or self.routing.replay == "off" or batch.routes is None:
            return None
        return gather_routes(batch.routes, places)

    def _chunk(self, count: int) -> int:
        """Return the number of hidden states, out of ``count``, whose logits exist at a time: all if they are small."""
        return head_chunk(count, int(self.model.config.get_text_config().vocab_size), cpu=self.device.type == "cpu")

    def _head(self) -> Callable[[Tensor], Tensor]:
        """Return the output embedding itself if :meth:`head` does nothing else; FSDP has gathered its weight by now."""
        config = self.model.config.get_text_config()
        head = self.model.get_output_embeddings()
        if any(getattr(config, name, None) is not None for name in FINISHED):
            return self.head
        return SuppressingHead(head, self._suppressed(self.device)) if self.unsaid else head

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a response: the union of the tokenizer's and the generation config's."""
        ids: set[int] = set()
        generation = getattr(self.model, "generation_config", None)
        sources = self.tokenizer.eos_token_id, getattr(generation, "eos_token_id", None)
        for value in sources:
            ids.update([value] if isinstance(value, int) else (value or []))
        return tuple(sorted(ids))

    def release(self) -> None:
        """Free weights that were gathered from shards for this policy; any other policy keeps its own."""
        if self.on_release is not None:
            self.on_release()

    def frozen_copy(self, memo: dict[int, Any] | None = None) -> Policy:
        """Copy the policy without gradients, in the same layout; weights that are never trained are shared.

        Args:
            memo: as in ``copy.deepcopy``: identity of an object -> its replacement.
        """
        shared = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        model = copy.deepcopy(self.model, shared | (memo or {}))
        twin = Policy(model, self.tokenizer, self.disabled_dropout, self.unsaid)
        twin.decoding = self.decoding
        twin.weights_on = self.weights_on
        twin.batch_invariant = self.batch_invariant
        twin.packed = self.packed
        twin.padded_because = self.padded_because
        twin.routing = self.routing  # the hooks of its routers were copied with the model
        return twin.requires_grad_(False)

    def merged_model(self) -> PreTrainedModel:
        """Return the model; if it has adapters, a copy with them merged into the weights."""
        if not has_adapters(self.model):
            return self.model
        model = copy.deepcopy(self.model)
        merge_adapters(model)
        return model

    def base_model(self) -> PreTrainedModel:
        """Return the model; if it has adapters, a copy without them."""
        if not has_adapters(self.model):
            return self.model
        model = copy.deepcopy(self.model)
        remove_adapters(model)
        return model

    def save_pretrained(
        self, folder: str | Path, dtype: torch.dtype | None = None, *, adapters: bool = True,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Save model, tokenizer and generation config in transformers format; adapters are merged into the weights.

        Any rank can write: transformers alone silently writes nothing on ranks other than the first.

        Args:
            folder: is created.
            dtype: of floating-point weights in the files; None keeps each one's own.
            adapters: False leaves them out.
            weights: what to write, by the names in files; None converts the model's own.
        """
        model = self.merged_model() if adapters else self.base_model()
        model.should_save_on_this_rank = lambda wanted: wanted
        options: dict[str, Any] = {"max_shard_size": FILE_SIZE}
        if weights is not None:
            options |= {"state_dict": dict(weights), "save_original_format": False}
        elif dtype not in (None, model.dtype):
            options["state_dict"] = _cast(model.state_dict(), dtype)
        try:
            with self.disabled_dropout.undone(model.config):
                model.save_pretrained(folder, **options)
        finally:
            del model.should_save_on_this_rank
        share(Path(folder), Path(folder) / "config.json")
        self.tokenizer.save_pretrained(folder)
        if self.image_processor is not None:
            self.image_processor.save(Path(folder))
        if getattr(self.model, "generation_config", None) is not None:
            self.model.generation_config.save_pretrained(folder)
        add_older_names(Path(folder))


def _cast(state: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Cast floating-point tensors to a dtype; tied tensors stay tied."""
    cast: dict[int, Tensor] = {}  # by the memory of the original, which tied tensors share
    for tensor in state.values():
        cast.setdefault(tensor.data_ptr(), tensor.to(dtype) if tensor.is_floating_point() else tensor)
    return {name: cast[tensor.data_ptr()] for name, tensor in state.items()}
