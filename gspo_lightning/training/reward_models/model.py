"""Reward model: a transformers sequence classifier with one output, and a float32 head that starts at zero."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import initial_weights
from gspo_lightning.policy.adapters.lora import add_adapters
from gspo_lightning.policy.load.classifier import output_layers
from gspo_lightning.policy.load.gguf import loadable_name
from gspo_lightning.policy.load.loading import load_config
from gspo_lightning.policy.load.loading_lock import LOADING
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.load.soft_caps import attention_options
from gspo_lightning.policy.tiny import TINY_MODELS, tiny_config
from gspo_lightning.policy.vision.families import tower_of
from gspo_lightning.resume.reading import fault_of


class _Float32Linear(nn.Linear):
    """Linear layer that computes in float32 or wider despite autocast: bfloat16 rounds a reward of 5 by up to 0.02."""

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            dtype = torch.promote_types(hidden.dtype, torch.float32)
            bias = None if self.bias is None else self.bias.to(dtype)
            return F.linear(hidden.to(dtype), self.weight.to(dtype), bias)


def load_reward_model(settings: ModelSettings) -> PreTrainedModel:
    """Load a reward model in train mode; the same weights for the same seed.

    Training also needs :func:`gspo_lightning.policy.disable_dropout.disable_dropout`, and for rows of different lengths
    :func:`gspo_lightning.policy.load.classifier.set_pad`.

    A head that the model does not have yet starts at zero, so all rewards are 0 before the first update. With adapters,
    the head is trained, too, and everything else is frozen; a vision tower is always frozen.

    Raises:
        UserError: the model cannot be found or loaded, or lacks other weights than those of its head.
    """
    with LOADING:
        model = _tiny(settings) if settings.name_or_path in TINY_MODELS else _pretrained(settings)
    if settings.attn_implementation and settings.name_or_path in TINY_MODELS:
        model.set_attn_implementation(settings.attn_implementation)
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    for tower in tower_of(model).values():  # the model reads texts only: other ranks would wait for these gradients
        tower.requires_grad_(False)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if settings.lora is not None:
        from_causal = settings.lora.start_from is not None  # whose names begin at the whole model
        add_adapters(model if from_causal else model.base_model, settings.lora, settings.seed)
        head_of(model).requires_grad_(True).float()  # trained, so in float32 whatever the other weights are
    head_of(model).__class__ = _Float32Linear
    return model.train()


def head_of(model: PreTrainedModel) -> nn.Linear:
    """Return the linear layer whose only output is the reward.

    Raises:
        UserError: there is none, or more than one.
    """
    heads = output_layers(model, 1)
    if len(heads) != 1:
        raise UserError(
            "model.name_or_path",
            f"{type(model).__name__} has {len(heads)} linear heads with one output, but a reward model needs one",
            fix="use a model whose family has a sequence classifier (Qwen, Llama, Gemma, BERT ...)",
        )
    return heads[0]


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the layers that are sharded separately.

    Raises:
        UserError: the model has none that transformers marks.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        problem = f"cannot shard {type(model).__name__}: it has no layers that transformers marks"
        raise UserError("trainer.strategy", problem, fix="use strategy: ddp")
    return layers


def _tiny(settings: ModelSettings) -> PreTrainedModel:
    config = _one_output(tiny_config(settings.name_or_path, settings.overrides))
    try:
        model: PreTrainedModel
        with initial_weights(settings.seed) as device:
            model = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:  # a family without a classifier
        raise _not_loadable(settings.name_or_path, error) from error
    _start_at_zero(model)
    return model.to(device, torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype))


def _not_loadable(name: str, error: Exception) -> UserError:
    return UserError(
        "model.name_or_path",
        f"{name!r} cannot be loaded as a reward model: {fault_of(error)}",
        fix="give a model whose family has a sequence classifier, or a reward model with one output",
    )


def _pretrained(settings: ModelSettings) -> PreTrainedModel:
    config = _one_output(load_config(settings))
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # a head that is missing is not worth a table; others are refused below
    try:
        model: PreTrainedModel
        model, report = AutoModelForSequenceClassification.from_pretrained(
            loadable_name(settings.name_or_path),
            config=config,
            output_loading_info=True,
            revision=settings.revision,
            trust_remote_code=settings.trust_remote_code,
            dtype=settings.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype),
            **attention_options(config, settings.attn_implementation),
        )
    except Exception as error:  # shapes that do not fit, a package that is missing, a family without a classifier
        raise _not_loadable(settings.name_or_path, error) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    head_prefixes = tuple(f"{name}." for name, _ in _outside(model))
    missing = sorted(report["missing_keys"])
    missing_in_backbone = [name for name in missing if not name.startswith(head_prefixes)]
    if missing_in_backbone:
        raise UserError(
            "model.name_or_path",
            f"{settings.name_or_path!r} lacks {len(missing_in_backbone)} weights (such as {missing_in_backbone[0]}): "
            "they would be random",
            fix="use a complete checkpoint",
        )
    if missing:
        _start_at_zero(model)
    return model


def _one_output(config: PretrainedConfig) -> PretrainedConfig:
    config.num_labels = 1
    config.problem_type = None
    return config


def _start_at_zero(model: PreTrainedModel) -> None:
    head = head_of(model)
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def _outside(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules outside the backbone, with their names."""
    backbone = set(model.base_model.modules())
    for name, module in model.named_modules():
        if name and module not in backbone:
            yield name, module
