"""Read the file of a picture given as path, bytes, base64, cell of ``datasets`` or image of Pillow.

A file is decoded once before the run, within limits, so that none fails during a rollout.
"""

from __future__ import annotations

import base64
import binascii
import io
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError
from urllib.request import urlopen

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.policy.vision.image_processor import rgb

MOST_PIXELS = 50_000_000
"""Largest width x height of a file: decoding more takes gigabytes. Models read far fewer pixels."""
MOST_BYTES = 64 << 20
"""Largest size of a file in bytes."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_TIMEOUT_S = 20.0
"""Seconds without a byte after which a download fails."""
_DEADLINE_S = 120.0
"""Seconds within which a whole file must come."""


@dataclass(frozen=True)
class Pictures:
    """Settings for reading the pictures of prompts (docs/vision.md)."""

    max_pixels: int | None = None
    """Pixels (width x height) above which a picture is scaled down; None takes the limit of the model's processor."""
    bad: Literal["stop", "drop"] = "stop"
    """On a picture that cannot be read: ``stop`` the run before the first rollout, or ``drop`` its record."""
    urls: bool = False
    """Download pictures that a record names by an http(s) address: whoever wrote the data learns who trains on it."""

    def __post_init__(self) -> None:
        if self.max_pixels is not None and self.max_pixels < 1:
            raise UserError("data.pictures.max_pixels", f"is {self.max_pixels}; it must be at least 1")
        if self.bad not in ("stop", "drop"):
            raise UserError("data.pictures.bad", f"is {self.bad!r}; it must be stop or drop")


class BadPictureError(ValueError):
    """A picture that cannot be read; the text gives the reason and shows nothing of the record."""


def picture_file(value: Any, *, urls: bool = False) -> bytes:
    """Return the bytes of a picture's file.

    Raises:
        BadPictureError: there is no file, it is too large, or it may not be downloaded.
    """
    if isinstance(value, Mapping):  # datasets' Image has bytes or a path, OpenAI's format a URL
        values = (value.get(name) for name in ("bytes", "path", "url"))
        value = next((part for part in values if part is not None), None)
    if isinstance(value, str):
        return _named(value, urls)
    if isinstance(value, bytes | bytearray | memoryview):
        return _limited(bytes(value))
    if hasattr(value, "save") and hasattr(value, "mode"):  # Pillow's, without importing it
        file = io.BytesIO()
        try:
            value.save(file, "PNG")
        except (OSError, ValueError) as error:
            raise BadPictureError(f"cannot be written as PNG: {first_line(error)}") from error
        return file.getvalue()
    raise BadPictureError(f"is {type(value).__name__}, neither a path, nor bytes, nor an image of Pillow")


def picture_size(data: bytes) -> tuple[int, int]:
    """Decode a file to its end and return width and height.

    Raises:
        BadPictureError: not a picture, damaged, or too large to decode safely.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings about large pictures, which are refused here
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
            if width * height > MOST_PIXELS:
                raise BadPictureError(f"has {width} x {height} pixels; {MOST_PIXELS:,} are the most that are decoded")
            if not width or not height:
                raise BadPictureError(f"has {width} x {height} pixels")
            return rgb(data).size
    except UnidentifiedImageError as error:
        raise BadPictureError(f"is no picture ({', '.join(FORMATS)})") from error
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        if isinstance(error, BadPictureError):
            raise
        raise BadPictureError(f"is damaged: {first_line(error)}") from error


def _named(text: str, urls: bool) -> bytes:
    if text.startswith(("http://", "https://")):
        return _downloaded(text, urls)
    if text.startswith("data:"):
        head, comma, encoded = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise BadPictureError("is a data address that is not base64")
        return _decoded(encoded)
    text = text.removeprefix("file://")
    try:
        if Path(text).is_file():
            if Path(text).stat().st_size > MOST_BYTES:
                raise BadPictureError(f"is a file of more than {MOST_BYTES >> 20} MiB")
            return Path(text).read_bytes()
    except PermissionError as error:
        raise BadPictureError(f"cannot be read: {error.strerror}") from error
    except (OSError, ValueError):  # too long for a path, a null character
        return _decoded(text)
    if len(text) < 64 or "." in text:
        raise BadPictureError("is the path of a file that does not exist")
    return _decoded(text)


def _decoded(text: str) -> bytes:
    try:
        return _limited(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        if isinstance(error, BadPictureError):
            raise
        raise BadPictureError("is neither the path of a file nor base64") from error


def _downloaded(address: str, allowed: bool) -> bytes:
    if not allowed:
        raise BadPictureError("is an address, and data.pictures.urls does not allow downloads")
    try:
        with urlopen(address, timeout=_TIMEOUT_S) as answer:
            data = bytearray()
            until = time.monotonic() + _DEADLINE_S
            while len(data) <= MOST_BYTES and (piece := answer.read1(1 << 16)):
                data += piece
                if time.monotonic() > until:
                    raise BadPictureError(f"cannot be downloaded within {_DEADLINE_S:g} s")
            return _limited(bytes(data))
    except (URLError, HTTPException, OSError, ValueError) as error:
        if isinstance(error, BadPictureError):
            raise
        raise BadPictureError(f"cannot be downloaded: {first_line(error)}") from error


def _limited(data: bytes) -> bytes:
    if len(data) > MOST_BYTES:
        raise BadPictureError(f"is a file of more than {MOST_BYTES >> 20} MiB")
    return data
