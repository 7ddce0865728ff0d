"""Detect a collapsing run, dump its batch, and warn, stop or roll back to a good checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch.optim import Optimizer

from gspo_lightning.core.distributed import all_gather_objects
from gspo_lightning.core.errors import CollapseError, NonFiniteError, UserError, did_you_mean
from gspo_lightning.policy.averaging import holds_average, training_weights
from gspo_lightning.policy.strategies.sharding import is_sharded
from gspo_lightning.resume import damage, manifests, read_tensors, write_text
from gspo_lightning.training.callbacks.checkpoints import last_checkpoint
from gspo_lightning.training.callbacks.collapse import SIGNATURES, Alarm, Signature, Watch
from gspo_lightning.training.callbacks.folder import gspo_module, run_folder
from gspo_lightning.training.callbacks.sink import Sink
from gspo_lightning.training.module import GSPOModule

Action = Literal["warn", "stop", "rollback"]
ALARMS = "alarms.json"
"""File of the run folder that lists its alarms."""

log = logging.getLogger(__name__)


class Collapse(Callback):
    """Looks for the signatures of docs/collapse.md in every update.

    With ``warn``, training is the same, bit for bit.

    Args:
        action: ``warn``; ``stop`` before the update that raised the alarm is applied; ``rollback``: at the end of
            the iteration restore weights and optimizer from the newest checkpoint before anything suspicious, and
            continue with new prompts.
        ignore: names of signatures not to look for.
        thresholds: ``{"<signature>.<threshold>": value}`` in place of the documented ones.
        max_rollbacks: rollbacks per run; the next alarm stops it.
        lr_factor: the learning rate after a rollback divided by the one before it, in (0, 1].
        max_dumps: batches per run that are written to ``dumps/`` (each with the weights); later alarms write none.
    """

    def __init__(
        self,
        action: Action = "warn",
        ignore: list[str] | None = None,
        thresholds: dict[str, float] | None = None,
        max_rollbacks: int = 2,
        lr_factor: float = 0.5,
        max_dumps: int = 3,
    ) -> None:
        if not 0 < lr_factor <= 1:
            raise UserError("Collapse.lr_factor", f"is {lr_factor}; it must be above 0 and at most 1")
        if max_rollbacks < 0 or max_dumps < 0:
            raise UserError("Collapse", f"max_rollbacks {max_rollbacks} and max_dumps {max_dumps} must be 0 or above")
        self.action = action
        self.max_rollbacks = max_rollbacks
        self.lr_factor = lr_factor
        self.max_dumps = max_dumps
        self.watch = Watch(_signatures(ignore or [], thresholds or {}))
        self.alarms: list[Alarm] = []
        self.rollbacks = 0
        self._quiet: list[int] = []
        """Numbers of updates that ended an iteration without anything suspicious."""
        self._due: Alarm | None = None
        """Alarm for which the run is rolled back at the end of this iteration."""
        self._skipped = 0
        self._dumps = 0
        self._folder = Path()

    # Lightning hooks ------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Register the check before every update.

        Raises:
            UserError: the action is ``rollback``, but the run keeps no checkpoints.
        """
        self._folder = run_folder(trainer)
        module = gspo_module(pl_module)
        for signature in self.watch.signatures:
            if hasattr(signature, "prompts"):
                signature.prompts = module.data.settings.prompts_per_rollout
        module.before_update.append(partial(self._look, trainer, module))
        if self.action == "rollback":
            if last_checkpoint(trainer) is None:
                raise UserError("Collapse.action", "is 'rollback', but this run keeps no checkpoints", fix="use 'stop'")
            module.guard.choice = "skip"  # the weights will be restored: a NaN must not stop the run first
            module.guard.max_skips += module.data.settings.updates_per_iteration * (self.max_rollbacks + 1)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to roll back sharded weights; the weights have their final form here.

        Raises:
            UserError: the weights are sharded, and the action is ``rollback``.
        """
        if self.action == "rollback" and is_sharded(gspo_module(pl_module).policy):
            raise UserError(
                "Collapse.action",
                "is 'rollback', but the weights are sharded",
                fix="use 'stop', then resume with --ckpt_path and a lower learning rate",
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Rewrite the alarms file: a killed run may have written alarms after the checkpoint that it resumes from."""
        if trainer.is_global_zero and (self._folder / ALARMS).exists():
            _write_file(self._folder, self.alarms)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Roll back, if due, at the end of an iteration, and record if the current state is good."""
        module = gspo_module(pl_module)
        loader = module.data.loader
        if loader.trained < len(loader):
            return
        if self._due is not None:
            self._go_back(trainer, module, self._due)
        if self.action == "rollback" and self.watch.quiet:
            self._quiet = [*self._quiet, trainer.global_step][-1000:]  # most have no checkpoint, if it is large
        self._protect(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the held-out accuracy of an evaluation during training; a rollback waits for the end of an iteration.

        Raises:
            CollapseError: it has fallen, and the action is ``stop``.
        """
        module = gspo_module(pl_module)
        repeated = trainer.sanity_checking and trainer.global_step > 0  # where a resumed run begins
        if trainer.state.fn != "fit" or repeated or module.shown_by != "accuracy":
            return
        of_ranks = all_gather_objects([(s.prompt, s.accuracy) for s in module.evaluator.scores])
        scores = {prompt: share for rank in of_ranks for prompt, share in rank if share is not None}
        self._raise(trainer, self.watch.see_evaluation(module.evaluator.last, trainer.global_step, scores))
        self._protect(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Correct alarms of the end, after which no iteration was left to roll back."""
        if self._due is not None:
            self._correct(trainer, self._due, "warned")
            self._due = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Record an alarm for a NaN that stops the run; its batch has been dumped already."""
        if isinstance(exception, NonFiniteError) and gspo_module(pl_module).data.loader.iteration >= 0:
            update = trainer.global_step + 1
            advice = SIGNATURES["non_finite"].advice
            problem = str(exception).splitlines()[0]
            dumps = sorted((self._folder / "dumps").glob("*.pt"))
            dump = str(dumps[-1].relative_to(self._folder)) if dumps else ""
            self._record(trainer, Alarm("non_finite", update, update, problem, advice, "stopped", dump))

    def state_dict(self) -> dict[str, Any]:
        """Return memory, alarms and counts: a resumed run raises the same alarms as an uninterrupted one."""
        return {
            "watch": self.watch.state_dict(), "alarms": [a.state_dict() for a in self.alarms],
            "rollbacks": self.rollbacks, "quiet": list(self._quiet), "skipped": self._skipped, "dumps": self._dumps,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self.watch.load_state_dict(state_dict["watch"])
        self.alarms = [Alarm(**alarm) for alarm in state_dict["alarms"]]
        self.rollbacks = int(state_dict["rollbacks"])
        self._quiet = list(state_dict["quiet"])
        self._skipped = int(state_dict["skipped"])
        self._dumps = int(state_dict["dumps"])

    # actions ---------------------------------------------------------------------------------------------------------

    def _look(self, trainer: Trainer, module: GSPOModule, values: dict[str, float]) -> None:
        """Check the metrics before the optimizer steps, while the weights are still those that were measured."""
        loader = module.data.loader
        metrics: Mapping[str, float] = values
        if module.guard.skipped > self._skipped:  # also if only log-probabilities are not finite
            self._skipped = module.guard.skipped
            metrics = {**values, "log-probabilities": float("nan")}
        alarms = self.watch.see(metrics, trainer.global_step + 1, last=loader.trained + 1 >= len(loader))
        values["collapse/alarms"] = float(len(self.watch.present))
        values["collapse/rollbacks"] = float(self.rollbacks)
        self._raise(trainer, [replace(alarm, dump=self._dump(module, values)) for alarm in alarms])

    def _raise(self, trainer: Trainer, alarms: Sequence[Alarm]) -> None:
        """Record alarms; stop, or note the rollback that is due."""
        verb = {"warn": "warned", "stop": "stopped", "rollback": "rolled back"}[self.action]
        if self.action == "rollback" and self.rollbacks >= self.max_rollbacks:
            verb = "stopped"  # at the end of the iteration
        for alarm in alarms:
            self._record(trainer, replace(alarm, action=verb))
        if alarms and self.action == "stop":
            raise _stopped(self.alarms[-1], self._folder)
        if alarms and self.action == "rollback" and self._due is None:
            self._due = self.alarms[-len(alarms)]

    def _dump(self, module: GSPOModule, values: Mapping[str, float]) -> str:
        """Dump the batch and the weights before the update; return the path, or "" past the limit or if sharded."""
        if self._dumps >= self.max_dumps or is_sharded(module.policy):
            return ""
        self._dumps += 1
        tags = ("loss", "optim/gradient_norm", "ratio/max", "ratio/log_sequence_std", "policy/entropy", "reward/mean")
        try:
            path: Path = module.dump_update({tag: values[tag] for tag in tags if tag in values})
        except OSError as error:
            log.warning("the batch could not be written: %s", error)
            return ""
        return str(path.relative_to(self._folder))

    def _record(self, trainer: Trainer, alarm: Alarm) -> None:
        self.alarms.append(alarm)
        _write(trainer, self._folder, self.alarms)
        batch = f"\n  batch: gspo replay {self._folder / alarm.dump}" if alarm.dump else ""
        _say(f"{_words(alarm)}\n  fix: {alarm.advice}{batch}")

    def _correct(self, trainer: Trainer, alarm: Alarm, action: str) -> None:
        """Replace the action of an alarm and of those since, which was not taken."""
        self.alarms = [replace(a, action=action) if a.update >= alarm.update else a for a in self.alarms]
        _write(trainer, self._folder, self.alarms)

    def _protect(self, trainer: Trainer) -> None:
        """Name the checkpoints that a rollback may need."""
        checkpoints = last_checkpoint(trainer)
        if self.action == "rollback" and checkpoints is not None:
            checkpoints.quiet = set(self._quiet)
            checkpoints.protected = self._of_best_evaluation()

    def _of_best_evaluation(self) -> set[int]:
        """Return the number of updates before the best evaluation, if there was one."""
        best = self.watch.history.best_held_out
        return set() if best is None else {best.updates}

    def _go_back(self, trainer: Trainer, module: GSPOModule, alarm: Alarm) -> None:
        """Roll back to the newest good checkpoint from before an alarm; stop if the run may not, or has none.

        Raises:
            CollapseError: it stops.
        """
        self._due = None
        if self.rollbacks >= self.max_rollbacks:
            times = "1 rollback" if self.rollbacks == 1 else f"{self.rollbacks} rollbacks"
            raise _stopped(alarm, self._folder, f" after {times}" if self.rollbacks else "")
        checkpoints = last_checkpoint(trainer)
        if checkpoints is not None:
            checkpoints.finish(trainer)
        quiet = {*self._quiet, *self._of_best_evaluation()}
        path = good_checkpoint(self._folder / "checkpoints", quiet, alarm.since)
        if path is None:
            self._correct(trainer, alarm, "stopped")
            raise _stopped(replace(alarm, action="stopped"), self._folder, "; no checkpoint is from before it")
        state = roll_back(trainer, module, path, self.lr_factor)["callbacks"].get(self.state_key)
        if state is not None:
            self.watch.load_state_dict(state["watch"])
        self.rollbacks += 1
        _say(
            f"rolled back ({self.rollbacks} of at most {self.max_rollbacks}): weights and optimizer are those of "
            f"{path.name}, learning rate x {self.lr_factor:g}, the next prompts are new ones"
        )


def _signatures(ignore: Sequence[str], thresholds: Mapping[str, float]) -> list[Signature]:
    """Return the signatures to look for, with the thresholds of the user.

    Raises:
        UserError: there is no such signature, or no such threshold of one that is looked for.
    """
    for name in ignore:
        if name not in SIGNATURES:
            raise UserError("Collapse.ignore", f"{name!r} is not a signature; {did_you_mean(name, SIGNATURES)}")
    signatures = {name: kind() for name, kind in SIGNATURES.items() if name not in ignore}
    keys = []
    for name, signature in signatures.items():
        keys += [f"{name}.{field.name}" for field in fields(signature) if field.name != "prompts"]
    for key, value in thresholds.items():
        if key not in keys:
            raise UserError("Collapse.thresholds", f"{key!r} is not a threshold; {did_you_mean(key, keys)}")
        name, _, threshold = key.partition(".")
        setattr(signatures[name], threshold, value)
    errors = thresholds.get("held_out_fall.errors")
    if errors is not None and "held_out_fall.paired_errors" not in thresholds:  # configs from before falls were paired
        vars(signatures["held_out_fall"])["paired_errors"] = errors
    return list(signatures.values())


def _words(alarm: Alarm) -> str:
    name = alarm.signature.replace("_", " ")
    return f"collapse: {name} since update {alarm.since}, recognised at {alarm.update} ({alarm.action}): {alarm.what}"


def _stopped(alarm: Alarm, folder: Path, after: str = "") -> CollapseError:
    return CollapseError(
        f"stopped{after}: {_words(alarm)}.\n"
        f"  fix: {alarm.advice}; then resume from a checkpoint in {folder / 'checkpoints'} (docs/collapse.md)"
    )


@rank_zero_only
def _write(trainer: Trainer, folder: Path, alarms: Sequence[Alarm]) -> None:
    _write_file(folder, alarms)
    columns = ("signature", "since update", "recognised at", "what", "done", "batch")
    rows = [[a.signature, str(a.since), str(a.update), a.what, a.action, a.dump or "not written"] for a in alarms]
    Sink.of(trainer).table("alarms", columns, rows, alarms[-1].update, code=("batch",))


def _write_file(folder: Path, alarms: Sequence[Alarm]) -> None:
    write_text(folder / ALARMS, json.dumps([a.state_dict() for a in alarms], indent=1) + "\n")


@rank_zero_only
def _say(text: str) -> None:
    log.warning(text)


def good_checkpoint(folder: Path, quiet: Collection[int], since: int) -> Path | None:
    """Return the newest intact checkpoint from before an update; None if there is none.

    Args:
        folder: the run's checkpoints.
        quiet: numbers of updates after which nothing was suspicious.
        since: the first suspicious update.
    """
    good = [(m.step, path) for path, m in manifests(folder) if m.step in quiet and m.step < since]
    return next((path for _, path in sorted(good, reverse=True) if damage(path) is None), None)


def roll_back(trainer: Trainer, module: GSPOModule, path: Path, lr_factor: float) -> dict[str, Any]:
    """Restore policy, snapshot, optimizer, critic and gradient-norm history from a checkpoint, and return it.

    The counters (updates, iterations, the x axis) keep their values, so the next rollout batch has other prompts and
    other random draws. Randomness depends on counters only: turning them back would lead into the same collapse again.

    Every rank reads the file. Learning rates become the current ones times ``lr_factor``; a schedule continues from
    there.
    """
    checkpoint: dict[str, Any] = read_tensors(path, "checkpoint")
    weights = training_weights(checkpoint)
    for prefix, part in (("policy.", module.policy), ("old_policy.", module.old_policy)):
        state = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
        if state:
            part.load_state_dict(state)
    if module.average is not None and holds_average(checkpoint):
        module.average.load(checkpoint)
    states = checkpoint["optimizer_states"] or [None] * len(trainer.optimizers)  # LastCheckpoint.save_optimizer: false
    for optimizer, state in zip(trainer.optimizers, states, strict=True):
        _restore_optimizer(optimizer, state, lr_factor)
    for config in trainer.lr_scheduler_configs:
        if hasattr(config.scheduler, "base_lrs"):
            config.scheduler.base_lrs = [rate * lr_factor for rate in config.scheduler.base_lrs]
    if module.critic is not None and "gspo_critic" in checkpoint:
        module.critic.load_state_dict(checkpoint["gspo_critic"])
    module.update_metrics.load_state_dict(checkpoint.get("gspo_meter", {}))
    return checkpoint


def _restore_optimizer(optimizer: Optimizer, state: dict[str, Any] | None, lr_factor: float) -> None:
    """Restore the moments (None: forget them), with the learning rates of now times ``lr_factor``."""
    rates = [(group["lr"], group.get("initial_lr")) for group in optimizer.param_groups]
    if state is None:
        optimizer.state.clear()
    else:
        optimizer.load_state_dict(state)  # which also sets the learning rates of the checkpoint
    for group, (rate, initial_rate) in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * lr_factor
        if initial_rate is not None:
            group["initial_lr"] = initial_rate * lr_factor
