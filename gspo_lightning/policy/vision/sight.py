"""The processor of a vision-language model: from a picture to tokens, and to pixels.

transformers' image processors that work on Pillow's images; torchvision is not needed.
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

from gspo_lightning.errors import UserError
from gspo_lightning.pictures import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Features", "Shown", "Sight", "SquareSight", "check_same_tokens", "give_sight", "rgb", "sight_of"]

_ATTRIBUTE = "gspo_sight"


@dataclass(frozen=True, slots=True)
class Features:
    """Of F picture tokens: what stands in the place of their embeddings [F, D], and what some layers add, each [F, D].

    The latter is DeepStack (arXiv 2406.04334), which Qwen3-VL has and the others lack.
    """

    embeddings: Tensor
    layers: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """What stands for a picture in a prompt: a text with one placeholder of a token for each tile, and the ``rows`` x
    ``columns`` tokens that each of them becomes.
    """

    text: str
    rows: int
    columns: int


@dataclass(frozen=True)
class Sight(ABC):
    """What a policy's pictures are to its tokenizer and its processor.

    ``image`` is the token id in whose place features stand, ``start`` and ``end`` those of what stands around them;
    ``kind`` is the ``model_type``.
    """

    processor: Any
    image: int
    start: int
    end: int
    kind: str

    axes: ClassVar[int] = 1
    """Dimensions that positions have: 3 with M-RoPE."""
    mutual: ClassVar[bool] = False
    """Whether the tokens of a picture see each other, those behind them included."""

    @property
    def mark(self) -> int:
        """The token that a chat template writes for a picture."""
        return self.image

    @property
    def unsaid(self) -> tuple[int, ...]:
        """Tokens that no response may hold: nothing is behind them."""
        return (self.image,)

    @property
    def around(self) -> tuple[int, ...]:
        """What stands for a picture in a text without a template, a ``mark`` among it."""
        return (self.mark,)

    @property
    @abstractmethod
    def token_pixels(self) -> int:
        """Pixels along each side of what one token stands for."""

    @property
    @abstractmethod
    def most_pixels(self) -> int:
        """Pixels of the largest picture as the model reads it."""

    @property
    @abstractmethod
    def smallest(self) -> tuple[int, int]:
        """Rows and columns of the fewest tokens that can stand for a picture."""

    @abstractmethod
    def limited(self, max_pixels: int | None) -> Self:
        """The same with another limit; None keeps the processor's own.

        Raises:
            UserError: the family cannot keep it.
        """

    @abstractmethod
    def shown(self, width: int, height: int, tokenizer: PreTrainedTokenizerBase) -> Shown:
        """What stands for a picture of this size.

        Raises:
            ValueError: it is too long for its width.
        """

    @abstractmethod
    def shrinks(self, width: int, height: int) -> bool:
        """Whether a picture of this size is scaled down because of the limit."""

    @abstractmethod
    def features(self, base: Any, pictures: Sequence[Picture]) -> Features:
        """The features of pictures, one after another, by the vision tower of a model without its head."""

    @abstractmethod
    def asked(self, pictures: Sequence[Picture], ids: Tensor) -> dict[str, Any]:
        """Pictures as transformers' own model takes them, with one row of token ids [1, S]."""

    @abstractmethod
    def generated(self, pictures: Sequence[Picture], features: Sequence[Features], ids: Tensor) -> dict[str, Any]:
        """Pictures as ``generate`` takes them, seen already, with the token ids [N, S] of all prompts."""

    def noise(self, seed: int) -> Picture:
        """A picture of random colours behind one token of a prompt, as small as the family allows."""
        rows, columns = self.smallest
        return Picture(noise(2 * self.token_pixels, self.token_pixels, seed), f"noise {seed}", 1, rows, columns)

    def blank(self) -> Picture:
        """A black picture, as small as the family allows; it stands nowhere."""
        return Picture(b"P6 1 1 255 \x00\x00\x00", "", 0, *self.smallest)

    def save(self, folder: Path) -> None:
        """Write what processors are loaded from, for machines with torchvision, too."""
        self._save_image_processor(folder)

    def _save_image_processor(self, folder: Path) -> dict[str, Any]:
        """Write the file of the image processor under the name of its general form; returns what it says."""
        self.processor.save_pretrained(folder)
        file = folder / "preprocessor_config.json"
        said: dict[str, Any] = json.loads(file.read_text("utf-8"))
        said["image_processor_type"] = said["image_processor_type"].removesuffix("Pil")
        write_json(file, said)
        return said


def write_json(file: Path, said: dict[str, Any]) -> None:
    """As transformers writes it."""
    file.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def noise(width: int, height: int, seed: int) -> bytes:
    """The file of a picture of random colours."""
    import torch

    values = torch.randint(0, 256, (3 * width * height,), generator=torch.Generator().manual_seed(seed))
    return f"P6 {width} {height} 255 ".encode() + bytes(values.tolist())


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


@dataclass(frozen=True)
class SquareSight(Sight):
    """Of squares of a fixed size, each of ``tokens`` tokens in one row: whole pictures, or their tiles."""

    tokens: int

    @property
    @abstractmethod
    def side(self) -> int:
        """Pixels along a side of a square."""

    @property
    def token_pixels(self) -> int:
        """See :class:`Sight`."""
        return self.side // math.isqrt(self.tokens)

    @property
    def smallest(self) -> tuple[int, int]:
        """See :class:`Sight`."""
        return 1, self.tokens


def give_sight(tokenizer: PreTrainedTokenizerBase, sight: Sight | None) -> None:
    """Let whoever has the tokenizer know how pictures become tokens."""
    if sight is not None:
        setattr(tokenizer, _ATTRIBUTE, sight)


def check_same_tokens(policy: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, field: str) -> None:
    """Another model that reads the policy's prompts has as many tokens for a picture, or for each tile of one.

    Args:
        policy: tokenizer of the model that prompts are encoded for.
        other: tokenizer of the other model; one that reads text only has nothing to agree with.
        field: the setting that names the other model.

    Raises:
        UserError: it has not.
    """
    mine, theirs = sight_of(policy), sight_of(other)
    if mine is None or theirs is None or mine.smallest == theirs.smallest:
        return
    ours, others = (rows * columns for rows, columns in (mine.smallest, theirs.smallest))
    what = f"reads a picture as {others} tokens where the policy's prompts have {ours}"
    raise UserError(field, what, fix="use a model of the policy's family, with pictures of as many tokens")
