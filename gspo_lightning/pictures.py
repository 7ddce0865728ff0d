"""A picture in a prompt: its file, and the tokens that stand for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Media", "Picture", "blocks_of", "read_media", "written_media"]


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a prompt. Pixels are read from ``data`` when a model needs them and are never kept.

    ``data`` is the file as it came, ``sha256`` its hash; ``start`` is the place of its first token in the prompt, and
    ``rows`` x ``columns`` tokens stand for it, row by row. Where a model cuts a picture into tiles, those are the
    tokens of one tile, and ``more`` are the places of the first tokens of the others, with text between them. Where
    the tokens have no places in two dimensions, they are one row.
    """

    data: bytes = field(repr=False)
    sha256: str
    start: int
    rows: int
    columns: int
    more: tuple[int, ...] = ()

    @property
    def starts(self) -> tuple[int, ...]:
        """Places of the first tokens of its tiles; one tile is the whole picture."""
        return self.start, *self.more

    @property
    def tile(self) -> int:
        """How many tokens stand for a tile, side by side."""
        return self.rows * self.columns

    @property
    def tokens(self) -> int:
        """How many tokens stand for it."""
        return self.tile * len(self.starts)

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Pictures with the same key have the same features, wherever they stand."""
        return self.sha256, self.rows, self.columns, len(self.more)

    @property
    def shape(self) -> tuple[int, ...]:
        """``start``, ``rows``, ``columns`` and the places of further tiles: all that positions depend on."""
        return self.start, self.rows, self.columns, *self.more


Media = tuple[Picture, ...]
"""The pictures of a prompt, in the order of their tokens."""


def blocks_of(rows: Sequence[Media], offsets: Sequence[int]) -> list[tuple[int, int]]:
    """(start, length) of every tile of some prompts whose first tokens stand at ``offsets``."""
    return [
        (offset + start, picture.tile)
        for media, offset in zip(rows, offsets, strict=True)
        for picture in media
        for start in picture.starts
    ]


def written_media(rows: Sequence[Media]) -> dict[str, Any]:
    """The pictures of rows as primitives for a checkpoint, every file once."""
    files = {p.sha256: p.data for media in rows for p in media}
    return {"files": files, "rows": [[(p.sha256, *p.shape) for p in media] for media in rows]}


def read_media(written: Mapping[str, Any] | None) -> tuple[Media, ...] | None:
    """The inverse of :func:`written_media`."""
    if written is None:
        return None
    files = written["files"]
    return tuple(
        tuple(Picture(files[sha], sha, start, rows, columns, tuple(more)) for sha, start, rows, columns, *more in row)
        for row in written["rows"]
    )
