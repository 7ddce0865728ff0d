"""Outputs of a reward-model run: ``results.json``, ``report.png`` and the model in transformers format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from gspo_lightning.core.escape import say
from gspo_lightning.resume.changes import versions
from gspo_lightning.training.callbacks.run_logger import scalars_of
from gspo_lightning.training.reward_models import PreferenceDataModule, RewardModule
from gspo_lightning.training.reward_models.export import export
from gspo_lightning.training.reward_models.held_out import HeldOut
from gspo_lightning.training.reward_models.record import PICTURE, RESULTS, draw, write_record
from gspo_lightning.training.reward_models.weights import reward_model_of

MODEL = "model"


def finish(
    module: RewardModule, data: PreferenceDataModule, trainer: Trainer, folder: Path, config: Mapping[str, Any]
) -> None:
    """Write results, figure and model on the first rank, and print the held-out metrics."""
    if not trainer.is_global_zero:
        return
    _, held_out = module.evaluations[-1]
    results = {
        "held_out": held_out.as_dict(),
        "updates": trainer.global_step,
        "pairs": {name: len(rows) for name, rows in data.rows.items()},
        "dropped": {name: asdict(dropped) for name, dropped in data.dropped.items()},
        "data": data.fingerprints(),
        "reads": data.reads,
        "model": module.settings.name_or_path,
        "seed": data.seed,
        "versions": versions(),
    }
    write_record(folder, results, module.held_out_margins)
    draw(folder / PICTURE, _curves(trainer), held_out, module.held_out_margins)
    content = {
        "config": json.loads(json.dumps(dict(config), default=str)),  # plain values only
        "results": results,
        "updates": trainer.global_step,
        "data": data.fingerprints(),
        "versions": versions(),
        "reads": data.reads,
        "picture": folder / PICTURE,
    }
    model = reward_model_of(module.settings, module.whole_weights())
    export(folder / MODEL, model, module.tokenizer, data.reads, content, [Path(module.settings.name_or_path)])
    say(describe(held_out))
    say(f"results: {folder / RESULTS}, {PICTURE}\nmodel:   {folder / MODEL}")


def describe(held_out: HeldOut) -> str:
    """Format the held-out results in one line."""
    accuracy = held_out.accuracy
    interval = ""
    if accuracy.low is not None and accuracy.high is not None:
        interval = f" (95% interval {accuracy.low:.3f} to {accuracy.high:.3f})"
    return (
        f"held-out accuracy {accuracy.value:.3f}{interval}, calibration error {held_out.ece:.3f}, "
        f"{held_out.pairs:,} pairs of {held_out.prompts:,} prompts"
    )


def _curves(trainer: Trainer) -> dict[str, list[tuple[int, float]]]:
    scalars = scalars_of(trainer.loggers)
    if scalars is None:
        return {}
    curves = {}
    for tag, series in scalars.series().items():
        curves[tag] = list(zip(series.steps.tolist(), series.values.tolist(), strict=True))
    return curves
