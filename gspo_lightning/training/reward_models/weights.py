"""Reward models in checkpoints: their contents, and rebuilding the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.adapters.lora import BASE_NORM, check_base, frozen_norm, merge_adapters
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.resume.resumption import REWARD_MODEL
from gspo_lightning.training.reward_models.model import load_reward_model

_PREFIX = "model."


class _Module(Protocol):
    settings: ModelSettings
    base_norm: float
    provenance: dict[str, Any]
    model: Any
    data: Any


def trained_only(checkpoint: dict[str, Any], module: _Module) -> None:
    """Record the model in a checkpoint; of a model with adapters, leave out frozen weights."""
    checkpoint[REWARD_MODEL] = {"model": dataclasses.asdict(module.settings), "text": module.data.reads}
    checkpoint["gspo_run"] = module.provenance
    if module.settings.lora is None:
        return
    checkpoint[BASE_NORM] = module.base_norm
    model: nn.Module = module.model
    trained = {f"{_PREFIX}{name}" for name, parameter in model.named_parameters() if parameter.requires_grad}
    state = checkpoint["state_dict"]
    checkpoint["state_dict"] = {name: weight for name, weight in state.items() if name in trained}


def check_frozen(checkpoint: dict[str, Any], module: _Module) -> None:
    """Refuse a checkpoint of something else, and adapters that belong to other frozen weights.

    Raises:
        UserError: it was not written by ``gspo fit-reward``, or with another model.
    """
    if REWARD_MODEL not in checkpoint:
        problem = "is no checkpoint of a reward model"
        raise UserError("ckpt_path", problem, fix="give one of gspo fit-reward; gspo fit resumes those of gspo fit")
    if (module.settings.lora is None) != (checkpoint[REWARD_MODEL]["model"]["lora"] is None):
        problem = "must be as in the run that wrote the checkpoint: one of them trains adapters, the other all weights"
        raise UserError("model.lora", problem, fix="resume with the model.lora of that run")
    if module.settings.lora is not None:
        check_base(checkpoint, module.base_norm)


def reward_model_of(settings: ModelSettings, state: Mapping[str, Any], norm: float | None = None) -> PreTrainedModel:
    """Return the model of a run, on the CPU, with adapters merged into its weights.

    Args:
        settings: as in the run.
        state: ``{"model.<name>": tensor}``, whole; with adapters only the trained ones.
        norm: of the frozen weights that the adapters belong to; None leaves it unchecked.

    Raises:
        UserError: the model cannot be loaded, or the weights do not belong to it.
    """
    model = load_reward_model(dataclasses.replace(settings, gradient_checkpointing=False))
    weights = {name.removeprefix(_PREFIX): weight for name, weight in state.items() if name.startswith(_PREFIX)}
    if settings.lora is not None and norm is not None:
        check_base({BASE_NORM: norm}, frozen_norm(model.base_model))
    keys = model.load_state_dict(weights, strict=settings.lora is None)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    differing = sorted(trained & set(keys.missing_keys)) + sorted(keys.unexpected_keys)
    if differing:
        problem = f"is not that of the run that wrote these weights: they differ in {differing[0]}"
        raise UserError("model.name_or_path", problem, fix="use the model and the model.lora of that run")
    merge_adapters(model)
    for module in model.modules():
        if type(module).__name__ == "_Float32Linear":
            module.__class__ = torch.nn.Linear
    return model.eval()
