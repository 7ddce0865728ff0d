"""Summarise a run for people: ``summary.json``, ``report.png``, and a table on the terminal."""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.table import Table

from gspo_lightning.core.escape import terminal
from gspo_lightning.core.metric_table.table import lookup
from gspo_lightning.report.answers import keep_thumbnails
from gspo_lightning.report.page import write_report
from gspo_lightning.resume import write_text
from gspo_lightning.resume.changes import versions
from gspo_lightning.training.callbacks.folder import gspo_module, run_folder
from gspo_lightning.training.callbacks.held_out_answers import HeldOutAnswers, picture_names, small_files
from gspo_lightning.training.callbacks.run_logger import scalars_of
from gspo_lightning.training.callbacks.sink import Sink
from gspo_lightning.training.module import GSPOModule

KEPT = 16
"""Held-out answers of an evaluation from which examples are chosen."""


class RunSummary(Callback):
    """Summary before and after training, in numbers and example completions; tracks 8 held-out prompts over time.

    Args:
        examples: held-out prompts whose answers are shown, before and after.
        report: also draw ``report.png``, and log it as ``report`` to the loggers that can show pictures.
    """

    def __init__(self, examples: int = 3, report: bool = True) -> None:
        self.examples, self.report = examples, report
        self._start = time.monotonic()
        self._clipped: list[float] = []
        self._before: dict[str, Any] = {}
        self._answers = HeldOutAnswers()

    def state_dict(self) -> dict[str, Any]:
        """Return the first evaluation, the clip fractions and the elapsed time, for a resumed run."""
        return {"before": self._before, "clipped": self._clipped, "seconds": time.monotonic() - self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self._before, self._clipped = state_dict["before"], state_dict["clipped"]
        self._start = time.monotonic() - state_dict["seconds"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop held-out answers of a killed run from after the checkpoint that it resumes from."""
        self._answers.resume(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the answers, and the first evaluation as the one before the first update."""
        if trainer.state.fn != "fit":
            return
        module = gspo_module(pl_module)
        self._answers.add(trainer, module)
        if not self._before:
            last = module.evaluator.last
            found = {"accuracy": last.get("val/accuracy"), "reward": last.get("val/reward")}
            self._before = {**found, "answers": _answers(module)}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Record the fraction of clipped tokens."""
        if (value := gspo_module(pl_module).last_update.get("clip/tokens")) is not None:
            self._clipped.append(value)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate the final policy if the last evaluation is older."""
        module = gspo_module(pl_module)
        if (
            module.data.val is not None
            and module.evaluator.history
            and module.evaluator.history[-1][0] != trainer.global_step
        ):
            module.evaluate()
            self._answers.add(trainer, module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write and show the summary."""
        folder = run_folder(trainer)
        if not trainer.is_global_zero:
            return
        summary = self._summary(trainer, gspo_module(pl_module))
        named = {name for example in summary["examples"] for name in example.get("pictures", ())}
        for rollout in gspo_module(pl_module).evaluator.examples[:KEPT]:
            if named & {picture.sha256 for picture in rollout.prompt.media}:
                keep_thumbnails(folder, small_files(rollout.prompt.media))
        write_text(folder / "summary.json", json.dumps(summary, indent=2, default=str) + "\n")
        for logger in trainer.loggers:
            logger.save()
        drawn = self.report and any(folder.glob("events.*"))
        picture = write_report([folder], folder, scalars_of(trainer.loggers)) if drawn else None
        if picture is not None:
            Sink.of(trainer).picture("report", picture, trainer.global_step)
        show(summary, folder, picture)

    def _summary(self, trainer: Trainer, module: GSPOModule) -> dict[str, Any]:
        after = _answers(module)
        examples = [
            {
                "prompt": a["prompt"],
                "answer": a["answer"],
                "before": self._before["answers"][key]["completion"],
                "after": a["completion"],
                **{name: a[name] for name in ("pictures",) if name in a},
            }
            for key, a in after.items()
            if key in self._before.get("answers", {})
        ]
        changed = sorted(examples, key=lambda e: e["before"] == e["after"])
        last, correct = module.evaluator.last, module.shown_by == "accuracy"
        return {
            "accuracy_before": self._before.get("accuracy") if correct else None,
            "accuracy_after": last.get("val/accuracy") if correct else None,
            "reward_before": self._before.get("reward"),
            "reward_after": last.get("val/reward"),
            "evaluated_at_update": module.evaluator.history[-1][0] if module.evaluator.history else None,
            "iterations": module.data.loader.iteration + 1,
            "updates": trainer.global_step,
            "seconds": round(time.monotonic() - self._start, 2),
            "objective": type(module.objective).__name__,
            "objective_settings": repr(module.objective),
            "model": module.settings.name_or_path,
            "seed": module.data.settings.seed,
            "clip_fraction_tokens": sum(self._clipped) / len(self._clipped) if self._clipped else None,
            "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            "last_update": module.last_update,
            "examples": changed[: self.examples],
            "versions": versions(),
            "machine": _machine(trainer),
        }


def _machine(trainer: Trainer) -> dict[str, Any]:
    """Return what the run ran on."""
    device = trainer.strategy.root_device
    return {
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "ranks": trainer.world_size,
        "precision": str(trainer.precision),
    }


def _answers(module: GSPOModule) -> dict[str, dict[str, Any]]:
    """Return the held-out answers, keyed by the prompt's text and the hashes of its pictures."""
    return {
        "\n".join([r.prompt.text, *(picture.sha256 for picture in r.prompt.media)]): {
            "prompt": r.prompt.text,
            "completion": r.transcript,
            "answer": str(r.prompt.columns.get("answer", "")),
            **picture_names(r.prompt.media),
        }
        for r in module.evaluator.examples[:KEPT]
    }


def show(summary: dict[str, Any], folder: Path, picture: Path | None) -> None:
    """Print the table, the examples and the paths."""
    console = terminal()
    table = Table(title=f"{summary['objective']}, seed {summary['seed']}: before and after", title_justify="left")
    for heading in ("prompt", "answer", "before", "after"):
        table.add_column(heading, overflow="fold")
    correct = summary["accuracy_after"] is not None or summary["reward_after"] is None
    name, style = ("accuracy", _percent) if correct else ("reward", _number)
    found = [style(summary[f"{name}_{when}"]) for when in ("before", "after")]
    table.add_row(f"held-out {'accuracy' if correct else 'mean reward'}", "", *found, end_section=True)
    for e in summary["examples"]:
        table.add_row(e["prompt"], e["answer"], e["before"], e["after"])
    console.print(table)
    console.print(
        f"{summary['iterations']} iterations, {summary['updates']} updates, {summary['seconds']:.0f} s, "
        f"peak memory {summary['peak_memory_mb'] / 1024:.2f} GiB, "
        f"tokens clipped {_percent(summary['clip_fraction_tokens'])}"
    )
    paths = {"run folder": folder, "summary": folder / "summary.json", "picture": picture}
    for name, path in paths.items():
        if path is not None:
            console.print(f"{name + ':':<12}{_short(path)}", soft_wrap=True)
    console.print(f"{'curves:':<12}tensorboard --logdir {_short(folder.parent)}", soft_wrap=True)


def show_evaluation(values: Mapping[str, float]) -> None:
    """Print the results of an evaluation; fractions are shown as per cent."""
    table = Table(title="held-out prompts", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in values.items():
        spec = lookup(name)
        fraction = spec is not None and "fraction" in spec.unit
        table.add_row(name, f"{100 * value:.2f}%" if fraction else f"{value:.4g}")
    terminal().print(table)


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{100 * value:.1f}%"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"


def _short(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
