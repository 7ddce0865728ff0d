"""A run does not depend on when its checkpoints are written, nor on where it is interrupted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gspo_lightning.loop.experience.loader import ExperienceLoader
from tests import ROOT
from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_async_save import keeping
from tests.runs.test_checkpoints import kept
from tests.runs.test_critic import CRITIC
from tests.runs.test_invariance import SGD

WARM_UP = [*CRITIC, "--model.critic.warm_up=2", "--trainer.accelerator=cpu"]
"""The policy makes no step in the first of two iterations."""
OPTIONS = [
    *runs.UNTAUGHT, *WARM_UP, *SGD, "--model.optimizer.momentum=0.9", "--model.optimizer.dampening=0.5",
    "--trainer.check_val_every_n_epoch=1", "--data.evaluation.limit=4",
]  # fmt: skip
"""Only the first step of this optimizer is not dampened: a step too many before it halves it."""
ADAMW = [*OPTIONS, "--model.optimizer=AdamW", "--model.optimizer.lr=1e-3"]
ANYWHERE = '--trainer.callbacks+={"class_path": "tests.runs.saving.SaveAnywhere"}'
RANKS = {"ddp": 2, "fsdp": 2, "fsdp2": 2, "hsdp": 4, "cp": 2}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process that saves after iterations only."""
    return runs.fit(tmp_path_factory.mktemp("alone"), *OPTIONS)


@pytest.mark.thorough
def test_one_process_saves_at_any_moment(alone: Path, tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *OPTIONS, ANYWHERE)
    assert len(list((run / "checkpoints").glob("moment-*.ckpt"))) == 30
    assert runs.largest_difference(runs.weights(run), runs.weights(alone)) == 0.0
    assert runs.scalars(run) == runs.scalars(alone)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", RANKS)
def test_ranks_save_at_any_moment(strategy: str, alone: Path, tmp_path: Path) -> None:
    run = fit_on_ranks(tmp_path / "run", *OPTIONS, ANYWHERE, overlay=strategy, ranks=RANKS[strategy])
    assert len(list((run / "checkpoints").glob("moment-*.ckpt"))) == 30
    moved = runs.largest_difference(runs.weights(alone), runs.untrained())
    assert runs.largest_difference(runs.weights(run), runs.weights(alone)) < 1e-5 * moved


@pytest.mark.thorough
def test_adam_is_not_moved_by_a_save(tmp_path: Path) -> None:
    """Its first steps after a warm-up of two iterations, in every bit; the second checkpoint is a thread's."""
    options = [*ADAMW, "--trainer.max_epochs=3", "--model.critic.warm_up=4", "--data.val=null"]
    once = fit_on_ranks(tmp_path / "once", *options, keeping(every_n_iterations=3), overlay="fsdp2")
    assert kept(once) == {6}
    often = fit_on_ranks(tmp_path / "often", *options, keeping(async_save=True), ANYWHERE, overlay="fsdp2")
    assert {2, 4, 6} <= kept(often)
    assert runs.largest_difference(runs.weights(once), runs.weights(often)) == 0.0


RESUMES = {
    "fsdp": ("fsdp", []),
    "fsdp2": ("fsdp2", []),
    "one file": ("fsdp2", ["--trainer.strategy.init_args.save_distributed_checkpoint=false"]),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", RESUMES)
def test_a_terminated_run_goes_on_before_the_first_step_of_its_policy(name: str, tmp_path: Path) -> None:
    """SIGTERM in the warm-up saves a checkpoint without any state of the optimizer."""
    overlay, options = RESUMES[name]
    whole = fit_on_ranks(tmp_path / "whole", *ADAMW, *options, overlay=overlay)
    argv = ["fit", f"--config={runs.QUICKSTART}", f"--config={ROOT / 'configs' / overlay}.yaml", *runs.SMALL]
    argv += [*ADAMW, *options, "--trainer.devices=2", f"--trainer.default_root_dir={tmp_path / 'cut'}"]
    command = Command(argv, 2, log=tmp_path / "log", prepare=terminated_soon)
    assert command.start().wait() == [143, 0]  # the first rank says why
    assert (tmp_path / "cut" / "quickstart" / "version_0" / "checkpoints" / "step-00000001.ckpt").exists()
    cut = fit_on_ranks(tmp_path / "cut", *ADAMW, *options, "--ckpt_path=last", overlay=overlay)
    assert runs.largest_difference(runs.weights(whole), runs.weights(cut)) == 0.0


def terminated_soon() -> None:
    """SIGTERM for each rank after the first mini-batch."""
    mark = ExperienceLoader.mark_trained

    def mark_and_terminate(self: ExperienceLoader) -> None:
        mark(self)
        ExperienceLoader.mark_trained = mark  # type: ignore[method-assign]
        os.kill(os.getpid(), signal.SIGTERM)

    ExperienceLoader.mark_trained = mark_and_terminate  # type: ignore[method-assign]
