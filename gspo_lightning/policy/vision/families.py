"""Vision-language families: the supported ones and their image processors, and a refusal of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.policy.vision.gemma import gemma_image_processor, tiny_gemma_processor
from gspo_lightning.policy.vision.image_processor import ImageProcessorAdapter
from gspo_lightning.policy.vision.qwen import qwen_image_processor, tiny_qwen_processor
from gspo_lightning.policy.vision.tiles import tile_image_processor, tiny_tile_processor

SAID = "Qwen2.5-VL, Qwen3-VL, Qwen3-VL-MoE, SmolVLM, Idefics3, Gemma 3"


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


def load_image_processor(
    name: str, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, revision: str | None = None
) -> ImageProcessorAdapter:
    """Load the picture processor of a model from the hub or a folder.

    Raises:
        UserError: the model has no readable one.
    """
    try:
        processor = _processor_class(config.model_type).from_pretrained(name, revision=revision)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            "model.name_or_path",
            f"{name!r} has no image processor that can be read: {first_line(error)}",
            fix="put its preprocessor_config.json beside the weights",
        ) from error
    return _image_processor(processor, config, tokenizer)


def tiny_image_processor(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> ImageProcessorAdapter:
    """Build the picture processor of a tiny model."""
    builders = {"gemma3": tiny_gemma_processor, "smolvlm": tiny_tile_processor}
    build = builders.get(config.model_type, tiny_qwen_processor)
    return _image_processor(build(config), config, tokenizer)


def _processor_class(kind: str) -> Any:
    """Return transformers' image processor class for Pillow."""
    if kind == "gemma3":
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

        return Gemma3ImageProcessorPil
    if kind == "smolvlm":
        from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

        return SmolVLMImageProcessorPil
    if kind == "idefics3":
        from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

        return Idefics3ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil


def _image_processor(
    processor: Any, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> ImageProcessorAdapter:
    if config.model_type == "gemma3":
        return gemma_image_processor(processor, config)
    if config.model_type in ("smolvlm", "idefics3"):
        return tile_image_processor(processor, config, tokenizer)
    return qwen_image_processor(processor, config)
