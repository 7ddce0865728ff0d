"""The processor of a vision-language model: from a picture to tokens, and to pixels.

transformers' image processor that works on Pillow's images; torchvision is not needed. A picture is scaled to whole
tokens once its tokens are known, so its pixels always agree with them, whatever limit the run has set.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from gspo_lightning.errors import UserError, first_line
from gspo_lightning.pictures import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Sight", "give_sight", "load_sight", "rgb", "sight_of", "tiny_sight"]

_ATTRIBUTE = "gspo_sight"
_VIDEO = {
    "qwen2_5_vl": "Qwen2VLVideoProcessor",
    "qwen3_vl": "Qwen3VLVideoProcessor",
    "qwen3_vl_moe": "Qwen3VLVideoProcessor",
}


@dataclass(frozen=True)
class Sight:
    """What a policy's pictures are to its tokenizer and its processor.

    ``image``, ``video``, ``start`` and ``end`` are token ids: of a picture's and a video's placeholder, and of what
    stands around a picture.
    """

    processor: Any
    image: int
    video: int
    start: int
    end: int
    kind: str

    @property
    def unsaid(self) -> tuple[int, ...]:
        """Tokens that no response may hold: nothing is behind them."""
        return self.image, self.video

    def limited(self, max_pixels: int | None) -> Sight:
        """The same with another limit; None keeps the processor's own."""
        if max_pixels is None:
            return self
        size = {**_plain(self.processor.size), "longest_edge": max_pixels}
        size["shortest_edge"] = min(size["shortest_edge"], max_pixels)
        return replace(self, processor=type(self.processor)(**{**self.processor.to_dict(), "size": size}))

    @property
    def token_pixels(self) -> int:
        """Pixels along each side of what one token stands for."""
        return int(self.processor.patch_size * self.processor.merge_size)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tokens that stand for a picture of this size.

        Raises:
            ValueError: it is more than 200 times as long as it is wide.
        """
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        size, side = self.processor.size, self.token_pixels
        rows, columns = smart_resize(height, width, side, size["shortest_edge"], size["longest_edge"])
        return rows // side, columns // side

    def shrinks(self, width: int, height: int) -> bool:
        """Whether a picture of this size is scaled down because of the limit."""
        return width * height > int(self.processor.size["longest_edge"])

    def pixels(self, pictures: Sequence[Picture]) -> tuple[Tensor, Tensor]:
        """``pixel_values`` [patches, D] float32 and ``image_grid_thw`` [I, 3] int64 of I pictures."""
        merge = self.processor.merge_size
        found, grids = [], []
        for picture in pictures:
            made = self.processor(images=[self.scaled(picture)], do_resize=False, return_tensors="pt")
            found.append(made["pixel_values"])
            grids.append([1, picture.rows * merge, picture.columns * merge])
        return torch.cat(found), torch.tensor(grids)

    def scaled(self, picture: Picture) -> Image:
        """A picture as three colours, at the size that its tokens stand for."""
        from PIL.Image import Resampling

        size = (picture.columns * self.token_pixels, picture.rows * self.token_pixels)
        image = rgb(picture.data)
        return image if image.size == size else image.resize(size, Resampling(int(self.processor.resample)))

    def save(self, folder: Path) -> None:
        """Write both processor files; the one for videos only says how, since no video is ever read here."""
        self.processor.save_pretrained(folder)
        file = folder / "preprocessor_config.json"
        said = json.loads(file.read_text("utf-8"))
        said["image_processor_type"] = said["image_processor_type"].removesuffix("Pil")
        file.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        video = {k: v for k, v in said.items() if k != "image_processor_type"}
        video["video_processor_type"] = _VIDEO[self.kind]
        text = json.dumps(video, indent=2, sort_keys=True) + "\n"
        (folder / "video_preprocessor_config.json").write_text(text, encoding="utf-8")


def rgb(data: bytes) -> Image:
    """A picture's file as three colours, upright as its camera says."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
            ground = Image.new("RGBA", upright.size, "white")  # as a viewer shows it, not black
            return Image.alpha_composite(ground, upright.convert("RGBA")).convert("RGB")
        return upright.convert("RGB")


def sight_of(tokenizer: PreTrainedTokenizerBase) -> Sight | None:
    """What a tokenizer was given by :func:`give_sight`; None: its model reads text only."""
    return getattr(tokenizer, _ATTRIBUTE, None)


def give_sight(tokenizer: PreTrainedTokenizerBase, sight: Sight | None) -> None:
    """Let whoever has the tokenizer know how pictures become tokens."""
    if sight is not None:
        setattr(tokenizer, _ATTRIBUTE, sight)


def load_sight(name: str, config: PretrainedConfig, revision: str | None = None) -> Sight:
    """The processor of a model from the hub or a folder.

    Raises:
        UserError: it has none that can be read.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    try:
        processor = Qwen2VLImageProcessorPil.from_pretrained(name, revision=revision)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            "model.name_or_path",
            f"{name!r} has no image processor that can be read: {first_line(error)}",
            fix="put its preprocessor_config.json beside the weights",
        ) from error
    return _sight(processor, config)


def tiny_sight(config: PretrainedConfig) -> Sight:
    """Of a tiny model: pictures of 16 to 128 pixels along a side."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    vision = config.vision_config
    processor = Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size, merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size, size={"shortest_edge": 16 * 16, "longest_edge": 128 * 128},
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip
    return _sight(processor, config)


def _sight(processor: Any, config: PretrainedConfig) -> Sight:
    return Sight(
        processor, config.image_token_id, config.video_token_id, config.vision_start_token_id,
        config.vision_end_token_id, config.model_type,
    )  # fmt: skip


def _plain(size: Any) -> dict[str, int]:
    return {name: int(size[name]) for name in ("shortest_edge", "longest_edge")}
