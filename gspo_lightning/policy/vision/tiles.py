"""Pictures of SmolVLM and Idefics3: scaled up and cut into square tiles of equal token count, with text between them.

The last tile is the whole picture again, small. Positions are those of text (arXiv 2504.05299, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import ModelOutput
from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.pictures import Picture
from gspo_lightning.core.transfer import to_device
from gspo_lightning.policy.vision.image_processor import Features, Shown, SquareImageProcessor, rgb, write_json

AROUND = "<fake_token_around_image>"
"""Text of transformers' processor around tiles."""
WHOLE = "<global-img>"
"""Its text before the last of them, the whole picture."""
IMAGE = "<image>"
"""Its text for each token of a tile."""


@dataclass(frozen=True)
class TileImageProcessor(SquareImageProcessor):
    """Processor of SmolVLM and Idefics3: a square is a tile."""

    @property
    def side(self) -> int:
        """Pixels along a side of a tile."""
        return int(self.processor.max_image_size["longest_edge"])

    @property
    def most_pixels(self) -> int:
        """Pixels of all tiles together."""
        tiles = self._edge**2 + (1 if self._splits and self._edge > 1 else 0)
        return tiles * self.side**2 if self._splits else self.side**2

    @property
    def _splits(self) -> bool:
        return bool(self.processor.do_image_splitting)

    @property
    def _edge(self) -> int:
        """Tiles along the longer side of every picture."""
        return int(self.processor.size["longest_edge"]) // self.side

    def limited(self, max_pixels: int | None) -> TileImageProcessor:
        """Return a processor with fewer tiles if a square's exceed the limit; the whole picture does not count."""
        if max_pixels is None or not self._splits or max_pixels >= (self._edge * self.side) ** 2:
            return self
        edge = math.isqrt(max_pixels) // self.side
        if edge < 1:
            problem = (
                f"is {max_pixels}, and this model makes {self.side} x {self.side} pixels of every picture, at least"
            )
            raise UserError(
                "data.pictures.max_pixels", problem, fix=f"set it to {self.side**2} or more, or leave it out"
            )
        return self._with(edge)

    @override
    def shown(self, width: int, height: int, tokenizer: PreTrainedTokenizerBase) -> Shown:
        from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

        _, rows, columns = self._cut(width, height)
        return Shown(get_image_prompt_string(rows, columns, 1, AROUND, IMAGE, WHOLE), 1, self.tokens)

    @override
    def shrinks(self, width: int, height: int) -> bool:
        return max(width, height) > (self._edge if self._splits else 1) * self.side

    def pixels(self, pictures: Sequence[Picture]) -> Tensor:
        """Return pixels [tiles, 3, side, side] float32 of some pictures."""
        return torch.cat([self._tiles(picture) for picture in pictures])

    def features(self, base: Any, pictures: Sequence[Picture]) -> Features:
        """Return features without ``get_image_features``, which skips all-zero tiles.

        See :meth:`ImageProcessorAdapter.features`.
        """
        weight = next(base.vision_model.parameters())
        (pixels,) = to_device([self.pixels(pictures).to(weight.dtype)], weight.device)
        states = base.vision_model(pixel_values=pixels, return_dict=True).last_hidden_state
        return Features(base.connector(states).flatten(0, 1))

    @override
    def asked(self, pictures: Sequence[Picture], ids: Tensor) -> dict[str, Any]:
        return {"pixel_values": self.pixels(pictures)[None]}

    @override
    def generated(self, pictures: Sequence[Picture], features: Sequence[Features], ids: Tensor) -> dict[str, Any]:
        tiles = torch.cat([f.embeddings for f in features]).unflatten(0, (-1, self.tokens))
        return {"mm_encoder_outputs": {"image": ModelOutput(pooler_output=tiles)}}

    def save(self, folder: Path) -> None:
        """Write the image processor's file, and the number of tokens of a tile."""
        self._save_image_processor(folder)
        name = "SmolVLMProcessor" if self.kind == "smolvlm" else "Idefics3Processor"
        write_json(folder / "processor_config.json", {"image_seq_len": self.tokens, "processor_class": name})

    def _with(self, edge: int) -> TileImageProcessor:
        """Return this processor with ``edge`` tiles along the longer side."""
        size = {"longest_edge": edge * self.side}
        return replace(self, processor=type(self.processor)(**{**self.processor.to_dict(), "size": size}))

    def _cut(self, width: int, height: int) -> tuple[int, int, int]:
        """Return the number of tiles of a picture of this size, and their rows and columns, 0 if it is not cut."""
        tiles, rows, columns = self.processor.get_number_of_image_patches(height, width)
        return max(1, int(tiles)), int(rows), int(columns)

    def _tiles(self, picture: Picture) -> Tensor:
        """Return the [tiles, 3, side, side] that a picture has in its prompt, whatever the present limit."""
        image = rgb(picture.data)
        count = len(picture.starts)
        others = (self._with(edge) for edge in range(1, count + 1))  # a longer side always makes more tiles
        fitting = (candidate for candidate in chain([self], others) if candidate._cut(*image.size)[0] == count)
        image_processor = next(fitting, None)
        if image_processor is None:
            problem = f"the image processor does not cut a picture of a prompt into its {count} tiles"
            raise UserError("model.name_or_path", problem, fix="use the processor that the run began with")
        pixels: Tensor = image_processor.processor(images=[image], return_tensors="pt")["pixel_values"][0]
        return pixels


def tile_image_processor(
    processor: Any, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> TileImageProcessor:
    """Build the processor of a SmolVLM or Idefics3 model.

    Raises:
        UserError: its tiles are not those of the model, or the tokenizer does not know the tokens between them.
    """
    vision = config.vision_config
    side, longest = (dict(size).get("longest_edge") for size in (processor.max_image_size, processor.size))
    if longest is None or side != int(vision.image_size) or longest % side:
        raise UserError(
            "model.name_or_path",
            f"the image processor cuts pictures of {longest} pixels into tiles of {side}, and the model reads "
            f"{vision.image_size}",
            fix="use the preprocessor_config.json of the model, with a size that is a whole number of tiles",
        )
    around, whole, image = tokenizer.convert_tokens_to_ids([AROUND, WHOLE, IMAGE])
    if image != config.image_token_id or tokenizer.unk_token_id in (around, whole) or None in (around, whole):
        problem = f"the tokenizer does not know {AROUND}, {WHOLE} and {IMAGE} as the model does"
        raise UserError("model.name_or_path", problem, fix="use the tokenizer of the model")
    tile = (side // int(vision.patch_size) // int(config.scale_factor)) ** 2
    return TileImageProcessor(processor, config.image_token_id, around, around, config.model_type, tile)


def tiny_tile_processor(config: PretrainedConfig) -> Any:
    """Build the image processor of a tiny model: two tiles of 32 pixels along the longer side."""
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    side = int(config.vision_config.image_size)
    return SmolVLMImageProcessorPil(size={"longest_edge": 2 * side}, max_image_size={"longest_edge": side})
