"""Which families' pictures this package knows, and which ones it refuses by name."""

from __future__ import annotations

from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from gspo_lightning.errors import UserError

__all__ = ["FAMILIES", "SAID", "reads_pictures", "refuse_unknown"]

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""Kinds of models (``model_type`` of their configs), all with positions in three dimensions."""
SAID = "Qwen2.5-VL, Qwen3-VL, Qwen3-VL-MoE"

_SPLIT = "cuts a picture into parts with text between them"
_BLOCKS = "lets the tokens of a picture see those behind them, which a causal layout cannot"
REASONS = {"smolvlm": _SPLIT, "idefics3": _SPLIT, "gemma3": _BLOCKS, "paligemma": _BLOCKS}
"""Kind of model -> why its pictures are refused, where that is known."""


def reads_pictures(config: Any) -> bool:
    """Whether a config is of a family whose pictures are known."""
    return getattr(config, "model_type", None) in FAMILIES


def refuse_unknown(config: Any, field: str = "model.name_or_path") -> None:
    """Refuse a vision-language family that cannot be trained exactly here.

    Raises:
        UserError: it is one, by name.
    """
    kind = getattr(config, "model_type", "")
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and kind not in FAMILIES:
        reason = f"which {REASONS[kind]}" if kind in REASONS else "which is not known here"
        raise UserError(
            field,
            f"is of the vision-language family {kind!r}, {reason}",
            fix=f"use a model of one of these: {SAID}",
        )
