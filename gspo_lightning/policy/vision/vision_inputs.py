"""Vision inputs of a batch: features that replace some token embeddings, and positions of all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.pictures import Media
from gspo_lightning.core.transfer import to_device
from gspo_lightning.policy.vision.gemma import masks
from gspo_lightning.policy.vision.image_processor import Features, ImageProcessorAdapter

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class VisionInputs:
    """Vision inputs of N rows of up to S tokens.

    ``features`` are those of all their pictures, each once; ``places`` [N, S] int64 is the index of the feature that
    replaces a token, -1 for none; ``positions`` is [axes, N, S] int64. ``mutual`` is True if the tokens of a picture
    see each other.
    """

    features: Features
    places: Tensor
    positions: Tensor
    mutual: bool = False

    @classmethod
    def at(
        cls,
        base: Any,
        image_processor: ImageProcessorAdapter,
        rows: Sequence[Media],
        width: int,
        offsets: Sequence[int] = (),
    ) -> VisionInputs:
        """Compute the features of the pictures of some rows, each picture once however many rows have it.

        Args:
            base: the model without its head.
            image_processor: the picture processor.
            rows: pictures of each row; if all are empty, the features of a blank picture are computed and not used.
            width: S.
            offsets: left padding of each row in tokens; none by default.

        Raises:
            UserError: the model makes another number of features than the prompts have tokens for.
        """
        pictures = {picture.key: picture for media in rows for picture in media}
        if not pictures:
            blank = image_processor.blank()
            pictures = {blank.key: blank}
        starts = {}  # first feature of each picture
        count = 0
        for key, picture in pictures.items():
            starts[key] = count
            count = count + picture.tokens
        if image_processor.axes == 3:
            table = position_table(rows, width)
        else:
            table = torch.arange(width).expand(1, len(rows), width)
        places = torch.full((len(rows), width), -1)
        positions = torch.zeros_like(table)
        for i, media in enumerate(rows):
            before = offsets[i] if offsets else 0
            positions[:, i, before:] = table[:, i, : width - before]
            for picture in media:
                for number, start in enumerate(picture.starts):
                    first = starts[picture.key] + number * picture.tile
                    tile = slice(before + start, before + start + picture.tile)
                    places[i, tile] = torch.arange(picture.tile) + first
        features = image_processor.features(base, list(pictures.values()))
        feature_count = len(features.embeddings)
        if feature_count != count:
            raise UserError(
                "model.name_or_path",
                f"makes {feature_count} features of pictures that stand for {count} tokens in prompts",
                fix="use a model with as many tokens for a picture",
            )
        device = features.embeddings.device
        places, positions = to_device((places, positions), device)
        return cls(features, places, positions, image_processor.mutual)

    def inputs(self, embed: nn.Module, ids: Tensor, places: Tensor, positions: Tensor) -> dict[str, Any]:
        """Return the text model's inputs for some of the tokens.

        Args:
            embed: input embedding of the text model.
            ids: [R, M] token ids.
            places: [R, M] their ``places``.
            positions: [axes, R, M] their positions.
        """
        is_picture = places >= 0
        text = embed(ids)
        pictures = self.features.embeddings.to(text.dtype)[places.clamp(min=0)]
        where = positions if len(positions) > 1 else positions[0]
        inputs = {"inputs_embeds": torch.where(is_picture.unsqueeze(-1), pictures, text), "position_ids": where}
        if not self.features.layers:
            return inputs
        picture_places = places[is_picture]
        return inputs | {
            "visual_pos_masks": is_picture,
            "deepstack_visual_embeds": [layer[picture_places] for layer in self.features.layers],
        }

    def attention(self, config: Any, inputs: dict[str, Any], mask: Tensor, places: Tensor, cache: Any = None) -> Any:
        """Return the ``attention_mask`` of the text model for rows side by side.

        Args:
            config: of the text model.
            inputs: from :meth:`inputs`.
            mask: [R, M] 1 at tokens, 0 at padding.
            places: [R, M] of the tokens.
            cache: empty KV cache to be filled; None: no cache.
        """
        return masks(config, inputs, mask, places >= 0, cache) if self.mutual else mask


def shift(media: Media) -> int:
    """Return a position behind the last picture minus the number of tokens before it; at most 0."""
    return sum((max(p.rows, p.columns) - p.tile) * len(p.starts) for p in media)


def position_table(rows: Sequence[Media], width: int) -> Tensor:
    """Return time, row and column [3, N, width] int64 of the first ``width`` tokens of N rows with these pictures.

    These are M-RoPE's positions (Qwen2-VL, arXiv 2409.12191, section 2.1). A text token has the same position on all
    three axes. The tokens of a picture share one time and have the position of their row and column; text continues
    behind the larger of the two. So a prompt's positions determine its responses'.
    """
    positions = {media: _positions(tuple(p.shape for p in media), width) for media in dict.fromkeys(rows)}
    return torch.stack([positions[media] for media in rows], dim=1)


def _positions(shapes: Shapes, width: int) -> Tensor:
    prompt, moved = _prompt(shapes)
    positions = (torch.arange(width) + moved).expand(3, -1).clone()
    inside = min(width, prompt.shape[1])
    positions[:, :inside] = prompt[:, :inside]
    return positions


@lru_cache(maxsize=4096)
def _prompt(shapes: Shapes) -> tuple[Tensor, int]:
    """Return positions [3, n] to the end of the last picture, and the shift of later ones."""
    parts: list[Tensor] = [torch.zeros(3, 0, dtype=torch.int64)]
    tokens = position = 0
    for start, rows, columns in shapes:
        text = start - tokens
        parts.append((torch.arange(text) + position).expand(3, -1))
        position += text
        row = torch.arange(rows).repeat_interleave(columns)
        column = torch.arange(columns).repeat(rows)
        parts.append(torch.stack([torch.zeros_like(row), row, column]) + position)
        tokens = start + rows * columns
        position = position + max(rows, columns)
    return torch.cat(parts, dim=1), position - tokens
