"""Write a layout of charts, histograms, and tables of samples to the loggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.callbacks.dashboard.layout import GUIDE, layout
from gspo_lightning.callbacks.learner import learner
from gspo_lightning.callbacks.sink.sheet import Answer
from gspo_lightning.callbacks.sink.sink import Sink
from gspo_lightning.metrics.sums import RATIO_EDGES
from gspo_lightning.prompts.pictures.thumbnails import thumbnails

__all__ = ["RATIO_BINS", "Dashboard"]

RATIO_BINS = np.append(0.0, np.exp(np.append(RATIO_EDGES.numpy(), RATIO_EDGES[-1] + 1.0)))
"""Bin edges of a ratio, [bins + 1]; those of its logarithm are ``RATIO_EDGES``, and the outer two bins are open."""

DISTRIBUTIONS = {
    "reward/histogram": "reward",
    "reward/advantage_histogram": "advantage",
    "response/length_histogram": "length",
}
"""Tag -> name of the values per response of an iteration."""

SAMPLE_COLUMNS = ("shown as", "prompt", "completion", "answer", "reward", "advantage", "tokens", "finish")


class Dashboard(Callback):
    """Writes the layout, histograms of ratios, rewards and lengths, and ``samples`` to the loggers that can show them.

    If prompts have pictures, it also writes ``sample_pictures``: the same samples beside their pictures.

    Args:
        samples_every: iterations between two sample tables; None writes them at evaluations (every 10 iterations if
            there are none).
    """

    def __init__(self, samples_every: int | None = None) -> None:
        self.samples_every = samples_every

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the layout of the charts and the page that explains them."""
        module = learner(pl_module)
        data = module.data
        charts = layout(
            routers=module.policy.routing is not None,
            reference=module.reference is not None,
            staleness=data.partial is not None or data.settings.max_staleness > 0,
        )
        sink = Sink.of(trainer)
        sink.layout(charts)
        sink.text("how_to_read", GUIDE, trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Write histograms and samples under the number of updates so far."""
        module, sink = learner(pl_module), Sink.of(trainer)
        step, loader = trainer.global_step, module.data.loader
        if histograms_due(step, step, module.histogram_every):
            for tag, counts in module.meter.histograms.items():
                sink.counts(tag, np.asarray(counts), RATIO_BINS, step)
        if loader.trained != 1:  # the rest is per iteration, and written with its first update
            return
        last = step + module.data.settings.updates_per_iteration - 1
        for tag, name in DISTRIBUTIONS.items() if histograms_due(step, last, module.histogram_every) else ():
            sink.values(tag, np.asarray(loader.experience.distributions.get(name, ()), dtype=np.float64), step)
        evaluated = trainer.check_val_every_n_epoch if module.data.val is not None else 10
        if loader.iteration == 0 or (loader.iteration + 1) % (self.samples_every or evaluated or 1) == 0:
            rows = [sample_row(example) for example in loader.experience.examples]
            sink.table("samples", SAMPLE_COLUMNS, rows, step, code=("prompt", "completion", "answer"))
            if trainer.is_global_zero:
                pairs = zip(loader.experience.examples, rows, strict=True)
                sink.sheet("sample_pictures", [_answer(example, row) for example, row in pairs], step)


def histograms_due(first: int, last: int, every: int) -> bool:
    """True if an update from ``first`` to ``last`` writes histograms: the run's first, and every ``every``-th.

    >>> [step for step in range(1, 9) if histograms_due(step, step, 4)]
    [1, 4, 8]
    >>> histograms_due(5, 8, 7), histograms_due(1, 1, 0)
    (True, False)
    """
    return every > 0 and (first == 1 or last // every > (first - 1) // every)


def sample_row(example: Mapping[str, Any]) -> list[str]:
    """Return the cells of :data:`SAMPLE_COLUMNS`: why a sample is shown, its texts, reward and advantage."""
    reward = "missing" if example["reward"] is None else f"{example['reward']:.3g}"
    said = [example["prompt"], example["completion"], example["answer"]]
    numbers = [reward, f"{example['advantage']:+.2f}", str(example["tokens"]), str(example["finish"])]
    return [example.get("shown_as", ""), *said, *numbers]


def _answer(example: Mapping[str, Any], row: list[str]) -> Answer:
    texts = list(zip(SAMPLE_COLUMNS, row, strict=True))
    media = example.get("media", ())
    return Answer(thumbnails(media), len(media), texts)
