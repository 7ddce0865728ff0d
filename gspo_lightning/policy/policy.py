"""The policy: a transformers causal language model, its tokenizer, and the one forward behind every log-probability."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from gspo_lightning.errors import UserError, did_you_mean, first_line
from gspo_lightning.policy.attention import PackedLayout, attention_plan, with_plan
from gspo_lightning.policy.hub import check_reachable
from gspo_lightning.policy.loading import LOADING
from gspo_lightning.policy.logprobs import token_logprobs
from gspo_lightning.policy.lora import LoRA, add_adapters, has_adapters, merge_adapters
from gspo_lightning.policy.routing import Routing, TokenPlaces, checkpoint_contexts, gather_routes, routed
from gspo_lightning.policy.silence import Silenced, hold, silence
from gspo_lightning.policy.tiny import TINY_CONTEXT, TINY_MODELS, build_tiny_model, character_tokenizer
from gspo_lightning.types import Decoding, MicroBatch

__all__ = [
    "DType",
    "Layout",
    "ModelSettings",
    "Policy",
    "context_length",
    "load_config",
    "load_policy",
    "load_tokenizer",
]

DType = Literal["float32", "bfloat16", "auto"]
Layout = Literal["auto", "packed", "padded"]

KEPT_LOGITS = 192 << 20
"""Bytes of float32 logits of a micro-batch up to which they are computed once; beyond, again in the backward pass."""
CHUNK_LOGITS = {True: 32 << 20, False: 256 << 20}
"""Bytes of float32 logits that exist at a time where they are computed twice, on a CPU and elsewhere. Every piece reads
and writes the gradient of the head's weight, which costs a GPU more beside its arithmetic (reckoned, not measured)."""


@dataclass(frozen=True)
class ModelSettings:
    """How a model is loaded."""

    name_or_path: str = "tiny-qwen3"
    """Hub id, local folder in transformers format, or a built-in tiny model (``tiny-qwen3``, ``tiny-qwen3-moe``)."""
    dtype: DType = "float32"
    """Of the weights. float32 masters with ``trainer.precision: bf16-mixed`` is the rule; bf16 weights lose updates."""
    attn_implementation: str | None = None
    """``sdpa``, ``eager``, ``flash_attention_2`` ...; None lets transformers choose."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more compute."""
    trust_remote_code: bool = False
    """Run Python code that a model repository ships. Only for repositories you have read."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    config_overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the model's config to change before it is built (for example ``rope_theta``)."""
    seed: int = 0
    """Of freshly initialised weights (built-in tiny models)."""
    layout: Layout = "auto"
    """How rows go through the model: ``packed`` (a prompt once for all its responses, no padding), ``padded``, or
    ``auto``: packed where a check on the model itself shows the same log-probabilities."""
    experts_implementation: str | None = None
    """How the experts of a mixture are multiplied: ``grouped_mm``, ``batched_mm`` or ``eager``; None takes
    ``grouped_mm`` where the model can (1.6 times faster than ``eager`` on a CPU)."""
    lora: LoRA | None = None
    """Train low-rank adapters and keep the weights as they are; None trains all weights."""

    @classmethod
    def of_file(cls, written: Mapping[str, Any], trust_remote_code: bool) -> ModelSettings:
        """What a checkpoint or a dump says of its model; whether code is trusted is not for a file to say.

        Args:
            written: all fields, as ``dataclasses.asdict`` gives them.
            trust_remote_code: what the command line says.
        """
        return cls(**{**written, "trust_remote_code": trust_remote_code})

    def __post_init__(self) -> None:
        lora: Any = self.lora
        if isinstance(lora, dict):  # from a checkpoint
            object.__setattr__(self, "lora", LoRA(**lora))


