"""Three-dimensional positions (M-RoPE, Qwen2-VL, arXiv 2409.12191, section 2.1), from the shapes of pictures alone.

A text token has the same position on all three axes. The tokens of a picture share one time and have the position of
their row and column; text continues behind the larger of the two. So a prompt's positions determine its responses'.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gspo_lightning.pictures import Media

__all__ = ["position_table", "shift"]

Shapes = tuple[tuple[int, ...], ...]


def shift(media: Media) -> int:
    """Return a position behind the last picture minus the number of tokens before it; at most 0."""
    return sum((max(p.rows, p.columns) - p.tile) * len(p.starts) for p in media)


def position_table(rows: Sequence[Media], width: int) -> Tensor:
    """Return time, row and column [3, N, width] int64 of the first ``width`` tokens of N rows with these pictures."""
    known = {media: _positions(tuple(p.shape for p in media), width) for media in dict.fromkeys(rows)}
    return torch.stack([known[media] for media in rows], dim=1)


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
        row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
        parts.append(torch.stack([torch.zeros_like(row), row, column]) + position)
        tokens, position = start + rows * columns, position + max(rows, columns)
    return torch.cat(parts, dim=1), position - tokens
