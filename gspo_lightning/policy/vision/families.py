"""Vision-language families: the supported ones, and a refusal of the others."""

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
    """Paths of a family's parts in a model without its head (``Qwen3VLModel`` ...).

    ``text`` is the attribute of the text model; ``tower`` are the parts that make features of pictures; ``unread`` are
    parts of the tower that no feature goes through.
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
"""Supported families by the ``model_type`` of their configs."""
SAID = "Qwen2.5-VL, Qwen3-VL, Qwen3-VL-MoE, SmolVLM, Idefics3, Gemma 3"


def reads_pictures(config: Any) -> bool:
    """True if the config is of a supported vision-language family."""
    return getattr(config, "model_type", None) in FAMILIES


def tower_of(model: Any) -> dict[str, nn.Module]:
    """Return the modules that make features of pictures, by name; empty if the model reads text only."""
    family = _family(model)
    return _named(model, family.tower) if family else {}


def unread_of(model: Any) -> dict[str, nn.Module]:
    """Return the modules of the tower that no feature goes through, by name: they never have a gradient."""
    family = _family(model)
    return _named(model, family.unread) if family else {}


def _family(model: Any) -> Family | None:
    return FAMILIES.get(getattr(getattr(model, "config", None), "model_type", ""))


def _named(model: Any, paths: Sequence[str]) -> dict[str, nn.Module]:
    """Return modules at these paths of a model without its head, by their names in the whole model."""
    inside = dict(getattr(model, "base_model", model).named_modules())
    parts = [inside[path] for path in paths if path in inside]
    return {name: module for name, module in model.named_modules() if any(module is part for part in parts)}


def refuse_unknown(config: Any, field: str = "model.name_or_path") -> None:
    """Refuse a vision-language family that cannot be trained exactly here.

    Raises:
        UserError: the config is of such a family.
    """
    kind = getattr(config, "model_type", "")
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and kind not in FAMILIES:
        raise UserError(
            field,
            f"is of the vision-language family {kind!r}, which is not known here",
            fix=f"use a model of one of these: {SAID}",
        )