class Policy(nn.Module):
    """A causal language model whose ``forward`` gives log-probabilities of responses.

    Everything that needs a log-probability, training, old policy and reference alike, goes through :meth:`forward`:
    one code path, one layout, so that an unchanged policy has ratios of exactly 1.

    Args:
        model: what is random in it is switched off (:mod:`gspo_lightning.policy.silence`).
        tokenizer: the model's.
        silenced: what was done for that already, where the model is a copy of a policy's; None: nothing yet.

    Raises:
        UserError: the model cannot be run, or is not deterministic in training whatever is done.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, silenced: Silenced | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.packed = False
        """Whether :meth:`forward` shares prompts and leaves padding out; set by :mod:`gspo_lightning.policy.checks`."""
        self.decoding = Decoding()
        """How tokens are decoded, as measured; its copies share it."""
        self.gathering: Any = None
        """How the whole weights are put together where they are sharded (:mod:`gspo_lightning.strategies.sharding`)."""
        self.routing: Routing | None = None
        """The routers of a mixture of experts, where they are measured or replayed."""
        self.silenced = silence(self.model) if silenced is None else silenced

    def train(self, mode: bool = True) -> Policy:
        """As of any module; modules that are held stay in eval mode."""
        super().train(mode)
        if self.silenced.held:
            hold(self.model)
        return self

    @property
    def device(self) -> torch.device:
        """Where it computes; the weights are there, too, unless they are sharded and offloaded."""
        if self.gathering is not None:
            return torch.device(self.gathering.device)
        return next(self.model.parameters()).device

    @property
    def backbone(self) -> nn.Module:
        """The model without its output head."""
        base: nn.Module = self.model.base_model
        if base is self.model:  # Llama 4's and Mllama's text classes name a part of the whole model that they lack
            base = getattr(self.model, "model", base)
        return base

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., D], with the family's scaling and soft-capping."""
        return self.finish_logits(self.model.get_output_embeddings()(hidden))

    def finish_logits(self, logits: Tensor) -> Tensor:
        """The scaling and soft-capping of :meth:`head`, for products with the head's weights."""
        config = self.model.config.get_text_config()
        if (scale := getattr(config, "logit_scale", None)) is not None:  # Cohere
            logits = logits * scale
        if (scale := getattr(config, "logits_scaling", None)) is not None:  # Granite
            logits = logits / scale
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:  # Gemma 2, 3
            logits = torch.tanh(logits / cap) * cap
        return logits

    def forward(self, batch: MicroBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the response tokens.

        Args:
            batch: N rows, left-aligned.
            temperature: the one responses were sampled at, > 0.

        Returns:
            ``logprobs`` and ``entropies``, both [N, T], float32 or wider, nats; 0 beyond a row's response.
        """
        return self._packed(batch, temperature) if self.packed else self._padded(batch, temperature)

    def _packed(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Every distinct token once: a prompt serves all its responses."""
        layout = PackedLayout.of(batch)
        places = TokenPlaces(layout.sources, layout.positions, layout.predicts, layout.rows, layout.steps)
        plan = attention_plan(layout.segments, layout.crossings, layout.longest, batch.input_ids.device)
        with (
            with_plan(self.backbone, plan) as options,
            routed(places, self._prescribed(batch, places)),
        ):
            hidden: Tensor = self.backbone(
                input_ids=layout.token_ids.unsqueeze(0), position_ids=layout.positions.unsqueeze(0), **options
            ).last_hidden_state
        chosen, entropy = self._token_logprobs(hidden.squeeze(0)[layout.predicts], layout.targets, temperature)
        return _scatter(batch, layout.rows, layout.steps, chosen, entropy)

    def _padded(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Rows side by side; the reference that the packed path is compared with, and the path of last resort."""
        prompt, response = batch.prompt_lengths, batch.response_lengths
        width = batch.input_ids.shape[1] - 1  # the last token of a row predicts nothing: it is never forwarded
        positions = torch.arange(width, device=prompt.device).expand(batch.input_ids.shape[0], -1)
        mask = positions < (batch.lengths - 1).unsqueeze(1)
        steps = torch.arange(batch.response_mask.shape[1], device=prompt.device)
        rows, offsets = torch.nonzero(steps.unsqueeze(0) < response.unsqueeze(1), as_tuple=True)
        before = prompt[rows] + offsets - 1  # the position that predicts response token ``offset``
        every = torch.arange(batch.input_ids.shape[0] * width, device=prompt.device)
        places = TokenPlaces(every // width, every % width, rows * width + before, rows, offsets)
        with routed(places, self._prescribed(batch, places)):
            hidden: Tensor = self.backbone(
                input_ids=batch.input_ids[:, :-1],
                attention_mask=mask.long(),
                position_ids=positions.masked_fill(~mask, 0),
                use_cache=False,
            ).last_hidden_state
        chosen, entropy = self._token_logprobs(hidden[rows, before], batch.input_ids[rows, before + 1], temperature)
        return _scatter(batch, rows, offsets, chosen, entropy)

    def _prescribed(self, batch: MicroBatch, places: TokenPlaces) -> list[Tensor] | None:
        """The experts that each forwarded token has to go to, under Routing Replay."""
        if self.routing is None or self.routing.replay == "off" or batch.routes is None:
            return None
        return gather_routes(batch.routes, places)

    def _token_logprobs(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """In one piece where logits are small enough to be kept for the backward pass, else in small pieces."""
        row = 4 * int(self.model.config.get_text_config().vocab_size)
        rows = max(1, len(hidden))
        chunk = rows if rows * row <= KEPT_LOGITS else max(16, CHUNK_LOGITS[hidden.device.type == "cpu"] // row)
        return token_logprobs(self._head(), hidden, targets, temperature=temperature, chunk=chunk)

    def _head(self) -> Callable[[Tensor], Tensor]:
        """The output embedding itself where :meth:`head` does nothing else and its weight is whole."""
        empty = torch.empty(0)
        if self.gathering is None and self.finish_logits(empty) is empty:
            return self.model.get_output_embeddings()
        return self.head

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every token that ends a response: the union of the tokenizer's and the generation config's."""
        ids: set[int] = set()
        generation = getattr(self.model, "generation_config", None)
        sources = (self.tokenizer.eos_token_id, getattr(generation, "eos_token_id", None))
        for value in sources:
            ids.update([value] if isinstance(value, int) else (value or []))
        return tuple(sorted(ids))

    def frozen_copy(self, memo: dict[int, Any] | None = None) -> Policy:
        """The same weights and layout once more, without gradients; weights that are never trained are shared.

        Args:
            memo: as in ``copy.deepcopy``: what stands in the place of an object of this identity.
        """
        shared = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        twin = Policy(copy.deepcopy(self.model, shared | (memo or {})), self.tokenizer, self.silenced)
        twin.decoding = self.decoding
        twin.packed, twin.routing = self.packed, self.routing  # the hooks of its routers were copied with the model
        return twin.requires_grad_(False)

    def merged_model(self) -> PreTrainedModel:
        """The model; where it has adapters, a copy with them merged into the weights."""
        if not has_adapters(self.model):
            return self.model
        model = copy.deepcopy(self.model)
        merge_adapters(model)
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Model, tokenizer and generation config in transformers format; adapters are merged into the weights.

        Whichever rank is asked writes: transformers, left alone, writes nothing on others than the first, silently.
        """
        model = self.merged_model()
        model.should_save_on_this_rank = lambda wanted: wanted
        try:
            with self.silenced.undone(model.config):
                model.save_pretrained(folder)
        finally:
            del model.should_save_on_this_rank
        self.tokenizer.save_pretrained(folder)
        if getattr(self.model, "generation_config", None) is not None:
            self.model.generation_config.save_pretrained(folder)


def _scatter(batch: MicroBatch, rows: Tensor, steps: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
    """Values of response tokens to their places in [N, T]; 0 elsewhere."""
    empty = torch.zeros(batch.response_mask.shape, dtype=values[0].dtype, device=values[0].device)
    logprobs, entropies = (empty.index_put((rows, steps), v) for v in values)
    return logprobs, entropies


def load_tokenizer(settings: ModelSettings) -> PreTrainedTokenizerBase:
    """The tokenizer of a model.

    Raises:
        UserError: not found, or without an end-of-sequence token (responses could never end).
    """
    if settings.name_or_path in TINY_MODELS:
        return character_tokenizer()
    check_name(settings.name_or_path)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            settings.name_or_path, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise _not_loadable(settings.name_or_path, error) from error
    if tokenizer.eos_token_id is None:
        raise UserError(
            "model.name_or_path",
            f"the tokenizer of {settings.name_or_path} has no end-of-sequence token, so no response could end",
            fix="set eos_token in its tokenizer_config.json",
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # only ever used as a filler; masks come from lengths
    return tokenizer


def check_name(name: str) -> None:
    """Refuse a model name that can be neither a folder, a hub id nor a built-in, before anything is loaded."""
    if name in TINY_MODELS or Path(name).is_dir():
        return
    if name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise UserError("model.name_or_path", f"the folder {name!r} does not exist")
    if name.startswith("tiny-"):
        raise UserError("model.name_or_path", f"{name!r} is no built-in model; {did_you_mean(name, TINY_MODELS)}")
    check_reachable("model.name_or_path", name, "model")


def context_length(settings: ModelSettings) -> int | None:
    """Positions a model was built for, from its config alone; None if the config does not say.

    Raises:
        UserError: the config cannot be loaded.
    """
    if settings.name_or_path in TINY_MODELS:
        return int(settings.config_overrides.get("max_position_embeddings", TINY_CONTEXT))
    limit = getattr(load_config(settings).get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit else None


def load_policy(settings: ModelSettings) -> Policy:
    """Model and tokenizer, in the requested dtype, dropout off.

    Raises:
        UserError: the model cannot be found or loaded.
    """
    tokenizer = load_tokenizer(settings)
    with LOADING:
        model = _load(settings)
    if settings.experts_implementation is not None:
        _choose_experts(model, settings.experts_implementation)
    if settings.gradient_checkpointing:
        how = {"use_reentrant": False, "context_fn": checkpoint_contexts}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    if settings.lora is not None:
        add_adapters(model, settings.lora, settings.seed)
    return Policy(model, tokenizer)


def _load(settings: ModelSettings) -> PreTrainedModel:
    if settings.name_or_path not in TINY_MODELS:
        return _load_pretrained(settings)
    dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    model = build_tiny_model(settings.name_or_path, settings.seed, dtype, settings.config_overrides)
    if settings.attn_implementation:
        model.set_attn_implementation(settings.attn_implementation)
    return model


def _choose_experts(model: PreTrainedModel, word: str) -> None:
    try:
        model.set_experts_implementation(word)
    except (ValueError, ImportError) as error:
        raise UserError(
            "model.experts_implementation",
            f"is {word!r}, which {type(model).__name__} does not take",
            fix="use grouped_mm, batched_mm or eager with a mixture of experts, or leave it out",
        ) from error


def load_config(settings: ModelSettings) -> PretrainedConfig:
    """The config of a model from the hub or a folder, with the overrides.

    Raises:
        UserError: it cannot be loaded, or an override is no field of it.
    """
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            settings.name_or_path, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    except Exception as error:  # of whatever kind: a family's own config checks itself
        raise _not_loadable(settings.name_or_path, error) from error
    for key, value in settings.config_overrides.items():
        if not hasattr(config, key):
            raise UserError("model.config_overrides", f"{key!r} is not a field of {type(config).__name__}")
        setattr(config, key, value)
    return config


def _load_pretrained(settings: ModelSettings) -> PreTrainedModel:
    config = load_config(settings)
    try:
        model: PreTrainedModel
        model, info = AutoModelForCausalLM.from_pretrained(
            settings.name_or_path,
            config=config,
            output_loading_info=True,
            revision=settings.revision,
            trust_remote_code=settings.trust_remote_code,
            dtype=settings.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype),
            **({"attn_implementation": settings.attn_implementation} if settings.attn_implementation else {}),
        )
    except Exception as error:  # shapes that do not fit, a package that is missing, a family that cannot be built
        raise _not_loadable(settings.name_or_path, error) from error
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            "model.name_or_path",
            f"{settings.name_or_path!r} lacks {len(missing)} weights (such as {missing[0]}): they would be random",
            fix="use a complete checkpoint of a causal language model",
        )
    return model


def _not_loadable(name: str, error: Exception) -> UserError:
    fix = f"give a hub id you can reach, a folder in transformers format, or one of {', '.join(TINY_MODELS)}"
    if "trust_remote_code" in str(error):
        fix = "read that code; then set model.trust_remote_code: true (gspo export and replay: --trust_remote_code)"
    return UserError("model.name_or_path", f"{name!r} cannot be loaded: {first_line(error)}", fix=fix)
