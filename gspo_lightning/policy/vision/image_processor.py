"""Picture processor of a vision-language model: from a picture to tokens, and to pixels.

Uses transformers' image processors for Pillow images; torchvision is not needed.
"""

from __future__ import annotations

import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.pictures import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

_ATTRIBUTE = "gspo_sight"


@dataclass(frozen=True, slots=True)
class Features:
    """Features of F picture tokens: embeddings [F, D], and additions of some layers, each [F, D].

    The additions are DeepStack (arXiv 2406.04334), which only Qwen3-VL has.
    """

    embeddings: Tensor
    layers: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """Prompt form of a picture: a text with one placeholder token for each tile.

    Each placeholder becomes ``rows`` x ``columns`` tokens.
    """

    text: str
    rows: int
    columns: int


@dataclass(frozen=True)
class ImageProcessorAdapter(ABC):
    """Picture processor of a policy: from pictures to tokens and to pixels.

    ``image`` is the token id that features replace, ``start`` and ``end`` are those of the tokens around it; ``kind``
    is the ``model_type``.
    """

    processor: Any
    image: int
    start: int
    end: int
    kind: str

    axes: ClassVar[int] = 1
    """Dimensions of positions: 3 with M-RoPE."""
    mutual: ClassVar[bool] = False
    """True if the tokens of a picture see each other, later ones included."""

    @property
    def mark(self) -> int:
        """Token that a chat template writes for a picture."""
        return self.image

    @property
    def unsaid(self) -> tuple[int, ...]:
        """Tokens that no response may contain, because no picture is behind them."""
        return (self.image,)

    @property
    def around(self) -> tuple[int, ...]:
        """Tokens of a picture in a text without a template, including ``mark``."""
        return (self.mark,)

    @property
    @abstractmethod
    def token_pixels(self) -> int:
        """Side length in pixels of the area of one token."""

    @property
    @abstractmethod
    def most_pixels(self) -> int:
        """Pixels of the largest picture as the model reads it."""

    @property
    @abstractmethod
    def smallest(self) -> tuple[int, int]:
        """Rows and columns of the fewest tokens that a picture can have."""

    @abstractmethod
    def limited(self, max_pixels: int | None) -> Self:
        """Return this processor with another pixel limit; None keeps its own.

        Raises:
            UserError: the family cannot keep the limit.
        """

    @abstractmethod
    def shown(self, width: int, height: int, tokenizer: PreTrainedTokenizerBase) -> Shown:
        """Return the prompt form of a picture of this size.

        Raises:
            ValueError: its aspect ratio is too large.
        """

    @abstractmethod
    def shrinks(self, width: int, height: int) -> bool:
        """True if the limit makes a picture of this size shrink."""

    @abstractmethod
    def features(self, base: Any, pictures: Sequence[Picture]) -> Features:
        """Return the concatenated features of pictures, from the vision tower of a model without its head."""

    @abstractmethod
    def asked(self, pictures: Sequence[Picture], ids: Tensor) -> dict[str, Any]:
        """Return pictures as inputs of transformers' own model, with one row of token ids [1, S]."""

    @abstractmethod
    def generated(self, pictures: Sequence[Picture], features: Sequence[Features], ids: Tensor) -> dict[str, Any]:
        """Return encoded pictures as inputs of ``generate``, with the token ids [N, S] of all prompts."""

    def noise(self, seed: int) -> Picture:
        """Return a random picture, as small as the family allows, behind one token of a prompt."""
        rows, columns = self.smallest
        return Picture(noise(2 * self.token_pixels, self.token_pixels, seed), f"noise {seed}", 1, rows, columns)

    def blank(self) -> Picture:
        """Return a black picture, as small as the family allows, without a place in a prompt."""
        return Picture(b"P6 1 1 255 \x00\x00\x00", "", 0, *self.smallest)

    def save(self, folder: Path) -> None:
        """Write the processor files, usable on machines with torchvision, too."""
        self._save_image_processor(folder)

    def _save_image_processor(self, folder: Path) -> dict[str, Any]:
        """Write the image processor's file under the name of its general class; return its content."""
        self.processor.save_pretrained(folder)
        file = folder / "preprocessor_config.json"
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        content["image_processor_type"] = content["image_processor_type"].removesuffix("Pil")
        write_json(file, content)
        return content


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write JSON formatted like transformers'."""
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def noise(width: int, height: int, seed: int) -> bytes:
    """Return the file of a random picture."""
    import torch

    values = torch.randint(0, 256, (3 * width * height,), generator=torch.Generator().manual_seed(seed))
    return f"P6 {width} {height} 255 ".encode() + bytes(values.tolist())


def rgb(data: bytes) -> Image:
    """Decode a picture's file to RGB, upright by its EXIF orientation."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
            ground = Image.new("RGBA", upright.size, "white")  # as a viewer shows it, not black
            return Image.alpha_composite(ground, upright.convert("RGBA")).convert("RGB")
        return upright.convert("RGB")


def image_processor_of(tokenizer: PreTrainedTokenizerBase) -> ImageProcessorAdapter | None:
    """Return the processor attached to a tokenizer by :func:`attach_image_processor`; None for models of text only."""
    return getattr(tokenizer, _ATTRIBUTE, None)


@dataclass(frozen=True)
class SquareImageProcessor(ImageProcessorAdapter):
    """Picture processor for squares of ``tokens`` tokens in one row each: whole pictures, or their tiles."""

    tokens: int

    @property
    @abstractmethod
    def side(self) -> int:
        """Pixels along a side of a square."""

    @property
    @override
    def token_pixels(self) -> int:
        return self.side // math.isqrt(self.tokens)

    @property
    @override
    def smallest(self) -> tuple[int, int]:
        return 1, self.tokens


def attach_image_processor(tokenizer: PreTrainedTokenizerBase, image_processor: ImageProcessorAdapter | None) -> None:
    """Attach a picture processor to a tokenizer."""
    if image_processor is not None:
        setattr(tokenizer, _ATTRIBUTE, image_processor)


def check_same_tokens(policy: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, field: str) -> None:
    """Refuse another model that has another number of tokens for a picture or tile than the policy's prompts.

    Args:
        policy: tokenizer of the model that prompts are encoded for.
        other: tokenizer of the other model; one that reads text only always passes.
        field: the setting that names the other model.

    Raises:
        UserError: the numbers differ.
    """
    policy_processor = image_processor_of(policy)
    other_processor = image_processor_of(other)
    if policy_processor is None or other_processor is None:
        return
    if policy_processor.smallest == other_processor.smallest:
        return
    tokens = math.prod(policy_processor.smallest)
    other_tokens = math.prod(other_processor.smallest)
    raise UserError(
        field,
        f"reads a picture as {other_tokens} tokens where the policy's prompts have {tokens}",
        fix="use a model of the policy's family, with pictures of as many tokens",
    )
