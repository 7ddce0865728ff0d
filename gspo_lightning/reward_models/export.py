"""Export of a reward model: a folder in transformers format, with tokenizer and model card."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_lightning.policy.classifier import set_pad
from gspo_lightning.resume.exports import exported_folder
from gspo_lightning.reward_models.card import CARD, card
from gspo_lightning.reward_models.rows import Text
from gspo_lightning.unfinished import share

__all__ = ["READS", "export"]

READS = "gspo_reads"
"""Key of a model's config: the text format it was trained on, ``joined`` or ``chat``."""


def export(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    reads: Text,
    content: Mapping[str, Any],
    sources: Iterable[Path] = (),
) -> None:
    """Write the folder, whole or not at all; an existing export is replaced.

    ``AutoModelForSequenceClassification.from_pretrained(folder)`` loads it, and ``SequenceClassificationReward`` takes
    the folder as it is.

    Args:
        folder: to write.
        model: with adapters merged.
        tokenizer: of the model.
        reads: text format it was trained on.
        content: of the card, see :func:`gspo_lightning.reward_models.card.card`.
        sources: files and folders that are still needed, so the folder must not hold them.

    Raises:
        UserError: the folder exists and is not an export.
    """
    setattr(model.config, READS, reads)
    set_pad(model, tokenizer.pad_token_id)
    with exported_folder(folder, sources) as unfinished:
        model.save_pretrained(unfinished)
        share(unfinished, unfinished / "config.json")
        tokenizer.save_pretrained(unfinished)
        if (picture := content.get("picture")) is not None and Path(picture).is_file():
            shutil.copyfile(picture, unfinished / Path(picture).name)
        (unfinished / CARD).write_text(card(content), encoding="utf-8")
