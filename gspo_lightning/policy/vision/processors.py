"""Load a model's image processor, or build that of a tiny model."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from gspo_lightning.errors import UserError, first_line
from gspo_lightning.policy.vision.gemma import gemma_sight, tiny_gemma_processor
from gspo_lightning.policy.vision.qwen import qwen_sight, tiny_qwen_processor
from gspo_lightning.policy.vision.sight import Sight
from gspo_lightning.policy.vision.tiles import tile_sight, tiny_tile_processor

__all__ = ["load_sight", "tiny_sight"]


def load_sight(
    name: str, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, revision: str | None = None
) -> Sight:
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
    return _sight(processor, config, tokenizer)


def tiny_sight(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Sight:
    """Build the picture processor of a tiny model."""
    made = {"gemma3": tiny_gemma_processor, "smolvlm": tiny_tile_processor}
    return _sight(made.get(config.model_type, tiny_qwen_processor)(config), config, tokenizer)


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


def _sight(processor: Any, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Sight:
    if config.model_type == "gemma3":
        return gemma_sight(processor, config)
    if config.model_type in ("smolvlm", "idefics3"):
        return tile_sight(processor, config, tokenizer)
    return qwen_sight(processor, config)
