"""TensorBoard beyond scalars: a layout that needs no setup, histograms, and tables of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from gspo_lightning.callbacks.dashboard.layout import GUIDE, layout
from gspo_lightning.metrics.sums import RATIO_EDGES
from gspo_lightning.training.module import learner

__all__ = ["Dashboard", "sample_table", "write_ratios"]

DISTRIBUTIONS = {
    "reward/histogram": "reward",
    "reward/advantage_histogram": "advantage",
    "response/length_histogram": "length",
}
"""Tag -> what is known of each response of an iteration."""


class Dashboard(Callback):
    """Writes the layout, histograms of ratios, rewards and lengths, and ``samples`` to TensorBoard.

    Args:
        samples_every: iterations between two sample tables.
    """

    def __init__(self, samples_every: int = 1) -> None:
        self.samples_every = samples_every

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Arrange the tab "Custom Scalars" and say how to read it."""
        module = learner(pl_module)
        data = module.data
        charts = layout(
            routers=module.policy.routing is not None,
            reference=module.reference is not None,
            staleness=data.partial is not None or data.max_staleness > 0,
        )
        for writer in _writers(trainer):
            writer.add_custom_scalars(charts)
            writer.add_text("how_to_read", GUIDE, trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Write under the number of updates so far."""
        module = learner(pl_module)
        step, loader = trainer.global_step, module.data.loader
        first = loader.trained == 1
        for writer in _writers(trainer):
            if module.histogram_every and step % module.histogram_every == 0:
                for tag, counts in module.meter.histograms.items():
                    write_ratios(writer, tag, counts, step)
            if first:
                for tag, name in DISTRIBUTIONS.items():
                    values = np.asarray(loader.experience.distributions.get(name, ()))
                    if (known := values[~np.isnan(values)]).size:
                        writer.add_histogram(tag, known, step)
            if first and loader.iteration % self.samples_every == 0:
                writer.add_text("samples", sample_table(loader.experience.examples), step)


def _writers(trainer: Trainer) -> list[Any]:
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def write_ratios(writer: Any, tag: str, counts: Sequence[float], step: int) -> None:
    """Counts per bin of a log-ratio as a histogram of the ratio."""
    limits = np.exp(np.append(RATIO_EDGES.numpy(), RATIO_EDGES[-1] + 1.0))
    filled = np.asarray(counts)
    centres = np.append(limits[:1], (limits[1:] + limits[:-1]) / 2)
    if not filled.sum():
        return
    present = np.nonzero(filled)[0]
    writer.add_histogram_raw(
        tag,
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
    """A Markdown table of completions with their reward and advantage, and why each is shown."""
    lines = [
        "| shown as | prompt | completion | answer | reward | advantage | tokens | finish |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for e in examples:
        cells = [_cell(e["prompt"]), _cell(e["completion"]), _cell(e["answer"])]
        reward = "missing" if e["reward"] is None else f"{e['reward']:.3g}"
        numbers = f"{reward} | {e['advantage']:+.2f} | {e['tokens']} | {e['finish']}"
        lines.append(f"| {e.get('shown_as', '')} | {' | '.join(cells)} | {numbers} |")
    return "\n".join(lines)


def _cell(text: str, limit: int = 400) -> str:
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "`" + short.replace("`", "'").replace("|", "\\|").replace("\n", "⏎") + "`" if short else " "
