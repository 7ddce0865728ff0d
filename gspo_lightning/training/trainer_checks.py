"""Refuse Lightning options and callbacks whose meaning would differ in this package.

docs/lightning.md lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    SpikeDetection,
    StochasticWeightAveraging,
    WeightAveraging,
)

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.metric_table.spec import FULL, METRICS
from gspo_lightning.core.metric_table.table import lookup
from gspo_lightning.loop.metrics.sums import Level

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from gspo_lightning.training.data import PromptDataModule

_REFUSED: tuple[tuple[type[Callback], str, str], ...] = (
    (
        GradientAccumulationScheduler,
        "would make one update of several, but one batch here is one whole optimizer step",
        "leave it out and bound memory by data.max_tokens_per_micro_batch",
    ),
    (
        StochasticWeightAveraging,
        "copies the whole module and replaces its learning rate schedule",
        "use WeightAveraging (the plain mean) or EMAWeightAveraging",
    ),
    (
        BatchSizeFinder,
        "has no batch size to find: a batch is a mini-batch of an iteration",
        "set data.max_tokens_per_micro_batch; a run that runs out of memory halves it by itself",
    ),
    (
        LearningRateFinder,
        "reads a loss that falls, but the loss here is 0 on fresh rollouts and does not fall as the policy gets better",
        "compare a few short runs: gspo compare",
    ),
    (
        ModelPruning,
        "puts masks over weights, which samplers, snapshots and exports would not see",
        "prune the exported model",
    ),
    (
        BaseFinetuning,
        "freezes layers before there is a model, and optimizer and old policy would not follow it",
        "train adapters instead (model.lora)",
    ),
    (
        SpikeDetection,
        "watches the loss, which is near 0 on fresh rollouts: every update would be a spike",
        "leave it out: Collapse watches every run (docs/collapse.md)",
    ),
    (
        OnExceptionCheckpoint,
        "would save in the middle of an update",
        "leave it out: LastCheckpoint saves between two iterations and when the run is interrupted",
    ),
)
"""Callback, reason, and alternative."""

_HIGHER = ("reward/mean", "reward/parts/<name>", "val/accuracy", "val/pass@<k>", "val/reward")
"""Metrics for which higher is better."""


def iterations(trainer: Trainer, updates: int) -> int | None:
    """Return the number of iterations that ``max_epochs`` and ``max_steps`` allow; None if neither is set."""
    limits = []
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        limits.append(trainer.max_epochs)
    if trainer.max_steps >= 0:
        limits.append(math.ceil(trainer.max_steps / updates))
    return min(limits, default=None)


def check_accumulation(trainer: Trainer) -> None:
    """Refuse gradient accumulation: one batch is one optimizer step.

    Also called before every update, because callbacks may change the setting.

    Raises:
        UserError: gradients of several batches would be added up.
    """
    if trainer.accumulate_grad_batches != 1:
        raise UserError(
            "trainer.accumulate_grad_batches",
            f"is {trainer.accumulate_grad_batches}, but one batch here is one whole optimizer step",
            fix="leave it at 1 and bound memory by data.max_tokens_per_micro_batch",
        )


def check_trainer(data: PromptDataModule, level: Level, trainer: Trainer) -> None:
    """Refuse Lightning options and callbacks that would change what an iteration is, or have no effect.

    ``level`` is ``model.metrics``.

    Raises:
        UserError: with the alternative to use.
    """
    check_accumulation(trainer)
    _check_evaluations(trainer)
    if not trainer.fast_dev_run:  # fast_dev_run runs a handful of batches on purpose
        _check_limits(data, trainer)
    for callback in trainer.callbacks:
        _check_callback(callback, data, level)


def _check_evaluations(trainer: Trainer) -> None:
    seconds = getattr(trainer, "_val_check_time_interval", None)  # Lightning then has no val_check_interval
    interval = f"{seconds:g} s" if seconds is not None else getattr(trainer, "val_check_interval", None)
    if interval is not None and not (isinstance(interval, float) and interval == 1.0):
        raise UserError(
            "trainer.val_check_interval",
            f"is {interval}{' (batches)' if isinstance(interval, int) else ''}, but evaluations come between two "
            "iterations",
            fix="leave it out and set trainer.check_val_every_n_epoch (iterations between two evaluations)",
        )
    if trainer.check_val_every_n_epoch is not None and trainer.check_val_every_n_epoch < 1:
        raise UserError(
            "trainer.check_val_every_n_epoch",
            f"is {trainer.check_val_every_n_epoch}; it must be at least 1",
            fix="for no evaluation set data.val: null or trainer.limit_val_batches: 0",
        )


def _check_limits(data: PromptDataModule, trainer: Trainer) -> None:
    """Check that a run has whole iterations, and evaluates on the same prompts every time."""
    if trainer.overfit_batches:
        raise UserError(
            "trainer.overfit_batches",
            f"is {trainer.overfit_batches}, but every iteration has new prompts: nothing would be repeated",
            fix=f"give data.train just data.prompts_per_rollout = {data.settings.prompts_per_rollout} prompts: "
            "every iteration then has the same ones",
        )
    updates = data.settings.updates_per_iteration
    limit = trainer.limit_train_batches
    if not _is_all(limit) and (not isinstance(limit, int) or limit < updates):
        raise UserError(
            "trainer.limit_train_batches",
            f"is {limit}, which would end iterations before all of their {updates} mini-batches are trained on",
            fix="leave it out; data.minibatches_per_rollout and data.epochs_per_rollout make iterations shorter, "
            "trainer.max_epochs or max_steps the run",
        )
    val_limit = trainer.limit_val_batches
    if val_limit and not _is_all(val_limit):
        raise UserError(
            "trainer.limit_val_batches",
            f"is {val_limit}, a number of batches on every rank",
            fix="set data.evaluation.limit (prompts over all ranks), or 0 for no evaluation",
        )
    if trainer.num_sanity_val_steps not in (0, math.inf):
        raise UserError(
            "trainer.num_sanity_val_steps",
            f"is {trainer.num_sanity_val_steps}: before training other prompts would be evaluated than later",
            fix="use -1 (the default: all held-out prompts) or 0 (none)",
        )


def _is_all(limit: float) -> bool:
    return isinstance(limit, float) and limit == 1.0


def _check_callback(callback: Any, data: PromptDataModule, level: Level) -> None:
    for kind, why, instead in _REFUSED:
        if isinstance(callback, kind):
            raise UserError("trainer.callbacks", f"{type(callback).__name__} {why}", fix=instead)
    if isinstance(callback, WeightAveraging):
        raise UserError(
            "trainer.callbacks",
            f"{type(callback).__name__} would copy the whole module, trainer and old policy included",
            fix="wrap it: gspo_lightning.training.callbacks.AveragedWeights(...); the command line does it by itself",
        )
    if isinstance(callback, ModelCheckpoint) and callback.save_last and callback.dirpath is None:
        raise UserError(
            "trainer.callbacks.ModelCheckpoint.save_last",
            "would write checkpoints/last.ckpt, which is always a link to the newest checkpoint",
            fix="leave it out",
        )
    if isinstance(callback, EarlyStopping | ModelCheckpoint) and callback.monitor is not None:
        field = f"trainer.callbacks.{type(callback).__name__}"
        check_monitor(field, callback.monitor, callback.mode, data, level)


def monitored(trainer: Trainer) -> set[str]:
    """Return the metrics that callbacks and schedulers of this run monitor."""
    of_callbacks = {getattr(callback, "monitor", None) for callback in trainer.callbacks}
    of_schedulers = {config.monitor for config in trainer.lr_scheduler_configs}
    return {name for name in of_callbacks | of_schedulers if name is not None}


def check_monitor(field: str, monitor: str, mode: str, data: PromptDataModule, level: Level) -> None:
    """Check that a monitored metric is measured in this run, and that its mode is right.

    Args:
        field: the setting, for messages.
        monitor: the tag of a metric (docs/metrics.md).
        mode: ``min`` or ``max``.
        data: provides the settings of evaluations.
        level: ``model.metrics``.

    Raises:
        UserError: it is no metric, is not measured here, or has the wrong mode.
    """
    spec = lookup(monitor)
    if spec is None or spec.kind != "scalar":
        tags = [s.tag for s in METRICS if s.kind == "scalar"]
        hint, _, _ = did_you_mean(monitor, tags).partition(" known:")  # without the list of all tags
        if not hint.startswith("did you mean"):
            hint = "gspo list metrics prints all"
        raise UserError(f"{field}.monitor", f"{monitor!r} is not a metric; {hint}", fix="reward/mean, or val/accuracy")
    if monitor.startswith("val/") and data.val is None:
        raise UserError(f"{field}.monitor", f"is {monitor!r}, but there are no held-out prompts", fix="set data.val")
    if spec.tag == "val/pass@<k>" and int(monitor.rpartition("@")[2]) not in data.evaluation.pass_at:
        raise UserError(f"{field}.monitor", f"is {monitor!r}, which data.evaluation.pass_at does not name")
    if spec.when.partition(";")[0] == FULL and level != "full":
        raise UserError(f"{field}.monitor", f"is {monitor!r}, which is measured with {FULL} only")
    if spec.tag in _HIGHER and mode == "min":
        raise UserError(
            f"{field}.mode", f"is 'min' (Lightning's default), but more of {monitor!r} is better", fix="set mode: max"
        )


def check_measured(trainer: Trainer, values: Mapping[str, float]) -> None:
    """Check, after the first update, that monitored metrics of updates were measured.

    Raises:
        UserError: one was not.
    """
    for name in monitored(trainer):
        if not name.startswith("val/") and name not in values:
            raise UserError("monitor", f"{name!r} is not measured in this run; {did_you_mean(name, values)}")
