"""Settings for reading the pictures of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gspo_lightning.errors import UserError

__all__ = ["Pictures"]


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
