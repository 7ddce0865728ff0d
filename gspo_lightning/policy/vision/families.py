"""Which families' pictures this package knows, and which ones it refuses by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from gspo_lightning.errors import UserError

__all__ = ["FAMILIES", "SAID", "Family", "reads_pictures", "refuse_unknown", "tower_of"]


@dataclass(frozen=True, slots=True)
class Family:
    """Where a model without its head (``Qwen3VLModel`` ...) has its parts.

    ``text`` is the attribute of the text model; ``tower`` are those that make features of pictures.
    """

    text: str
    tower: tuple[str, ...]


_QWEN = Family("language_model", ("visual",))
_TILES = Family("text_model", ("vision_model", "connector"))
FAMILIES = {
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "qwen3_vl_moe": _QWEN,
    "smolvlm": _TILES,
    "idefics3": _TILES,
    "gemma3": Family("language_model", ("vision_tower", "multi_modal_projector")),
}
"""Kinds of models (``model_type`` of their configs)."""
SAID = "Qwen2.5-VL, Qwen3-VL, Qwen3-VL-MoE, SmolVLM, Idefics3, Gemma 3"


def reads_pictures(config: Any) -> bool:
    """Whether a config is of a family whose pictures are known."""
    return getattr(config, "model_type", None) in FAMILIES


def tower_of(model: Any) -> dict[str, nn.Module]:
    """The parts of a model that make features of pictures, by their names; empty where it reads text only."""
    base = getattr(model, "base_model", model)
    family = FAMILIES.get(getattr(getattr(model, "config", None), "model_type", ""))
    parts = [getattr(base, name) for name in family.tower if hasattr(base, name)] if family else []
    return {name: module for name, module in model.named_modules() if any(module is part for part in parts)}


def refuse_unknown(config: Any, field: str = "model.name_or_path") -> None:
    """Refuse a vision-language family that cannot be trained exactly here.

    Raises:
        UserError: it is one, by name.
    """
    kind = getattr(config, "model_type", "")
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and kind not in FAMILIES:
        raise UserError(
            field,
            f"is of the vision-language family {kind!r}, which is not known here",
            fix=f"use a model of one of these: {SAID}",
        )
