"""Which families' pictures this package knows, and which ones it refuses by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from gspo_lightning.errors import UserError

__all__ = ["FAMILIES", "SAID", "Family", "reads_pictures", "refuse_unknown", "tower_of", "unread_of"]


@dataclass(frozen=True, slots=True)
class Family:
    """Where a model without its head (``Qwen3VLModel`` ...) has its parts.

    ``text`` is the attribute of the text model; ``tower`` are those that make features of pictures, ``unread`` names
    what may be in them and no feature goes through.
    """

    text: str
    tower: tuple[str, ...]
    unread: tuple[str, ...] = ()


_QWEN = Family("language_model", ("visual",))
_TILES = Family("text_model", ("vision_model", "connector"))
FAMILIES = {
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "qwen3_vl_moe": _QWEN,
    "smolvlm": _TILES,
    "idefics3": _TILES,
    "gemma3": Family("language_model", ("vision_tower", "multi_modal_projector"), ("vision_tower.head",)),
}
"""Kinds of models (``model_type`` of their configs)."""
SAID = "Qwen2.5-VL, Qwen3-VL, Qwen3-VL-MoE, SmolVLM, Idefics3, Gemma 3"


def reads_pictures(config: Any) -> bool:
    """Whether a config is of a family whose pictures are known."""
    return getattr(config, "model_type", None) in FAMILIES


def tower_of(model: Any) -> dict[str, nn.Module]:
    """The parts of a model that make features of pictures, by their names; empty where it reads text only."""
    family = _family(model)
    return _named(model, family.tower) if family else {}


def unread_of(model: Any) -> dict[str, nn.Module]:
    """The parts of its tower that no feature goes through, by their names: they never have a gradient."""
    family = _family(model)
    return _named(model, family.unread) if family else {}


def _family(model: Any) -> Family | None:
    return FAMILIES.get(getattr(getattr(model, "config", None), "model_type", ""))


def _named(model: Any, paths: Sequence[str]) -> dict[str, nn.Module]:
    """Modules at these paths of a model without its head, by their names in the whole model."""
    inside = dict(getattr(model, "base_model", model).named_modules())
    parts = [inside[path] for path in paths if path in inside]
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
