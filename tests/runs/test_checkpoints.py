"""Checkpoints that survive accidents: damage, full disks, changed configs, and the policy of what is kept."""

from __future__ import annotations

import json
import os
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.commands.fit import cli
from gspo_lightning.core.errors import InfrastructureError, NonFiniteError
from gspo_lightning.loop.experience.collect import Experience
from gspo_lightning.loop.experience.iteration import Iteration
from gspo_lightning.report.resumes import read_resumes
from gspo_lightning.resume import find_checkpoint
from gspo_lightning.training.callbacks import AtomicCheckpointIO, checkpoints
from tests.runs import runs
from tests.runs.processes import Command

OPTIONS = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0"]
KEEP_ALL = '--trainer.callbacks=[{"class_path": "LastCheckpoint", "init_args": {"keep_last": 9}}]'
NEWEST = "step-00000006.ckpt"


@pytest.fixture(scope="module")
def three_iterations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("three"), *OPTIONS, KEEP_ALL, "--trainer.max_epochs=3")


@pytest.fixture(scope="module")
def four_iterations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("four"), *OPTIONS, "--trainer.max_epochs=4")


def flip_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def zero_a_block(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(8192)
        file.write(bytes(4096))


def drop_the_optimizer(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    del content["optimizer_states"]
    torch.save(content, path)


def poison(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    next(iter(content["state_dict"].values())).fill_(float("nan"))
    torch.save(content, path)


def a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "torn": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "one bit": flip_one_bit,
    "a block of zeros": zero_a_block,
    "bytes at the end": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "another one's content": lambda path: shutil.copy(path.with_name("step-00000002.ckpt"), path),
    "not a checkpoint": lambda path: path.write_text("hello"),
    "missing": lambda path: path.unlink(),
    "a dangling link": a_dangling_link,
    "no manifest": lambda path: path.with_name(f"{path.name}.manifest.json").unlink(),
    "torn manifest": lambda path: os.truncate(path.with_name(f"{path.name}.manifest.json"), 20),
    "no optimizer": drop_the_optimizer,
    "a NaN in it": poison,
}
FULLY = ("torn", "one bit", "missing")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [k if k in FULLY else pytest.param(k, marks=pytest.mark.long) for k in DAMAGE])
def test_damage_falls_back_and_trains_the_same(
    kind: str, tmp_path: Path, three_iterations: Path, four_iterations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(three_iterations, tmp_path / "quickstart" / "version_0", symlinks=True)
    DAMAGE[kind](run / "checkpoints" / NEWEST)
    assert runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=4", "--ckpt_path=last") == run
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("resuming from ")]
    assert "step-00000004.ckpt; skipped step-00000006.ckpt (" in line
    assert runs.largest_difference(runs.weights(run), runs.weights(four_iterations)) == 0.0
    assert runs.scalars(run) == runs.scalars(four_iterations)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_seen(kind: str, tmp_path: Path, three_iterations: Path) -> None:
    from gspo_lightning.resume import find_checkpoint

    run = shutil.copytree(three_iterations, tmp_path / "run", symlinks=True)
    DAMAGE[kind](run / "checkpoints" / NEWEST)
    found = find_checkpoint(run)
    assert found is not None
    assert found.checkpoint.name == "step-00000004.ckpt"
    assert [path.name for path, _ in found.skipped] == [NEWEST]


def test_a_file_in_the_place_of_the_link_is_passed_over(tmp_path: Path, three_iterations: Path) -> None:
    from gspo_lightning.resume import find_checkpoint

    run = shutil.copytree(three_iterations, tmp_path / "run", symlinks=True)
    last = run / "checkpoints" / "last.ckpt"
    last.unlink()
    last.write_bytes(b"half a checkpoint")
    found = find_checkpoint(run)
    assert found is not None
    assert found.checkpoint.name == NEWEST


def test_a_damaged_checkpoint_is_refused_by_path(
    tmp_path: Path, three_iterations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(three_iterations, tmp_path / "quickstart" / "version_0", symlinks=True)
    flip_one_bit(run / "checkpoints" / NEWEST)
    runs.fit(tmp_path, *OPTIONS, f"--ckpt_path={run / 'checkpoints' / 'last.ckpt'}", code=2)
    assert "checksum" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_run_folder_stands_for_its_newest_checkpoint(
    tmp_path: Path, three_iterations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(three_iterations, tmp_path / "quickstart" / "version_0", symlinks=True)
    more = [*OPTIONS, "--trainer.max_epochs=4"]
    assert runs.fit(tmp_path, *more, f"--ckpt_path={run}") == run
    assert runs.checkpoint(run)["global_step"] == 8
    for file in (run / "checkpoints").glob("*.ckpt"):
        if not file.is_symlink():
            file.write_bytes(b"torn")
    runs.fit(tmp_path, *more, f"--ckpt_path={run}", code=2)
    assert "error: --ckpt_path: no checkpoint in" in capsys.readouterr().err  # nobody said 'last'
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    runs.fit(tmp_path, *more, f"--ckpt_path={tmp_path / 'empty'}", code=2)
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    for argv in (
        ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *OPTIONS, f"--ckpt_path={tmp_path / 'other'}"],
        ["export", str(tmp_path / "other"), str(tmp_path / "exported")],
    ):
        assert main(argv) == 2
        said = capsys.readouterr().err
        assert "other is neither a run folder, which has checkpoints/, nor a checkpoint\n" in said
        assert "unverified" not in said


def test_a_checkpoint_loads_without_code_and_says_where_it_comes_from(three_iterations: Path) -> None:
    content = runs.checkpoint(three_iterations)  # weights_only=True
    origin = content["gspo_run"]
    assert origin["config"]["data"]["group_size"] == 4
    assert origin["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert origin["data"]["train"]["prompts"] == 512
    assert list(origin["plugins"]) == ["graded.py"]


@pytest.mark.thorough
def test_a_resume_with_another_number_of_threads_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two threads are only said to be there: they wait for each other actively, for minutes on a busy machine."""
    one = runs.fit(tmp_path, *runs.UNTAUGHT, "--trainer.max_epochs=1")
    assert runs.checkpoint(one)["gspo_run"]["threads"] == 1  # of any tiny model on a CPU
    monkeypatch.setattr(cli, "threads_of", lambda device: 2)
    resumed = runs.fit(tmp_path, *runs.UNTAUGHT, "--ckpt_path=last")
    line = "changed since the checkpoint: threads of a rank: 1 -> 2 (the last digits of results may differ)"
    assert capsys.readouterr().err.count(line) == 1
    assert runs.checkpoint(resumed)["gspo_run"]["threads"] == 2


@pytest.mark.thorough
@pytest.mark.parametrize("keep_best", [2, 4])
def test_policy_of_what_is_kept(tmp_path: Path, keep_best: int) -> None:
    """With 4 of 5 to keep, checkpoints are fewer than those for most of the run, and none but the worst may go."""
    policy = {"class_path": "LastCheckpoint", "init_args": {"keep_last": 1, "keep_best": keep_best}}
    overlay = tmp_path / "keep.yaml"
    overlay.write_text(f"trainer:\n  callbacks: [{json.dumps(policy)}]\n")
    run = runs.fit(tmp_path, f"--config={overlay}", *OPTIONS, "--trainer.max_epochs=5")
    rewards = dict(runs.scalars(run)["reward/mean"])
    best = sorted(rewards[step] for step in (2, 4, 6, 8, 10))[-keep_best:]
    kept = {int(p.stem.split("-")[1]) for p in (run / "checkpoints").glob("step-*.ckpt")}
    assert 10 in kept
    assert len(kept) == keep_best + 1 - (rewards[10] in best)
    assert sorted(rewards[step] for step in kept)[-keep_best:] == best  # two updates may have the same reward
    assert (run / "checkpoints" / "last.ckpt").resolve().name == "step-00000010.ckpt"


@pytest.mark.thorough
def test_another_number_of_ranks_goes_on_from_the_end_of_an_iteration(tmp_path: Path) -> None:
    """Interruptions in the middle of iterations leave the last checkpoint behind one, however few are kept."""
    newest_only = '--trainer.callbacks=[{"class_path": "LastCheckpoint", "init_args": {"keep_last": 1}}]'
    more = [*OPTIONS, newest_only, "--trainer.max_epochs=4", "--data.minibatches_per_rollout=4", "--ckpt_path=last"]
    for trained in (1, 2):
        with runs.interrupted(lambda loader, trained=trained: (loader.iteration, loader.trained) == (1, trained)):
            run = runs.fit(tmp_path, *more, code=130)
    assert kept(run) == {4, 6}
    name = "step-%08d.ckpt"
    for ranks, step in ((None, 6), (1, 6), (2, 4)):
        found = find_checkpoint(run, ranks=ranks)
        assert found is not None
        assert found.checkpoint.name == name % step
    assert [(path.name, why) for path, why in found.skipped] == [(name % 6, "in the middle of an iteration of 1 ranks")]


def kept(run: Path) -> set[int]:
    return {int(path.stem.split("-")[1]) for path in (run / "checkpoints").glob("step-*.ckpt")}


@pytest.mark.thorough
def test_a_large_checkpoint_is_written_first_every_n_minutes_last_and_for_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SMALL", 0)
    options = [*OPTIONS, KEEP_ALL, "--trainer.max_epochs=5"]
    set_to = "--trainer.callbacks.init_args."
    assert kept(runs.fit(tmp_path / "few", *options)) == {2, 10}
    assert kept(runs.fit(tmp_path / "all", *options, f"{set_to}every_n_minutes=0")) == {2, 4, 6, 8, 10}
    assert kept(runs.fit(tmp_path / "two", *options, f"{set_to}every_n_iterations=2")) == {4, 8, 10}
    run = runs.fit(tmp_path / "best", *options, f"{set_to}keep_best=1")
    rewards = dict(runs.scalars(run)["reward/mean"])
    assert kept(run) == {
        s for s in (2, 4, 6, 8, 10) if s in (2, 10) or rewards[s] > max(rewards[t] for t in range(2, s, 2))
    }


@pytest.mark.thorough
@pytest.mark.parametrize("more", [[], ["--model.lora.r=4"], ["--model.old_policy=ResidentSnapshot"]])
def test_a_plan_says_how_large_a_checkpoint_is(
    tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=1", *more)
    size = (run / "checkpoints" / "last.ckpt").stat().st_size / (1 << 20)
    capsys.readouterr()
    argv = ["plan", f"--config={runs.QUICKSTART}", *runs.SMALL, *OPTIONS, *more]
    keep = (
        '--trainer.callbacks=[{"class_path": "LastCheckpoint", "init_args": {"keep_last": 3, "every_n_iterations": 4}}]'
    )
    for given, said in (([], "every iteration), 2 kept"), ([keep], "every 4 iterations), 3 kept")):
        assert main([*argv, *given]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("disk: "))
        assert float(line.split()[1]) == pytest.approx(size, abs=0.15)
        assert said in line
    assert main([*argv, keep.replace('"keep_last": 3', '"async_save": true')]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "a copy of a checkpoint" in line)
    assert float(line.split()[-2]) == pytest.approx(size, abs=0.15)
    assert main([*argv, "--trainer.enable_checkpointing=false"]) == 0
    assert "disk: " not in capsys.readouterr().out


@pytest.mark.thorough
def test_the_state_of_the_optimizer_is_left_out_if_wanted(
    tmp_path: Path, three_iterations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = '--trainer.callbacks=[{"class_path": "LastCheckpoint", "init_args": {"save_optimizer": false}}]'
    options = [*OPTIONS, callback]
    run = runs.fit(tmp_path, *options, "--trainer.max_epochs=1")
    file = run / "checkpoints" / "last.ckpt"
    assert torch.load(file, weights_only=True)["optimizer_states"] == []
    size = file.stat().st_size
    assert 2.5 < (three_iterations / "checkpoints" / "last.ckpt").stat().st_size / size < 3.1
    capsys.readouterr()
    assert main(["plan", f"--config={runs.QUICKSTART}", *runs.SMALL, *options]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("disk: "))
    assert float(line.split()[1]) == pytest.approx(size / (1 << 20), abs=0.15)
    assert runs.fit(tmp_path, *options, "--trainer.max_epochs=3", "--ckpt_path=last") == run
    assert "has no state of the optimizer" in capsys.readouterr().err
    assert runs.largest_difference(runs.weights(run), runs.weights(three_iterations)) > 0.0
    before, after = (dict(runs.scalars(one)["reward/mean"]) for one in (three_iterations, run))
    assert [after[step] for step in (1, 2, 3)] == [before[step] for step in (1, 2, 3)]  # sampled before any new moment


@pytest.mark.thorough
def test_a_run_that_fails_long_after_its_checkpoint_is_resumed_exactly(
    tmp_path: Path, four_iterations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Iteration, number: int) -> Experience:
        if number == 3:
            raise InfrastructureError("the server is gone")
        return own(self, number)

    own = Iteration.run
    monkeypatch.setattr(checkpoints, "SMALL", 0)
    monkeypatch.setattr(Iteration, "run", fails)
    run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=4", code=1)
    assert kept(run) == {2}
    monkeypatch.setattr(Iteration, "run", own)
    assert runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=4", "--ckpt_path=last") == run
    assert kept(run) == {2, 8}
    assert runs.largest_difference(runs.weights(run), runs.weights(four_iterations)) == 0.0
    assert runs.scalars(run) == runs.scalars(four_iterations)


@pytest.mark.thorough
def test_a_changed_config_is_shown_and_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=1")
    before = {f: f.read_bytes() for f in run.rglob("*") if f.is_file()}
    changed = [*OPTIONS, "--data.temperature=0.7", "--trainer.max_epochs=2", "--ckpt_path=last"]
    runs.fit(tmp_path, *changed, code=2)
    error = capsys.readouterr().err
    message = error[error.index("error: ") :]
    assert "data.temperature: 1.0 -> 0.7" in message
    assert "--allow_changed_config" in message
    assert "max_epochs" not in message
    assert len(message.splitlines()) <= 5
    assert {f: f.read_bytes() for f in run.rglob("*") if f.is_file()} == before
    runs.fit(tmp_path, *changed, "--allow_changed_config=true")
    shown = capsys.readouterr().err
    assert "changed since the checkpoint: data.temperature: 1.0 -> 0.7" in shown
    assert "changed since the checkpoint: trainer.max_epochs: 1 -> 2" in shown
    (resume,) = read_resumes(run)
    assert "data.temperature: 1.0 -> 0.7" in resume["changes"]
    assert resume["update"] == 2


@pytest.mark.thorough
def test_other_prompts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i}:", "answer": "1"}) + "\n" for i in range(16)))
    options = [*OPTIONS, f"--data.train={prompts}"]
    runs.fit(tmp_path, *options, "--trainer.max_epochs=1")
    prompts.write_text(prompts.read_text().replace('"7:"', '"8:"'))
    runs.fit(tmp_path, *options, "--trainer.max_epochs=2", "--ckpt_path=last", code=2)
    assert "16 prompts -> 16 (their content differs)" in capsys.readouterr().err


@pytest.mark.thorough
def test_an_allowed_learning_rate_really_changes(tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=1")
    more = ["--trainer.max_epochs=2", "--ckpt_path=last", "--allow_changed_config=true", "--model.optimizer.lr=0.5"]
    runs.fit(tmp_path, *OPTIONS, *more)
    assert dict(runs.scalars(run)["optim/lr"]) == pytest.approx({1: 2e-4, 2: 2e-4, 3: 0.5, 4: 0.5})


def limit_files() -> None:
    """No file of this process may grow beyond what events need: a checkpoint does not fit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))


@pytest.mark.thorough
def test_a_disk_that_is_full_when_a_checkpoint_is_written(tmp_path: Path, three_iterations: Path) -> None:
    run = shutil.copytree(three_iterations, tmp_path / "quickstart" / "version_0", symlinks=True)
    before = {f.name: f.read_bytes() for f in (run / "checkpoints").iterdir()}
    argv = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, f"--trainer.default_root_dir={tmp_path}", *OPTIONS]
    log = tmp_path / "log"
    more = ["--trainer.max_epochs=4", "--ckpt_path=last"]
    assert Command([*argv, *more], log=log, prepare=limit_files).start().wait() == [1]
    text = log.read_text()
    assert "error: the checkpoint" in text
    assert "cannot be written: File too large; older ones are untouched" in text
    assert "Traceback" not in text
    assert {f.name: f.read_bytes() for f in (run / "checkpoints").iterdir()} == before
    assert Command([*argv, *more], log=log).start().wait() == [0]  # there is room again


def test_a_checkpoint_never_holds_a_nan(tmp_path: Path) -> None:
    io = AtomicCheckpointIO()
    good = {"global_step": 1, "state_dict": {"w": torch.ones(2)}, "optimizer_states": [{"state": {0: torch.ones(2)}}]}
    io.save_checkpoint(good, tmp_path / "a.ckpt")
    for room in ("state_dict", "optimizer_states"):
        bad = {**good, room: {"w": torch.tensor([1.0, float("inf")])}}
        with pytest.raises(NonFiniteError, match=rf"{room}\.w is not finite"):
            io.save_checkpoint(bad, tmp_path / "b.ckpt")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ckpt", "a.ckpt.manifest.json"]
    assert zipfile.is_zipfile(tmp_path / "a.ckpt")
