"""Dtype of trained weights: float32 or wider, because neither a weight nor its optimizer's state moves in bfloat16.

A bfloat16 number has 8 significant bits. AdamW's second moment of a constant gradient stops growing at half of its
value, at a quarter in the fused kernel, and never decays: steps are 1.4 and 2.0 times too large. Of usual weights 2 %
move at all at a learning rate of 1e-6, and 16 % at 1e-5. float16 cannot hold a second moment of usual gradients.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PretrainedConfig

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.load.model_settings import ModelSettings

_NARROW = (torch.bfloat16, torch.float16)
_WHY = "rounds small updates away, and stops AdamW's second moment at a quarter of its value"
_FIX = "use trainer.precision: bf16-mixed with model.dtype: float32, or train adapters (model.lora), which are float32"


def check_dtype(settings: ModelSettings, field: str = "model.dtype", word: str | None = None) -> None:
    """Refuse settings that would train weights in bfloat16, before anything is loaded.

    Args:
        settings: of the model.
        field: setting to name.
        word: its value; None: ``settings.dtype``.

    Raises:
        UserError: all weights are trained, in bfloat16.
    """
    if settings.lora is None and settings.dtype == "bfloat16":
        raise UserError(field, f"is {word or settings.dtype!r}, but training weights in bfloat16 {_WHY}", fix=_FIX)


def check_stored_dtype(settings: ModelSettings, config: PretrainedConfig) -> None:
    """Refuse to train all weights in the dtype of a model's files, if its config says that they are narrow.

    Args:
        settings: of the model.
        config: of the model, with the overrides of the settings.

    Raises:
        UserError: ``settings.dtype`` is ``auto``, and the config names bfloat16 or float16.
    """
    dtype = str(getattr(config, "dtype", None)).removeprefix("torch.")
    if settings.dtype == "auto" and settings.lora is None and dtype in ("bfloat16", "float16"):
        problem = f"is 'auto', which leaves the weights of {settings.name_or_path} to train in {dtype}, which {_WHY}"
        raise UserError("model.dtype", problem, fix=_FIX)


def check_trained_dtype(module: nn.Module, field: str = "model.dtype", fix: str = _FIX) -> None:
    """Refuse a module with weights to train that are narrower than float32.

    Args:
        module: with the weights that an optimizer will get, sharded or not.
        field: setting to name.
        fix: what to do.

    Raises:
        UserError: there is such a weight.
    """
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype in _NARROW:
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise UserError(field, f"leaves {name} to train in {dtype}, which {_WHY}", fix=fix)
