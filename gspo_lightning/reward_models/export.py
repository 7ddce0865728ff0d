"""A reward model as a folder in transformers format, with tokenizer and model card."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_lightning.faults import written
from gspo_lightning.policy.classifier import set_pad
from gspo_lightning.reward_models.card import CARD, card
from gspo_lightning.reward_models.rows import Text
from gspo_lightning.unfinished import beside, remove, sweep

__all__ = ["READS", "export"]

READS = "gspo_reads"
"""Of a model's config: what it was trained to read, ``joined`` or ``chat``."""


def export(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, reads: Text, content: Mapping[str, Any]
) -> None:
    """Write the folder, whole or not at all; one that is there is replaced.

    ``AutoModelForSequenceClassification.from_pretrained(folder)`` loads it, and ``SequenceClassificationReward`` takes
    the folder as it is.

    Args:
        folder: to write.
        model: with adapters merged.
        tokenizer: of the model.
        reads: what it was trained on.
        content: of the card, see :func:`gspo_lightning.reward_models.card.card`.
    """
    setattr(model.config, READS, reads)
    set_pad(model, tokenizer.pad_token_id)
    unfinished = beside(folder)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder.parent, folder.name)
    remove(unfinished)
    with written(str(folder), unfinished):
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        if (picture := content.get("picture")) is not None and Path(picture).is_file():
            shutil.copyfile(picture, unfinished / Path(picture).name)
        (unfinished / CARD).write_text(card(content), encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(unfinished, folder)
