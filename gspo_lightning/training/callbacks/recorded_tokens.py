"""Record which tokens of a few responses every update moved, for ``gspo view``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.types import MiniBatch
from gspo_lightning.report.answers import keep_thumbnails, thumbnail_file
from gspo_lightning.report.tokens import TokensFile
from gspo_lightning.training.callbacks.folder import gspo_module, run_folder
from gspo_lightning.training.callbacks.held_out_answers import small_files
from gspo_lightning.training.callbacks.sheet import SHOWN

log = logging.getLogger(__name__)


class RecordedTokens(Callback):
    """Writes ``rollout_tokens.jsonl``: rows of ``data.record_tokens`` responses of an iteration, at their updates.

    The rows are those of the first rank. Thumbnails of their pictures go to ``pictures/``. A resumed run continues the
    file where its checkpoint left it. If the file cannot be written, the run goes on without it.
    """

    def __init__(self) -> None:
        self._file: TokensFile | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop what a killed run wrote after the checkpoint that it resumes from."""
        folder = run_folder(trainer)
        if trainer.is_global_zero:
            self._file = TokensFile(folder)
            self._file.cut(trainer.global_step + 1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: MiniBatch, batch_idx: int
    ) -> None:
        """Write the rows of the update that was just made."""
        module = gspo_module(pl_module)
        rows = module.update_metrics.tokens
        if self._file is None or not rows:
            return
        step = trainer.global_step
        bounds = [getattr(module.objective, name, None) for name in ("clip_low", "clip_high")]
        band = None if None in bounds else bounds
        try:
            added = self._file.add(step, [_line(row, step, band, module.tokenizer) for row in rows])
            _keep_pictures(self._file.path.parent, rows[:added], batch)
        except OSError as error:
            log.warning("%s cannot be written (%s): gspo view will lack tokens", self._file.path, error.strerror)
            self._file = None


def _keep_pictures(folder: Path, rows: Sequence[Mapping[str, Any]], batch: MiniBatch) -> None:
    """Write thumbnails of the pictures of recorded rows that the folder lacks."""
    names = {name for row in rows for name in row.get("pictures", ())[:SHOWN]}
    missing = {name for name in names if not (folder / thumbnail_file(name)).exists()}
    for part in batch.micro_batches:
        for media in part.media or ():
            hashes = {picture.sha256 for picture in media}
            if missing & hashes:
                keep_thumbnails(folder, small_files(media))
                missing -= hashes


def _line(
    row: dict[str, Any], update: int, band: list[Any] | None, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """Return a recorded row as a line of the file: tokens as texts, with the clip range as ``band``."""
    rest = {name: value for name, value in row.items() if name not in ("place", "ids", "ages", "tokens")}
    tokens = {"text": token_texts(row["ids"], tokenizer), **row["tokens"]}
    if "ages" in row:
        tokens["age"] = row["ages"]
    return {"update": update, **rest, "band": band, "tokens": tokens}


def token_texts(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the text of each token; of a character that spans several tokens, the last one has it."""
    texts: list[str] = []
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = str(tokenizer.decode(pending, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if text.endswith("\ufffd") and len(pending) < 4:  # UTF-8 has at most 4 bytes: these may be its first ones
            texts.append("")
        else:
            texts.append(text)
            pending = []
    return texts
