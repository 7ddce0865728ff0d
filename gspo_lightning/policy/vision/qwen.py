"""Pictures of Qwen2.5-VL and Qwen3-VL: token counts that follow their size, and three-dimensional positions.

A picture is scaled to whole tokens after its tokens are counted, so its pixels always match them, whatever limit the
run sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import ModelOutput
from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.pictures import Picture
from gspo_lightning.core.transfer import to_device
from gspo_lightning.policy.vision.image_processor import Features, ImageProcessorAdapter, Shown, rgb, write_json

if TYPE_CHECKING:
    from PIL.Image import Image

_VIDEO = {
    "qwen2_5_vl": "Qwen2VLVideoProcessor",
    "qwen3_vl": "Qwen3VLVideoProcessor",
    "qwen3_vl_moe": "Qwen3VLVideoProcessor",
}
QWEN = tuple(_VIDEO)
"""Supported ``model_type`` values."""


@dataclass(frozen=True)
class QwenImageProcessor(ImageProcessorAdapter):
    """Picture processor of Qwen; ``video`` is the token id of a video's placeholder."""

    video: int

    axes: ClassVar[int] = 3

    @property
    @override
    def unsaid(self) -> tuple[int, ...]:
        return self.image, self.video

    @property
    @override
    def around(self) -> tuple[int, ...]:
        return self.start, self.image, self.end

    @property
    @override
    def token_pixels(self) -> int:
        return int(self.processor.patch_size * self.processor.merge_size)

    @property
    @override
    def most_pixels(self) -> int:
        return int(self.processor.size["longest_edge"])

    @property
    @override
    def smallest(self) -> tuple[int, int]:
        return 1, 1

    @override
    def limited(self, max_pixels: int | None) -> QwenImageProcessor:
        if max_pixels is None:
            return self
        size = {**_plain(self.processor.size), "longest_edge": max_pixels}
        size["shortest_edge"] = min(size["shortest_edge"], max_pixels)
        return replace(self, processor=type(self.processor)(**{**self.processor.to_dict(), "size": size}))

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the rows and columns of tokens for a picture of this size.

        Raises:
            ValueError: one side is more than 200 times the other.
        """
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        size = self.processor.size
        side = self.token_pixels
        rows, columns = smart_resize(height, width, side, size["shortest_edge"], size["longest_edge"])
        return rows // side, columns // side

    @override
    def shown(self, width: int, height: int, tokenizer: PreTrainedTokenizerBase) -> Shown:
        return Shown(str(tokenizer.convert_ids_to_tokens(self.image)), *self.grid(width, height))

    @override
    def shrinks(self, width: int, height: int) -> bool:
        return width * height > self.most_pixels

    def pixels(self, pictures: Sequence[Picture]) -> tuple[Tensor, Tensor]:
        """Return ``pixel_values`` [patches, D] float32 and ``image_grid_thw`` [I, 3] int64 of I pictures."""
        patches = [
            self.processor(images=[self.scaled(picture)], do_resize=False, return_tensors="pt")["pixel_values"]
            for picture in pictures
        ]
        return torch.cat(patches), self._grids(pictures)

    def scaled(self, picture: Picture) -> Image:
        """Return a picture in RGB, at the size that its tokens stand for."""
        from PIL.Image import Resampling

        size = (picture.columns * self.token_pixels, picture.rows * self.token_pixels)
        image = rgb(picture.data)
        return image if image.size == size else image.resize(size, Resampling(int(self.processor.resample)))

    @override
    def features(self, base: Any, pictures: Sequence[Picture]) -> Features:
        tower = next(base.visual.parameters())
        pixels, grids = to_device(self.pixels(pictures), tower.device)
        output = base.get_image_features(pixels, image_grid_thw=grids, return_dict=True)
        layers = getattr(output, "deepstack_features", None) or ()
        return Features(torch.cat(list(output.pooler_output)), tuple(torch.cat(list(layer)) for layer in layers))

    @override
    def asked(self, pictures: Sequence[Picture], ids: Tensor) -> dict[str, Any]:
        pixels, grids = self.pixels(pictures)
        kinds = (ids == self.image).int()
        return {"pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": kinds}

    @override
    def generated(self, pictures: Sequence[Picture], features: Sequence[Features], ids: Tensor) -> dict[str, Any]:
        outputs: dict[str, Any] = {"pooler_output": tuple(f.embeddings for f in features)}
        if features[0].layers:
            outputs["deepstack_features"] = tuple(zip(*(f.layers for f in features), strict=True))
        return {
            "mm_encoder_outputs": {"image": ModelOutput(**outputs)},
            "mm_token_type_ids": (ids == self.image).int(),
            "image_grid_thw": self._grids(pictures),
        }

    def noise(self, seed: int) -> Picture:
        """Return a random picture two tokens wide and one high, or as small as the processor makes them."""
        rows, columns = self.grid(2 * self.token_pixels, self.token_pixels)
        return replace(super().noise(seed), rows=rows, columns=columns)

    def save(self, folder: Path) -> None:
        """Write both processor files; the one for videos is only for completeness, since no video is read here."""
        content = self._save_image_processor(folder)
        video = {k: v for k, v in content.items() if k != "image_processor_type"}
        write_json(folder / "video_preprocessor_config.json", {**video, "video_processor_type": _VIDEO[self.kind]})

    def _grids(self, pictures: Sequence[Picture]) -> Tensor:
        merge = self.processor.merge_size
        return torch.tensor([[1, p.rows * merge, p.columns * merge] for p in pictures])


def qwen_image_processor(processor: Any, config: PretrainedConfig) -> QwenImageProcessor:
    """Build the processor of a Qwen model.

    Raises:
        UserError: it scales pictures by another rule, or its patches are not those of the model.
    """
    fix = "use the preprocessor_config.json of the model"
    for edge in ("shortest_edge", "longest_edge"):
        if dict(processor.size).get(edge) is None:
            raise UserError("model.name_or_path", f"the image processor has no size for its {edge}", fix=fix)
    vision = config.vision_config
    for name in ("patch_size", "temporal_patch_size", "spatial_merge_size"):
        processor_name = name.removeprefix("spatial_")
        size = getattr(processor, processor_name)
        model_size = getattr(vision, name)
        if size != model_size:
            problem = f"the image processor has {processor_name} {size}, and the model reads {model_size}"
            raise UserError("model.name_or_path", problem, fix=fix)
    return QwenImageProcessor(
        processor, config.image_token_id, config.vision_start_token_id, config.vision_end_token_id, config.model_type,
        config.video_token_id,
    )  # fmt: skip


def tiny_qwen_processor(config: PretrainedConfig) -> Any:
    """Build the image processor of a tiny model: pictures of 16 to 128 pixels along a side."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    vision = config.vision_config
    return Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size, merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size, size={"shortest_edge": 16 * 16, "longest_edge": 128 * 128},
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip


def _plain(size: Any) -> dict[str, int]:
    return {name: int(size[name]) for name in ("shortest_edge", "longest_edge")}
