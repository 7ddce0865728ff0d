"""Pictures in a prompt: the file, and its placeholder tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a prompt. Pixels are read from ``data`` when a model needs them and are never kept.

    ``data`` is the original file, ``sha256`` its hash; ``start`` is the position of its first token in the prompt, and
    ``rows`` x ``columns`` tokens stand for it, row by row. If a model splits a picture into tiles, those are the tokens
    of one tile, and ``more`` are the positions of the first tokens of the others, with text between them. Tokens
    without two-dimensional positions are one row.
    """

    data: bytes = field(repr=False)
    sha256: str
    start: int
    rows: int
    columns: int
    more: tuple[int, ...] = ()

    @property
    def starts(self) -> tuple[int, ...]:
        """Positions of the first tokens of its tiles; one tile is the whole picture."""
        return self.start, *self.more

    @property
    def tile(self) -> int:
        """Tokens per tile."""
        return self.rows * self.columns

    @property
    def tokens(self) -> int:
        """Tokens of the picture."""
        return self.tile * len(self.starts)

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Key of the features: pictures with the same key have the same features, wherever they are."""
        return self.sha256, self.rows, self.columns, len(self.more)

    @property
    def shape(self) -> tuple[int, ...]:
        """``start``, ``rows``, ``columns`` and the positions of further tiles: all that position ids depend on."""
        return self.start, self.rows, self.columns, *self.more


Media = tuple[Picture, ...]
"""Pictures of a prompt, in the order of their tokens."""


def blocks_of(rows: Sequence[Media], offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return (start, length) of every tile of some prompts whose first tokens are at ``offsets``."""
    return [
        (offset + start, picture.tile)
        for media, offset in zip(rows, offsets, strict=True)
        for picture in media
        for start in picture.starts
    ]


def written_media(rows: Sequence[Media]) -> dict[str, Any]:
    """Return the pictures of rows as primitives for a checkpoint, every file once."""
    files = {p.sha256: p.data for media in rows for p in media}
    return {"files": files, "rows": [[(p.sha256, *p.shape) for p in media] for media in rows]}


def read_media(written: Mapping[str, Any] | None) -> tuple[Media, ...] | None:
    """Restore the result of :func:`written_media`."""
    if written is None:
        return None
    files = written["files"]
    return tuple(
        tuple(Picture(files[sha], sha, start, rows, columns, tuple(more)) for sha, start, rows, columns, *more in row)
        for row in written["rows"]
    )
