"""Columns for rewards: those of a prompt's record, with its picture files if a reward asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gspo_lightning.rewards.by_record import Judges
from gspo_lightning.types import Prompt

__all__ = ["columns_of"]


def columns_of(prompt: Prompt, judges: Judges | None) -> Mapping[str, Any]:
    """Return a prompt's columns, with ``images`` (a list of bytes) if a reward uses it and the prompt has pictures."""
    if not prompt.media or judges is None or not judges.reads_images:
        return prompt.columns
    return {**prompt.columns, "images": [picture.data for picture in prompt.media]}
