"""Say when a run saves checkpoints and which ones it keeps.

After a resume, :class:`NewOptimizerSettings` applies optimizer settings that were changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from gspo_lightning.core.distributed import fail_together, from_first_rank
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.faults import folder_gone
from gspo_lightning.core.temp_files import sweep, temp_path
from gspo_lightning.policy.strategies.sharding_strategy import has_whole_weights, sharding_of
from gspo_lightning.resume import Manifest, is_held, manifests, sync_folder
from gspo_lightning.rollouts.sampler.memory import free_memory
from gspo_lightning.training.callbacks.async_save import AsyncSave
from gspo_lightning.training.callbacks.folder import evaluation_follows, gspo_module, run_folder
from gspo_lightning.training.module import GSPOModule

log = logging.getLogger(__name__)

_NAMES = re.compile(r"step-\d{8,}\.ckpt")
"""Names of checkpoints that LastCheckpoint writes."""
SMALL = 100 << 20
"""Bytes below which a checkpoint is written after every iteration: it takes a fraction of a second."""
PATIENCE_S = 60.0
"""Seconds that a run which has failed waits for the checkpoint that is being written."""


class Follower(Protocol):
    """Receiver of the checkpoints of a run, on the first rank."""

    def wants(self, step: int) -> bool:
        """True if an iteration that ends at this step should end with a checkpoint."""

    def saved(self, path: Path, step: int) -> None:
        """Take note of a checkpoint, which may be removed once this returns."""


class LastCheckpoint(Checkpoint):
    """Keeps the newest and the best checkpoints in ``checkpoints/`` of the run folder; ``last.ckpt`` links the newest.

    An iteration ends with a checkpoint if the newest one is missing, below 100 MiB or ``every_n_minutes`` old, or if
    ``keep_best`` would keep this one. The end of the run and an interruption always write one.

    Args:
        every_n_iterations: iterations between two checkpoints, whatever their size and age.
        keep_last: number of newest checkpoints to keep; with 1 there is no fallback if a disk damages it. The newest
            from the end of an iteration is kept as well: only from there another number of ranks can go on.
        keep_best: number of checkpoints with the highest ``best_by`` to keep as well.
        best_by: a metric of an update or of an evaluation, such as ``reward/mean`` or ``val/accuracy``. The reward
            of an update is that of the rollouts it learnt from.
        every_n_minutes: age in minutes from which the end of an iteration writes another large checkpoint.
        save_optimizer: False leaves out the state of the optimizer: with AdamW a checkpoint has a third of the size.
            A resumed run then begins with new moments and is another run. Not for sharded weights.
        async_save: write in a thread while training goes on, from a copy of weights and optimizer state in CPU memory.
            Training waits for the first one, whose size says if there is room for the copy, for the last one, and at
            the end of the next iteration for one that is not complete yet. Not for FSDP1.
    """

    def __init__(
        self,
        every_n_iterations: int | None = None,
        keep_last: int = 2,
        keep_best: int = 0,
        best_by: str = "reward/mean",
        every_n_minutes: float = 10.0,
        save_optimizer: bool = True,
        async_save: bool = False,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("every_n_iterations", every_n_iterations, 1),
            ("keep_last", keep_last, 1),
            ("keep_best", keep_best, 0),
            ("every_n_minutes", every_n_minutes, 0),
        ):
            if value is not None and not value >= least:
                raise UserError(f"LastCheckpoint.{name}", f"is {value}; it must be at least {least}")
        self.every_n_iterations = every_n_iterations
        self.every_n_minutes = every_n_minutes
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.best_by = best_by
        self.save_optimizer = save_optimizer
        self.async_save = async_save
        self._folder = Path()
        self.protected: set[int] = set()
        """Update numbers whose checkpoints are written and kept: a rollback may need them."""
        self.quiet: set[int] = set()
        """Update numbers after which nothing was suspicious: the newest checkpoint of one of them is kept."""
        self.followers: list[Follower] = []
        """Receivers of every checkpoint."""
        # names that loggers read, as of Lightning's ModelCheckpoint
        self.save_top_k = keep_best
        self.last_model_path = ""
        self.best_model_path = ""
        self.current_score: float | None = None
        self.best_model_score: float | None = None
        self._saved = -1
        """Step of the newest checkpoint."""
        self._saved_at = 0.0
        self._run_existed = False
        """True if the run folder was there when training began: it is not made again after it was deleted."""
        self._writer: AsyncSave | None = None
        self._unfinished: tuple[Path, int] | None = None
        """Path and step of a checkpoint that is not linked yet."""
        self._copy_fits: bool | None = None
        """True if the CPU has room for copies of checkpoints; None while their size is unknown."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the run folder, and remove files that a killed run left half written."""
        sharding = sharding_of(trainer.strategy)
        if sharding is not None and not self.save_optimizer:
            fix = "leave it out, or use a strategy that does not shard"
            raise UserError("LastCheckpoint.save_optimizer", "is false, and the strategy shards the weights", fix=fix)
        if sharding is not None and self.async_save and not sharding.saves_async:
            problem = f"is true, but shards of {type(sharding).__name__} cannot be copied while it trains"
            raise UserError("LastCheckpoint.async_save", problem, fix="use FSDP2Strategy, or leave it out")
        run = run_folder(trainer)
        self._folder = run / "checkpoints"
        if trainer.is_global_zero and stage == "fit":
            for folder in (run, *run.glob("*/")):
                sweep(folder, alone=is_held(run))

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Say if the optimizer begins anew."""
        if trainer.state.fn == "fit" and checkpoint.get("optimizer_states") == []:
            log.warning(
                "the checkpoint has no state of the optimizer (LastCheckpoint.save_optimizer: false), which begins anew"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the current step: a resumed run is already at a checkpoint."""
        self._saved = trainer.global_step
        self._saved_at = time.monotonic()
        self._run_existed = self._folder.parent.is_dir()
        self._writer = AsyncSave() if self.async_save else None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Save at the end of an iteration, unless an evaluation comes first (or may come, after the last one)."""
        final = trainer.max_epochs == trainer.current_epoch + 1 and evaluation_follows(trainer, at_the_end=True)
        if not evaluation_follows(trainer) and not final:
            self._save_if_due(trainer, gspo_module(pl_module))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after the evaluation of the iteration."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._save_if_due(trainer, gspo_module(pl_module))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after the last iteration, and free the copy."""
        self.save(trainer)
        self._writer = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what a run without any update starts from; sharded weights are no longer together here."""
        if trainer.max_epochs == 0 and trainer.global_step == 0 and has_whole_weights(trainer.strategy):
            self.save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give a checkpoint that is being written time to become complete."""
        self.finish_alone(trainer)

    def _save_if_due(self, trainer: Trainer, module: GSPOModule) -> None:
        """Complete the checkpoint before, and save at the end of an iteration that gets one; a collective."""
        iterations, rest = divmod(trainer.global_step, module.data.settings.updates_per_iteration)
        if iterations == 0 or rest:
            return
        self.finish(trainer)
        due, waits = from_first_rank(lambda: (self._is_due(iterations, trainer, module), not self._has_room(trainer)))
        if due:
            self.save(trainer, waits=waits)

    def _is_due(self, iterations: int, trainer: Trainer, module: GSPOModule) -> bool:
        """True if this iteration, the ``iterations``-th of the run, ends with a checkpoint."""
        step = trainer.global_step
        if step in self.protected or any(follower.wants(step) for follower in self.followers):
            return True
        earlier = [manifest for _, manifest in self._checkpoints()]
        best = sorted((m.score for m in earlier if m.score is not None), reverse=True)[: self.keep_best]
        score = self._score(module)
        if score is not None and self.keep_best and (len(best) < self.keep_best or score > best[-1]):
            return True
        if self.every_n_iterations is not None:
            return iterations % self.every_n_iterations == 0
        is_old = time.monotonic() - self._saved_at >= 60 * self.every_n_minutes
        return is_old or not earlier or earlier[0].bytes < SMALL

    def _has_room(self, trainer: Trainer) -> bool:
        """True if a checkpoint can be written in a thread: this machine has room for the copies of its ranks."""
        if self._writer is None or self._copy_fits is not None:
            return bool(self._copy_fits)
        checkpoints = self._checkpoints()
        if not checkpoints:
            return False
        _, newest = checkpoints[0]
        sharded = sharding_of(trainer.strategy) is not None  # then a checkpoint is spread over all machines
        share = trainer.num_devices / trainer.world_size if sharded else 1
        size = newest.bytes * share
        free = free_memory(torch.device("cpu"))
        self._copy_fits = free is None or size < free
        if not self._copy_fits:
            log.warning(
                "LastCheckpoint.async_save: copies for the ranks of this machine take %.1f GB, and %.1f GB are free: "
                "training waits for every checkpoint", size / 1e9, (free or 0) / 1e9,
            )  # fmt: skip
        return self._copy_fits

    def _score(self, module: GSPOModule) -> float | None:
        return {**module.evaluator.last, **module.last_update}.get(self.best_by)

    def save(self, trainer: Trainer, *, waits: bool = True) -> Path:
        """Save (must be called on every rank), unless no update was made since the last save; return the path.

        Args:
            trainer: of the run.
            waits: return when it is written; false: as soon as a copy of it can be written.
        """
        self.finish(trainer)
        path = self._folder / f"step-{trainer.global_step:08d}.ckpt"
        if trainer.global_step == self._saved:
            return path
        with fail_together():
            run = self._folder.parent
            if self._run_existed and trainer.is_global_zero and not run.is_dir():  # saving would make it again
                raise folder_gone(run)
        module = gspo_module(trainer.lightning_module)
        options: dict[str, Any] = {"score": self._score(module)}
        if not self.save_optimizer:
            options["optimizer"] = False
        if trainer.global_step % module.data.settings.updates_per_iteration > 0:
            options["ranks"] = trainer.world_size
        if not waits:
            options["async_save"] = self._writer
        trainer.save_checkpoint(path, weights_only=False, storage_options=options)
        self._saved = trainer.global_step
        self._saved_at = time.monotonic()
        self._unfinished = path, trainer.global_step
        if waits:
            self.finish(trainer)
        return path

    def finish(self, trainer: Trainer) -> None:
        """Wait for the checkpoint that is being written, if there is one; a collective.

        Raises:
            InfrastructureError: it cannot be written.
        """
        if self._unfinished is None:
            return
        try:
            with fail_together():
                if self._writer is not None:
                    self._writer.wait()
        except Exception:
            self._unfinished = None
            raise
        self._complete(trainer)

    def finish_alone(self, trainer: Trainer) -> None:
        """Wait as :meth:`finish`, but not for other ranks, which may have failed: at most :data:`PATIENCE_S`."""
        if self._unfinished is None or self._writer is None:
            return
        try:
            if self._writer.wait(PATIENCE_S):
                self._complete(trainer)
        except Exception as error:  # another one is on its way already
            log.warning("%s", error)

    def _complete(self, trainer: Trainer) -> None:
        unfinished = self._unfinished
        self._unfinished = None
        if unfinished is None or not trainer.is_global_zero:
            return
        path, step = unfinished
        link_last(path)
        for follower in self.followers:
            follower.saved(path, step)
        self._prune(trainer)
        self._tell(trainer.loggers, path)

    def _tell(self, loggers: Iterable[Any], path: Path) -> None:
        """Tell loggers of the newest and the best checkpoint, as Lightning does; with ``log_model`` they keep them."""
        checkpoints = self._checkpoints()
        if not checkpoints:  # the folder has been deleted: the next write says so
            return
        _, newest = checkpoints[0]
        self.last_model_path = str(path)
        self.current_score = newest.score
        scores = [(manifest.score, str(file)) for file, manifest in checkpoints if manifest.score is not None]
        self.best_model_score = None
        self.best_model_path = ""
        if self.keep_best and scores:
            self.best_model_score, self.best_model_path = max(scores)
        for logger in loggers:
            logger.after_save_checkpoint(self)

    def _checkpoints(self) -> list[tuple[Path, Manifest]]:
        """Return the checkpoints that this callback wrote, the newest first, with their manifests."""
        return [(path, manifest) for path, manifest in manifests(self._folder) if _NAMES.fullmatch(path.name)]

    def _prune(self, trainer: Trainer) -> None:
        """Remove checkpoints that no setting keeps; another callback's checkpoints stay."""
        checkpoints = self._checkpoints()
        existing = [(path, manifest) for path, manifest in checkpoints if path.exists()]
        scores = [(float(manifest.score), path) for path, manifest in existing if manifest.score is not None]
        worst_first = [path for _, path in sorted(scores, key=lambda scored: scored[0])]
        quiet = [path for path, manifest in existing if manifest.step in self.quiet]
        ends = [path for path, manifest in existing if manifest.ranks is None]  # of iterations: for any number of ranks
        kept = {path for path, _ in existing[: self.keep_last]}
        kept.update(worst_first[max(0, len(worst_first) - self.keep_best) :])  # all, while they are fewer
        kept.update(path for path, manifest in existing if manifest.step in self.protected)
        kept.update(quiet[:1])
        kept.update(ends[:1])
        for path, _ in checkpoints:
            if path not in kept:
                trainer.strategy.remove_checkpoint(path)


