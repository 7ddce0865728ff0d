"""TensorBoard beyond scalars: the histogram of s_i and a table of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from gspo_lightning.metrics.sums import RATIO_EDGES

__all__ = ["Dashboard", "sample_table"]


class Dashboard(Callback):
    """Writes ``ratio/histogram`` (s_i of an update) and ``samples`` (completions of an iteration) to TensorBoard.

    Args:
        samples_every: iterations between two sample tables.
    """

    def __init__(self, samples_every: int = 1) -> None:
        self.samples_every = samples_every

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Write under the number of updates so far."""
        step, loader = trainer.global_step, pl_module.data.loader
        first = loader.trained == 1
        for logger in trainer.loggers:
            if not isinstance(logger, TensorBoardLogger):
                continue
            writer = logger.experiment
            if pl_module.histogram_every and step % pl_module.histogram_every == 0:
                _write_histogram(writer, pl_module.ratio_counts, step)
            if first and loader.iteration % self.samples_every == 0:
                writer.add_text("samples", sample_table(loader.experience.examples), step)


def _write_histogram(writer: Any, counts: Sequence[float], step: int) -> None:
    """Counts per bin of log s_i as a histogram of s_i."""
    limits = np.exp(np.append(RATIO_EDGES.numpy(), RATIO_EDGES[-1] + 1.0))
    filled = np.asarray(counts)
    centres = np.append(limits[:1], (limits[1:] + limits[:-1]) / 2)
    if not filled.sum():
        return
    present = np.nonzero(filled)[0]
    writer.add_histogram_raw(
        "ratio/histogram",
        min=float(limits[max(present[0] - 1, 0)]),
        max=float(limits[present[-1]]),
        num=int(filled.sum()),
        sum=float((filled * centres).sum()),
        sum_squares=float((filled * centres**2).sum()),
        bucket_limits=limits.tolist(),
        bucket_counts=filled.tolist(),
        global_step=step,
    )


def sample_table(examples: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of completions with their reward and advantage."""
    lines = ["| prompt | completion | answer | reward | advantage | tokens | finish |", "|---|---|---|---|---|---|---|"]
    for e in examples:
        cells = [_cell(e["prompt"]), _cell(e["completion"]), _cell(e["answer"])]
        reward = "missing" if e["reward"] is None else f"{e['reward']:.3g}"
        lines.append(f"| {' | '.join(cells)} | {reward} | {e['advantage']:+.2f} | {e['tokens']} | {e['finish']} |")
    return "\n".join(lines)


def _cell(text: str, limit: int = 400) -> str:
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "`" + short.replace("`", "'").replace("|", "\\|").replace("\n", "⏎") + "`" if short else " "
