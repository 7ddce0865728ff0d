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
    found = module.evaluations[-1][1]
    results = {
        "held_out": found.as_dict(),
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
    draw(folder / PICTURE, _curves(trainer), found, module.held_out_margins)
    content = {
        "config": json.loads(json.dumps(dict(config), default=str)), "results": results, "updates": trainer.global_step,
        "data": data.fingerprints(), "versions": versions(), "reads": data.reads, "picture": folder / PICTURE,
    }  # fmt: skip
    model = reward_model_of(module.settings, module.whole_weights())
    export(folder / MODEL, model, module.tokenizer, data.reads, content, [Path(module.settings.name_or_path)])
    say(describe(found))
    say(f"results: {folder / RESULTS}, {PICTURE}\nmodel:   {folder / MODEL}")


def describe(found: HeldOut) -> str:
    """Format the held-out results in one line."""
    low, high = found.accuracy.low, found.accuracy.high
    interval = "" if low is None or high is None else f" (95% interval {low:.3f} to {high:.3f})"
    return (
        f"held-out accuracy {found.accuracy.value:.3f}{interval}, calibration error {found.ece:.3f}, "
        f"{found.pairs:,} pairs of {found.prompts:,} prompts"
    )


def _curves(trainer: Trainer) -> dict[str, list[tuple[int, float]]]:
    scalars = scalars_of(trainer.loggers)
    if scalars is None:
        return {}
    return {tag: list(zip(s.steps.tolist(), s.values.tolist(), strict=True)) for tag, s in scalars.series().items()}
