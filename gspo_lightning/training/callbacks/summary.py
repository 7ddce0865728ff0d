"""Summarise a run for people: ``summary.json``, ``report.png``, and a table on the terminal."""

from __future__ import annotations

import json
import logging
import os
import platform
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.table import Table

from gspo_lightning.core.errors import first_line
from gspo_lightning.core.escape import terminal
from gspo_lightning.core.metric_table.table import lookup
from gspo_lightning.report.answers import keep_thumbnails
from gspo_lightning.report.page import read_runs, write_runs
from gspo_lightning.report.run import Run
from gspo_lightning.report.scalars import Scalars
from gspo_lightning.report.verdicts import verdicts
from gspo_lightning.report.words import result
from gspo_lightning.resume import write_text
from gspo_lightning.resume.changes import versions
from gspo_lightning.training.callbacks.folder import gspo_module, run_folder
from gspo_lightning.training.callbacks.held_out_answers import HeldOutAnswers, picture_names, small_files
from gspo_lightning.training.callbacks.run_logger import scalars_of
from gspo_lightning.training.callbacks.sink import Sink
from gspo_lightning.training.module import GSPOModule

log = logging.getLogger(__name__)
KEPT = 16
"""Held-out answers of an evaluation from which examples are chosen."""
MOST_ADVICE = 4
"""Verdicts that the end of a run shows; the report has all."""


