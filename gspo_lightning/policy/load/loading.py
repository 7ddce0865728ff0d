"""Load tokenizer, config and weights, one thread at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.policy.adapters.freezing import freeze
from gspo_lightning.policy.adapters.lora import add_adapters
from gspo_lightning.policy.hub import TRUST, check_no_kernel, check_path, check_reachable
from gspo_lightning.policy.load.gguf import loadable_name
from gspo_lightning.policy.load.loading_lock import LOADING
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.load.soft_caps import attention_options
from gspo_lightning.policy.load.tokenizer import read_tokenizer
from gspo_lightning.policy.numerics.batch_invariant import make_batch_invariant
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import checkpoint_contexts
from gspo_lightning.policy.tiny import TINY_CONTEXT, TINY_MODELS, build_tiny_model, character_tokenizer, tiny_config
from gspo_lightning.policy.vision.families import (
    FAMILIES,
    load_image_processor,
    reads_pictures,
    refuse_unknown,
    tiny_image_processor,
)
from gspo_lightning.policy.vision.image_processor import attach_image_processor
from gspo_lightning.resume.reading import fault_of


def load_tokenizer(settings: ModelSettings) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer, with the picture processor if the model reads pictures.

    Raises:
        UserError: not found, or without an end-of-sequence token (responses could never end).
    """
    if settings.name_or_path in TINY_MODELS:
        tiny = character_tokenizer(settings.name_or_path)
        config = tiny_config(settings.name_or_path)
        attach_image_processor(tiny, tiny_image_processor(config, tiny) if reads_pictures(config) else None)
        return tiny
    _check_name(settings.name_or_path)
    name = loadable_name(settings.name_or_path)
    try:
        tokenizer = read_tokenizer(name, revision=settings.revision, trust_remote_code=settings.trust_remote_code)
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
    if _reads_pictures(settings):
        attach_image_processor(
            tokenizer, load_image_processor(name, load_config(settings), tokenizer, settings.revision)
        )
    return tokenizer


def _reads_pictures(settings: ModelSettings) -> bool:
    """True if the config's family reads pictures; False for a folder that holds only a tokenizer."""
    try:
        written, _ = PretrainedConfig.get_config_dict(loadable_name(settings.name_or_path), revision=settings.revision)
    except (OSError, ValueError):
        return False
    return written.get("model_type") in FAMILIES


def _check_name(name: str) -> None:
    """Refuse a model name that is neither a folder, a hub id nor a built-in, before anything is loaded."""
    if name in TINY_MODELS or Path(loadable_name(name)).is_dir():
        return
    check_path("model.name_or_path", name)
    if name.startswith("tiny-"):
        raise UserError("model.name_or_path", f"{name!r} is not a built-in model; {did_you_mean(name, TINY_MODELS)}")
    check_reachable("model.name_or_path", name, "model")


def context_length(settings: ModelSettings) -> int | None:
    """Return the number of positions a model was built for, from its config alone; None if the config does not say.

    Raises:
        UserError: the config cannot be loaded.
    """
    if settings.name_or_path in TINY_MODELS:
        return int(settings.overrides.get("max_position_embeddings", TINY_CONTEXT))
    limit = getattr(load_config(settings).get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit else None


def load_policy(settings: ModelSettings, *, weights: bool = True) -> Policy:
    """Load model and tokenizer in the requested dtype, with adapters and freezing; dropout is off.

    Args:
        settings: the model's name and what is done to it.
        weights: False leaves parameters and buffers on the meta device, for weights that come from elsewhere.

    Raises:
        UserError: the model cannot be found or loaded.
    """
    tokenizer = load_tokenizer(settings)
    with LOADING:
        model = _load(settings, weights)
    if settings.experts_implementation is not None:
        _choose_experts(model, settings.experts_implementation)
    if settings.gradient_checkpointing:
        how = {"use_reentrant": False, "context_fn": checkpoint_contexts}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    if settings.lora is not None:
        add_adapters(model, settings.lora, settings.seed, settings.freeze)
    freeze(model, settings.freeze)
    policy = Policy(model, tokenizer, unsaid=None if settings.mask_padding else ())
    if settings.batch_invariant:
        make_batch_invariant(policy)
    return policy


def _load(settings: ModelSettings, weights: bool) -> PreTrainedModel:
    if settings.name_or_path not in TINY_MODELS:
        return _load_pretrained(settings, weights)
    dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    model = build_tiny_model(settings.name_or_path, settings.seed, dtype, settings.overrides)
    if settings.attn_implementation:
        model.set_attn_implementation(settings.attn_implementation)
    return model if weights else model.to("meta")


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
    """Load the config of a model from the hub or a folder and apply the overrides.

    Raises:
        UserError: the config cannot be loaded, or an override is not one of its fields.
    """
    name = loadable_name(settings.name_or_path)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            name, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    except Exception as error:  # any exception: a family's config validates itself
        raise _not_loadable(settings.name_or_path, error) from error
    if settings.attn_implementation is None:
        check_no_kernel("model.name_or_path", config._attn_implementation, settings.trust_remote_code)
    for key, value in settings.overrides.items():
        if not hasattr(config, key):
            raise UserError("model.config_overrides", f"{key!r} is not a field of {type(config).__name__}")
        setattr(config, key, value)
    return config


def _load_pretrained(settings: ModelSettings, weights: bool) -> PreTrainedModel:
    config = load_config(settings)
    sees = reads_pictures(config)
    if type(config) not in AutoModelForCausalLM._model_mapping and not sees:
        refuse_unknown(config)
    options: dict[str, Any] = dict(attention_options(config, settings.attn_implementation))
    if not weights:
        options["device_map"] = "meta"
    auto_class = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    try:
        model: PreTrainedModel
        model, info = auto_class.from_pretrained(
            loadable_name(settings.name_or_path),
            config=config,
            output_loading_info=True,
            revision=settings.revision,
            trust_remote_code=settings.trust_remote_code,
            dtype=settings.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype),
            **options,
        )
    except Exception as error:  # shapes that do not fit, a package that is missing, a family that cannot be built
        raise _not_loadable(settings.name_or_path, error) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(
            "model.name_or_path",
            f"{settings.name_or_path!r} lacks {len(missing)} weights (such as {missing[0]}): they would be random",
            fix="use a complete checkpoint of a causal language model",
        )
    return model


def _not_loadable(name: str, error: Exception) -> UserError:
    fix = f"give a hub id you can reach, a folder in transformers format, or one of {', '.join(TINY_MODELS)}"
    if "trust_remote_code" in str(error):
        fix = f"read that code; {TRUST}"
    return UserError("model.name_or_path", f"{name!r} cannot be loaded: {fault_of(error)}", fix=fix)
