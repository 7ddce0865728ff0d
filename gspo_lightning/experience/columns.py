"""What rewards read of a prompt's record: its columns, and the files of its pictures where one asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gspo_lightning.rewards.by_record import Judges
from gspo_lightning.types import Prompt

__all__ = ["columns_of"]


def columns_of(prompt: Prompt, judges: Judges | None) -> Mapping[str, Any]:
    """The columns of a prompt; with ``images``, a list of bytes, if a reward names that and the prompt has pictures."""
    if not prompt.media or judges is None or not judges.reads_images:
        return prompt.columns
    return {**prompt.columns, "images": [picture.data for picture in prompt.media]}