class RunSummary(Callback):
    """Summary before and after training, in numbers and example completions; tracks 8 held-out prompts over time.

    Args:
        examples: held-out prompts whose answers are shown, before and after.
        report: also draw ``report.png``, and log it as ``report`` to the loggers that can show pictures.
    """

    def __init__(self, examples: int = 3, report: bool = True) -> None:
        self.examples = examples
        self.report = report
        self._start = time.monotonic()
        self._clipped: list[float] = []
        self._before: dict[str, Any] = {}
        self._answers = HeldOutAnswers()

    def state_dict(self) -> dict[str, Any]:
        """Return the first evaluation, the clip fractions and the elapsed time, for a resumed run."""
        return {"before": self._before, "clipped": self._clipped, "seconds": time.monotonic() - self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self._before = state_dict["before"]
        self._clipped = state_dict["clipped"]
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
            self._before = {
                "accuracy": last.get("val/accuracy"),
                "reward": last.get("val/reward"),
                "answers": _answers(module),
            }

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Record the fraction of clipped tokens."""
        clipped = gspo_module(pl_module).last_update.get("clip/tokens")
        if clipped is not None:
            self._clipped.append(clipped)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate the final policy if the last evaluation is older."""
        module = gspo_module(pl_module)
        history = module.evaluator.history
        if module.data.val is not None and history and history[-1][0] != trainer.global_step:
            module.evaluate()
            self._answers.add(trainer, module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write and show the summary."""
        folder = run_folder(trainer)
        if not trainer.is_global_zero:
            return
        module = gspo_module(pl_module)
        summary = self._summary(trainer, module)
        pictures = {name for example in summary["examples"] for name in example.get("pictures", ())}
        for rollout in module.evaluator.examples[:KEPT]:
            if pictures & {picture.sha256 for picture in rollout.prompt.media}:
                keep_thumbnails(folder, small_files(rollout.prompt.media))
        write_text(folder / "summary.json", json.dumps(summary, indent=2, default=str) + "\n")
        for logger in trainer.loggers:
            logger.save()
        runs, line = read_back(folder, scalars_of(trainer.loggers))
        picture = None
        if runs and self.report and any(folder.glob("events.*")):
            picture = write_runs(runs, folder)
        if picture is not None:
            Sink.of(trainer).picture("report", picture, trainer.global_step)
        show(summary, folder, line, advice(runs), picture)

    def _examples(self, module: GSPOModule) -> list[dict[str, Any]]:
        """Return answers to the same prompts before and after training; those that changed come first."""
        before = self._before.get("answers", {})
        examples = []
        for key, after in _answers(module).items():
            if key not in before:
                continue
            example = {"prompt": after["prompt"], "answer": after["answer"]}
            example |= {"before": before[key]["completion"], "after": after["completion"]}
            if "pictures" in after:
                example["pictures"] = after["pictures"]
            examples.append(example)
        examples.sort(key=lambda example: bool(example["before"] == example["after"]))
        return examples[: self.examples]

    def _summary(self, trainer: Trainer, module: GSPOModule) -> dict[str, Any]:
        history = module.evaluator.history
        last = module.evaluator.last
        has_accuracy = module.shown_by == "accuracy"
        return {
            "accuracy_before": self._before.get("accuracy") if has_accuracy else None,
            "accuracy_after": last.get("val/accuracy") if has_accuracy else None,
            "reward_before": self._before.get("reward"),
            "reward_after": last.get("val/reward"),
            "evaluated_at_update": history[-1][0] if history else None,
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
            "examples": self._examples(module),
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
    answers = {}
    for rollout in module.evaluator.examples[:KEPT]:
        prompt = rollout.prompt
        key = "\n".join([prompt.text, *(picture.sha256 for picture in prompt.media)])
        answers[key] = {
            "prompt": prompt.text,
            "completion": rollout.transcript,
            "answer": str(prompt.columns.get("answer", "")),
            **picture_names(prompt.media),
        }
    return answers


def read_back(folder: Path, scalars: Scalars | None) -> tuple[list[Run], str | None]:
    """Return the run of a folder and its result as ``gspo report`` gives it; nothing, with a warning, if that fails."""
    try:
        runs = read_runs([folder], scalars)
        line = result(runs[0])
    except Exception as error:  # training is over and its summary written: no damage may make a failure of it
        fault = f"{type(error).__name__}: {first_line(error)}"
        log.warning("%s cannot be read back (%s): there is no report; training is not concerned", folder, fault)
        return [], None
    return runs, f"{line} (brackets: 95 % interval)" if "[" in line else line


def advice(runs: Sequence[Run]) -> list[str]:
    """Return a line for each verdict on a run that asks for something to be looked at or changed, the worst first."""
    lines = [verdict.line for run in runs for verdict in verdicts(run) if verdict.level in ("bad", "look")]
    return lines[:MOST_ADVICE]


def show(summary: dict[str, Any], folder: Path, line: str | None, advice: Sequence[str], picture: Path | None) -> None:
    """Print the table, the examples, the line with the result and its interval, what looks wrong, and the paths."""
    console = terminal()
    table = Table(title=f"{summary['objective']}, seed {summary['seed']}: before and after", title_justify="left")
    for heading in ("prompt", "answer", "before", "after"):
        table.add_column(heading, overflow="fold")
    if summary["accuracy_after"] is not None or summary["reward_after"] is None:
        results = ["held-out accuracy", "", *(_percent(summary[f"accuracy_{time}"]) for time in ("before", "after"))]
    else:
        results = ["held-out mean reward", "", *(_number(summary[f"reward_{time}"]) for time in ("before", "after"))]
    table.add_row(*results, end_section=True)
    for example in summary["examples"]:
        table.add_row(example["prompt"], example["answer"], example["before"], example["after"])
    console.print(table)
    if line is not None:
        console.print(line, soft_wrap=True)
    for sentence in advice:
        console.print(sentence, soft_wrap=True, markup=False, highlight=False)
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
    console.print(f"{'page:':<12}gspo view {_short(folder)}", soft_wrap=True)


def show_evaluation(values: Mapping[str, float]) -> None:
    """Print the results of an evaluation; fractions are shown as per cent."""
    table = Table(title="held-out prompts", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in values.items():
        spec = lookup(name)
        is_fraction = spec is not None and "fraction" in spec.unit
        table.add_row(name, f"{100 * value:.2f}%" if is_fraction else f"{value:.4g}")
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
