"""What the pictures of a batch are to a model: features in the place of some tokens, and positions of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.pictures import Media, Picture
from gspo_lightning.policy.vision.positions import position_table
from gspo_lightning.policy.vision.sight import Sight

__all__ = ["Features", "Look", "features_of"]

BLANK = Picture(b"P6 1 1 255 \x00\x00\x00", "", 0, 1, 1)
"""One black pixel, as one token."""


@dataclass(frozen=True, slots=True)
class Features:
    """Of F picture tokens: what stands in the place of their embeddings [F, D], and what some layers add, each [F, D].

    The latter is DeepStack (arXiv 2406.04334), which Qwen3-VL has and Qwen2.5-VL lacks.
    """

    embeddings: Tensor
    layers: tuple[Tensor, ...]


def features_of(base: Any, sight: Sight, pictures: Sequence[Picture]) -> Features:
    """The features of pictures, one after another, by the vision tower of a model.

    Args:
        base: the model without its head (``Qwen3VLModel`` ...).
        sight: makes pixels of pictures.
        pictures: each once.
    """
    tower = next(base.visual.parameters())
    pixels, grids = sight.pixels(pictures)
    found = base.get_image_features(
        pixels.to(tower.device, non_blocking=True), image_grid_thw=grids.to(tower.device), return_dict=True
    )
    layers = getattr(found, "deepstack_features", None) or ()
    return Features(torch.cat(list(found.pooler_output)), tuple(torch.cat(list(layer)) for layer in layers))


@dataclass(frozen=True, slots=True)
class Look:
    """Of N rows of up to S tokens: ``features`` of all their pictures, each once; ``places`` [N, S] int64, the feature
    that stands in the place of a token, -1 where none does; ``positions`` [3, N, S] int64.
    """

    features: Features
    places: Tensor
    positions: Tensor

    @classmethod
    def at(cls, base: Any, sight: Sight, rows: Sequence[Media], width: int, offsets: Sequence[int] = ()) -> Look:
        """Look at the pictures of some rows, every one once however many rows have it.

        Args:
            base: the model without its head.
            sight: makes pixels of pictures.
            rows: the pictures of each row; where there are none at all, a blank one is seen and stands nowhere.
            width: S.
            offsets: tokens of padding in front of each row; none by default.
        """
        pictures = {p.key: p for media in rows for p in media} or {BLANK.key: BLANK}
        starts, count = {}, 0
        for key, picture in pictures.items():
            starts[key], count = count, count + picture.tokens
        table = position_table(rows, width)
        places, positions = torch.full((len(rows), width), -1), torch.zeros_like(table)
        for i, media in enumerate(rows):
            before = offsets[i] if offsets else 0
            positions[:, i, before:] = table[:, i, : width - before]
            for p in media:
                place = before + p.start
                places[i, place : place + p.tokens] = torch.arange(p.tokens) + starts[p.key]
        features = features_of(base, sight, list(pictures.values()))
        device = features.embeddings.device
        return cls(features, places.to(device, non_blocking=True), positions.to(device, non_blocking=True))

    def inputs(self, embed: nn.Module, ids: Tensor, places: Tensor, positions: Tensor) -> dict[str, Any]:
        """What the text model is called with for some of the tokens.

        Args:
            embed: its input embedding.
            ids: [R, M] token ids.
            places: [R, M] of them.
            positions: [3, R, M] of them.
        """
        seen = places >= 0
        text = embed(ids)
        pictures = self.features.embeddings.to(text.dtype)[places.clamp(min=0)]
        found = {"inputs_embeds": torch.where(seen.unsqueeze(-1), pictures, text), "position_ids": positions}
        if not self.features.layers:
            return found
        which = places[seen]
        return found | {
            "visual_pos_masks": seen,
            "deepstack_visual_embeds": [layer[which] for layer in self.features.layers],
        }
