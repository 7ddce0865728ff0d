"""Thumbnails of a prompt's pictures, for people who look at answers."""

from __future__ import annotations

import io

from gspo_lightning.pictures import Media
from gspo_lightning.policy.vision.sight import rgb

__all__ = ["SHOWN", "SIDE", "thumbnails"]

SHOWN = 3
"""Most pictures shown for a prompt."""
SIDE = 160
"""Most pixels of a thumbnail along its longer side: a file stays below 80 KB whatever it shows."""
_ENLARGED = 96
"""Pixels along the longer side up to which a smaller picture is enlarged, by a whole factor."""


def thumbnails(media: Media) -> list[bytes]:
    """Return PNG files of the first pictures of a prompt: at most :data:`SHOWN`, up to :data:`SIDE` pixels a side."""
    return [_thumbnail(picture.data) for picture in media[:SHOWN]]


def _thumbnail(data: bytes) -> bytes:
    from PIL.Image import Resampling

    image = rgb(data)
    image.info.clear()  # pixels only: drop metadata such as location and text
    if (factor := _ENLARGED // max(image.size)) > 1:
        image = image.resize((factor * image.width, factor * image.height), Resampling.NEAREST)
    image.thumbnail((SIDE, SIDE), Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
