"""Real processes, killed at random and at chosen moments, then resumed: the same weights and scalars, bit for bit."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.runs import runs
from tests.runs.processes import Command

BASE = ["--trainer.max_epochs=4", "--trainer.check_val_every_n_epoch=3", "--data.max_tokens_per_micro_batch=100"]
SHARDED = "--trainer.strategy.class_path=gspo_lightning.policy.strategies.%sStrategy"
CASES: dict[str, tuple[list[str], int]] = {
    "one process": (runs.UNTAUGHT, 1),
    "two ranks": ([*runs.UNTAUGHT, "--trainer.devices=2", "--trainer.strategy=ddp"], 2),
    "resampled groups": ([*runs.UNTAUGHT, "--data.group_size=2", "--data.resample_dead_groups=8"], 1),
    "resident snapshot": (
        [*runs.UNTAUGHT, "--model.old_policy=ResidentSnapshot", "--model.old_policy.refresh_every=2"], 1
    ),
    "adapters": ([*runs.UNTAUGHT, "--model.lora={r: 4}", "--model.old_policy=OffloadedSnapshot"], 1),
    "two passes": ([*runs.UNTAUGHT, "--data.epochs_per_rollout=2"], 1),
    "two ranks, FSDP": ([*runs.UNTAUGHT, "--trainer.devices=2", SHARDED % "FSDP"], 2),
    "two ranks, FSDP2": ([*runs.UNTAUGHT, "--trainer.devices=2", SHARDED % "FSDP2"], 2),
    "two ranks, FSDP2, adapters": (
        [*runs.UNTAUGHT, "--trainer.devices=2", SHARDED % "FSDP2", "--model.lora={r: 4}",
         "--model.old_policy=OffloadedSnapshot", "--model.old_policy.refresh_every=2"], 2
    ),
    "cold start": ([*runs.UNTAUGHT[1:], "--model.cold_start.steps=30"], 1),
    "a curriculum": (
        [*runs.UNTAUGHT, "--data.group_size=2", "--data.resample_dead_groups=8", "--data.curriculum=Informative"], 1
    ),
}  # fmt: skip
OF_SHARDS = [
    "gspo_lightning.policy.strategies.sharding_strategy:check_finite:2",  # before any rank has written
    "gspo_lightning.resume.folders:synced:4",  # some shards are there
    "gspo_lightning.resume.folders:all_gather_objects:4",  # all of them, without their place
    "gspo_lightning.resume.manifest:Manifest.write:2",  # swapped in, without its manifest
]
MOMENTS = [
    "gspo_lightning.training.cold_start:load_policy:1",  # before the cold start
    "gspo_lightning.training.cold_start:ColdStart._schedule:15",  # in it
    "gspo_lightning.policy.policy:Policy.save_pretrained:1",  # when it is written
    "gspo_lightning.training.data:PromptDataModule.prepare:1",  # the workers start
    "gspo_lightning.training.policy_module:PolicyModule.validation_step:1",  # the evaluation before the first update
    "gspo_lightning.loop.experience.iteration:Iteration.run:1",  # the first rollout
    "gspo_lightning.training.module:GSPOModule.optimizer_step:4",  # an update
    "gspo_lightning.loop.experience.loader:ExperienceLoader.mark_trained:5",  # the weights have moved, not the counters
    "gspo_lightning.training.callbacks.atomic_io:_save:2",  # a checkpoint is about to be written
    "gspo_lightning.resume.files:DigestWriter.write:25",  # half written
    "gspo_lightning.resume.manifest:Manifest.write:2",  # the first one is swapped in, without its manifest
    "gspo_lightning.resume.manifest:Manifest.write:3",  # the same of the second one
    "gspo_lightning.training.callbacks.checkpoints:link_last:2",  # complete, but not yet linked
    "gspo_lightning.training.callbacks.checkpoints:LastCheckpoint._prune:3",  # an old one should go
    "gspo_lightning.training.policy_module:PolicyModule.validation_step:2",  # an evaluation between two iterations
    "gspo_lightning.training.callbacks.checkpoints:LastCheckpoint.on_validation_end:2",  # after it
    "gspo_lightning.training.policy_module:PolicyModule.evaluate:1",  # the evaluation at the end
    "gspo_lightning.training.callbacks.summary:write_text:1",  # the very end
]


def argv(case: str, root: Path) -> list[str]:
    options = [*runs.SMALL, *BASE, *CASES[case][0], "--trainer.accelerator=cpu", f"--trainer.default_root_dir={root}"]
    return ["fit", f"--config={runs.QUICKSTART}", *options, "--ckpt_path=last"]


def finished(root: Path) -> Path:
    """The one run folder there is."""
    (run,) = (root / "quickstart").iterdir()
    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, float]]:
    """Case -> run folder and seconds; filled by :func:`reference`."""
    return {}


def reference(case: str, known: dict[str, tuple[Path, float]], tmp: Path) -> tuple[Path, float]:
    """An undisturbed run, in a process like those that are killed."""
    if case not in known:
        root = tmp.parent / f"undisturbed-{case.replace(' ', '-')}"
        Command(["--version"]).start().wait()  # the server of processes imports what they need
        start = time.monotonic()
        command = Command(argv(case, root), CASES[case][1], log=root.with_suffix(".log")).start()
        assert set(command.wait()) == {0}, root.with_suffix(".log").read_text()
        known[case] = finished(root), time.monotonic() - start
    return known[case]


def assert_same(root: Path, whole: Path) -> None:
    run = finished(root)
    assert runs.largest_difference(runs.weights(run), runs.weights(whole)) == 0.0
    mine, theirs = runs.scalars(run), runs.scalars(whole)
    assert {t for t in mine.keys() | theirs.keys() if mine.get(t) != theirs.get(t)} == set()
    keys = ("accuracy_before", "accuracy_after", "updates", "iterations", "clip_fraction_tokens", "evaluated_at_update")
    assert {k: runs.summary(run)[k] for k in keys} == {k: runs.summary(whole)[k] for k in keys}


def kill_at_random(case: str, kills: int, seed: int, tmp: Path, known: dict[str, tuple[Path, float]]) -> None:
    """Kill a run again and again until it could finish, compare it, and go on with the next."""
    whole, seconds = reference(case, known, tmp)
    draw, done, number = random.Random(seed), 0, 0
    while done < kills:
        root, number = tmp / f"run-{number}", number + 1
        log = tmp / f"{root.name}.log"
        alive = True
        while alive and done < kills:
            command = Command(argv(case, root), CASES[case][1], log=log).start()
            time.sleep(draw.uniform(0.0, seconds))
            command.kill()
            codes = set(command.wait())
            assert codes <= {0, -signal.SIGKILL}, log.read_text()
            alive = -signal.SIGKILL in codes
            done += alive
        if alive:
            command = Command(argv(case, root), CASES[case][1], log=log).start()
            assert set(command.wait()) == {0}, log.read_text()
        assert_same(root, whole)


def kill_at(moment: str, case: str, tmp: Path, known: dict[str, tuple[Path, float]]) -> None:
    whole, _ = reference(case, known, tmp)
    root, log = tmp / "killed", tmp / "killed.log"
    killed = Command(argv(case, root), CASES[case][1], kill_at=moment, log=log).start()
    assert -signal.SIGKILL in killed.wait(), f"{moment} never came\n{log.read_text()}"
    resumed = Command(argv(case, root), CASES[case][1], log=log).start()
    assert set(resumed.wait()) == {0}, log.read_text()
    assert_same(root, whole)


QUICK = [MOMENTS[i] for i in (7, 9, 13)]


@pytest.mark.thorough
@pytest.mark.parametrize("moment", QUICK)
def test_kill_at_a_moment(moment: str, tmp_path: Path, undisturbed: dict[str, tuple[Path, float]]) -> None:
    kill_at(moment, "one process", tmp_path, undisturbed)


@pytest.mark.thorough
def test_three_kills_at_random_moments(tmp_path: Path, undisturbed: dict[str, tuple[Path, float]]) -> None:
    kill_at_random("one process", 3, seed=0, tmp=tmp_path, known=undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_kills_at_random_moments(case: str, tmp_path: Path, undisturbed: dict[str, tuple[Path, float]]) -> None:
    kill_at_random(case, 4, seed=1 + list(CASES).index(case), tmp=tmp_path, known=undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("moment", [m for m in MOMENTS if m not in QUICK])
def test_kill_at_every_moment(moment: str, tmp_path: Path, undisturbed: dict[str, tuple[Path, float]]) -> None:
    kill_at(moment, "cold start", tmp_path, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS[5:15])
def test_kill_a_rank_at_a_moment(moment: str, tmp_path: Path, undisturbed: dict[str, tuple[Path, float]]) -> None:
    kill_at(moment, "two ranks", tmp_path, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("moment", OF_SHARDS)
@pytest.mark.parametrize("case", ["two ranks, FSDP", "two ranks, FSDP2"])
def test_kill_a_rank_while_shards_are_written(
    case: str, moment: str, tmp_path: Path, undisturbed: dict[str, tuple[Path, float]]
) -> None:
    kill_at(moment, case, tmp_path, undisturbed)