def link_last(path: Path) -> None:
    """Point ``last.ckpt`` beside a checkpoint to it."""
    last = path.with_name("last.ckpt")
    link = temp_path(last)
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(path.name)
        os.replace(link, last)
        sync_folder(path.parent)
    except OSError as error:  # no links on this file system: the search for the last checkpoint needs none
        log.warning("%s cannot be made (%s); --ckpt_path last finds %s all the same", last, error.strerror, path.name)


def last_checkpoint(trainer: Trainer) -> LastCheckpoint | None:
    """Return the callback that keeps this run's checkpoints; None if there is none."""
    with contextlib.suppress(StopIteration):
        return next(c for c in trainer.checkpoint_callbacks if isinstance(c, LastCheckpoint))
    return None


class NewOptimizerSettings(Callback):
    """Replaces the optimizer settings of the checkpoint by this run's; moments and step counts stay."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Apply the settings once, after the checkpoint was loaded."""
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group.update(optimizer.defaults)  # from this run's config; loading leaves them
                if "initial_lr" in group:
                    group["initial_lr"] = optimizer.defaults["lr"]
        for config in trainer.lr_scheduler_configs:
            if hasattr(config.scheduler, "base_lrs"):  # ReduceLROnPlateau uses the current rate
                config.scheduler.base_lrs = [group["initial_lr"] for group in config.scheduler.optimizer.param_groups]
