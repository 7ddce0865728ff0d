"""Pictures of Gemma 3: a fixed size and token count, with tokens that see each other (arXiv 2503.19786, 2.1).

Positions are those of text. Pictures are not cropped ("pan and scan").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import ModelOutput
from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.pictures import Picture
from gspo_lightning.core.transfer import to_device
from gspo_lightning.policy.vision.image_processor import Features, Shown, SquareImageProcessor, rgb, write_json


@dataclass(frozen=True)
class GemmaImageProcessor(SquareImageProcessor):
    """Processor of Gemma 3: a square is a whole picture. A chat template writes ``start`` for it."""

    mutual: ClassVar[bool] = True

    @property
    @override
    def mark(self) -> int:
        return self.start

    @property
    @override
    def unsaid(self) -> tuple[int, ...]:
        return self.image, self.start

    @property
    def side(self) -> int:
        """Pixels along a side of every picture."""
        return int(self.processor.size["height"])

    @property
    @override
    def most_pixels(self) -> int:
        return self.side**2

    def limited(self, max_pixels: int | None) -> GemmaImageProcessor:
        """Return the same processor, because the model fixes the size of pictures; refuse a lower limit."""
        if max_pixels is not None and max_pixels < self.most_pixels:
            problem = f"is {max_pixels}, and this model makes {self.side} x {self.side} pixels of every picture"
            raise UserError("data.pictures.max_pixels", problem, fix="leave it out")
        return self

    @override
    def shown(self, width: int, height: int, tokenizer: PreTrainedTokenizerBase) -> Shown:
        inside = "".join(tokenizer.convert_ids_to_tokens([self.start, self.image, self.end]))
        return Shown(f"\n\n{inside}\n\n", 1, self.tokens)

    @override
    def shrinks(self, width: int, height: int) -> bool:
        return width * height > self.most_pixels

    def pixels(self, pictures: Sequence[Picture]) -> Tensor:
        """Return pixels [I, 3, side, side] float32 of I pictures."""
        values: Tensor = self.processor(images=[rgb(p.data) for p in pictures], return_tensors="pt")["pixel_values"]
        return values

    @override
    def features(self, base: Any, pictures: Sequence[Picture]) -> Features:
        weight = next(base.vision_tower.parameters())
        (pixels,) = to_device([self.pixels(pictures).to(weight.dtype)], weight.device)
        return Features(base.get_image_features(pixels, return_dict=True).pooler_output.flatten(0, 1))

    @override
    def asked(self, pictures: Sequence[Picture], ids: Tensor) -> dict[str, Any]:
        return {"pixel_values": self.pixels(pictures), "token_type_ids": (ids == self.image).long()}

    @override
    def generated(self, pictures: Sequence[Picture], features: Sequence[Features], ids: Tensor) -> dict[str, Any]:
        embeddings = torch.stack([f.embeddings for f in features])
        return {
            "mm_encoder_outputs": {"image": ModelOutput(pooler_output=embeddings)},
            "token_type_ids": (ids == self.image).long(),
        }

    def save(self, folder: Path) -> None:
        """Write the image processor's file, and the number of tokens of a picture."""
        self._save_image_processor(folder)
        settings = {"image_seq_length": self.tokens, "processor_class": "Gemma3Processor"}
        write_json(folder / "processor_config.json", settings)


def gemma_image_processor(processor: Any, config: PretrainedConfig) -> GemmaImageProcessor:
    """Build the processor of a Gemma 3 model.

    Raises:
        UserError: it crops pictures, or makes them of another size than the model reads.
    """
    side = int(config.vision_config.image_size)
    if dict(processor.size) != {"height": side, "width": side} or processor.do_pan_and_scan:
        problem = f"the image processor has size {dict(processor.size)} and do_pan_and_scan {processor.do_pan_and_scan}"
        fix = f"set its size to {side} x {side}, as the model reads it, and do_pan_and_scan to false"
        raise UserError("model.name_or_path", problem, fix=fix)
    return GemmaImageProcessor(
        processor, config.image_token_id, config.boi_token_index, config.eoi_token_index, config.model_type,
        int(config.mm_tokens_per_image),
    )  # fmt: skip


def tiny_gemma_processor(config: PretrainedConfig) -> Any:
    """Build the image processor of a tiny model."""
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    side = int(config.vision_config.image_size)
    return Gemma3ImageProcessorPil(size={"height": side, "width": side})


def masks(config: PretrainedConfig, inputs: dict[str, Any], mask: Tensor, seen: Tensor, cache: Any = None) -> Any:
    """Return the ``attention_mask`` of the text model for rows side by side, by transformers' own rule.

    Args:
        config: of the text model.
        inputs: ``inputs_embeds`` [N, S, D] and ``position_ids`` [N, S].
        mask: [N, S] 1 at tokens, 0 at padding.
        seen: [N, S] bool, True at tokens of pictures; text stands between two pictures.
        cache: empty KV cache to be filled; None: no cache.
    """
    from transformers.models.gemma3.modeling_gemma3 import (
        create_masks_for_vision_model,
        get_block_sequence_ids_for_mask,
    )

    embeddings = inputs["inputs_embeds"]
    return create_masks_for_vision_model(  # by place: the cache has another name in transformers 5.24 than before
        config, embeddings, mask, cache, inputs["position_ids"], get_block_sequence_ids_for_mask(seen.long())
    )
