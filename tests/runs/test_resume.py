"""An interrupted run goes on bit for bit, in the same folder, with no step lost or doubled."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.loop.experience import generate_and_score
from gspo_lightning.loop.experience.loader import ExperienceLoader
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks

OPTIONS = [*runs.UNTAUGHT, "--trainer.max_epochs=4", "--data.max_tokens_per_micro_batch=100"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("undisturbed"), *OPTIONS)


def assert_same_run(run: Path, undisturbed: Path) -> None:
    assert runs.largest_difference(runs.weights(run), runs.weights(undisturbed)) == 0.0
    assert runs.scalars(run) == runs.scalars(undisturbed)
    mine, theirs = runs.checkpoint(run), runs.checkpoint(undisturbed)
    assert mine["global_step"] == theirs["global_step"]
    assert runs.summary(run)["accuracy_before"] == runs.summary(undisturbed)["accuracy_before"]


@pytest.mark.thorough
@pytest.mark.parametrize("update", [1, 4, 7])  # 4: an evaluation is due
@pytest.mark.parametrize(
    "old_policy",  # with cached log-probabilities the next test interrupts one run after every update
    [pytest.param("CachedLogProbs", marks=pytest.mark.long), "ResidentSnapshot"],
)
def test_interrupt_after_any_update_then_resume(
    tmp_path: Path, undisturbed: Path, update: int, old_policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    signum = signal.SIGTERM if old_policy == "ResidentSnapshot" else signal.SIGINT  # both stop in the same way
    original = ExperienceLoader.mark_trained

    def interrupt(self: ExperienceLoader) -> None:
        original(self)
        if self.iteration * 2 + self.trained == update:
            os.kill(os.getpid(), signum)  # a real Ctrl-C, in the middle of Lightning's batch

    options = [*OPTIONS, f"--model.old_policy={old_policy}"]
    monkeypatch.setattr(ExperienceLoader, "mark_trained", interrupt)
    run = runs.fit(tmp_path, *options, code=128 + signum)
    assert runs.checkpoint(run)["global_step"] == update
    monkeypatch.undo()
    assert runs.fit(tmp_path, *options, "--ckpt_path=last") == run
    assert_same_run(run, undisturbed)


@pytest.mark.thorough
def test_a_run_that_is_interrupted_again_and_again_is_the_same_run(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every update, also the last of an iteration: Lightning's count of iterations must not fall behind."""
    original = ExperienceLoader.mark_trained

    def interrupt(self: ExperienceLoader) -> None:
        original(self)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ExperienceLoader, "mark_trained", interrupt)
    for update in range(1, 8):
        run = runs.fit(tmp_path, *OPTIONS, "--ckpt_path=last", code=130)
        assert runs.checkpoint(run)["global_step"] == update
    monkeypatch.undo()
    assert runs.fit(tmp_path, *OPTIONS, "--ckpt_path=last") == run
    assert_same_run(run, undisturbed)


@pytest.mark.thorough
@pytest.mark.parametrize("updates", [2, 3])  # at the end of an iteration, and in the middle of one
def test_a_run_that_max_steps_ends_goes_on_where_it_stopped(tmp_path: Path, undisturbed: Path, updates: int) -> None:
    run = runs.fit(tmp_path, *OPTIONS, f"--trainer.max_steps={updates}")
    assert runs.checkpoint(run)["global_step"] == updates
    assert runs.fit(tmp_path, *OPTIONS, "--ckpt_path=last") == run
    assert runs.checkpoint(run)["global_step"] == 8
    assert runs.largest_difference(runs.weights(run), runs.weights(undisturbed)) == 0.0
    mine, theirs = runs.scalars(run), runs.scalars(undisturbed)
    assert {tag: mine[tag] for tag in theirs if not tag.startswith("val/")} == {
        tag: values for tag, values in theirs.items() if not tag.startswith("val/")
    }  # the run that ended has one more evaluation


@pytest.mark.thorough
@pytest.mark.parametrize("deal", ["shuffled", "groups"])
def test_a_deal_is_resumed_in_the_middle_of_an_iteration_and_is_not_changed(
    tmp_path: Path, undisturbed: Path, deal: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*OPTIONS, "--trainer.max_epochs=2", f"--data.deal={deal}"]
    whole = runs.fit(tmp_path / "whole", *options)
    run = runs.fit(tmp_path / "halves", *options, "--trainer.max_steps=1")
    runs.fit(tmp_path / "halves", *options[:-1], "--data.deal=stratified", "--ckpt_path=last", code=2)
    assert f"data.deal: {deal} -> stratified" in capsys.readouterr().err
    batches = runs.handed_out(monkeypatch)
    assert runs.fit(tmp_path / "halves", *options, "--ckpt_path=last") == run
    assert [(b.iteration, b.index) for b in batches] == [(0, 1), (1, 0), (1, 1)]
    assert runs.largest_difference(runs.weights(run), runs.weights(whole)) == 0.0
    assert runs.scalars(run)["reward/mean"] == runs.scalars(whole)["reward/mean"]
    assert runs.scalars(run)["loss"][:2] != runs.scalars(undisturbed)["loss"][:2]  # which deals in another way


@pytest.mark.thorough
def test_interrupt_during_a_rollout_then_resume(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = generate_and_score.generate_and_score

    def interrupted(*args: object, **kwargs: object) -> object:
        if kwargs["group_size"] == 4 and kwargs["version"] == 4:
            raise KeyboardInterrupt
        return original(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(generate_and_score, "generate_and_score", interrupted)
    run = runs.fit(tmp_path, *OPTIONS, code=130)
    monkeypatch.undo()
    runs.fit(tmp_path, *OPTIONS, "--ckpt_path=last")
    assert_same_run(run, undisturbed)


def test_interrupt_before_the_first_update_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gspo_lightning.loop.experience.iteration.Iteration.run", interrupted)
    run = runs.fit(tmp_path, *OPTIONS, code=130)
    assert not (run / "checkpoints" / "last.ckpt").exists()
    assert "there is no checkpoint" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_checkpoint_may_change_the_form_of_the_old_policy(tmp_path: Path, undisturbed: Path) -> None:
    half = [*OPTIONS, "--trainer.max_epochs=2"]
    for before, after in (("ResidentSnapshot", "CachedLogProbs"), ("CachedLogProbs", "ResidentSnapshot")):
        root = tmp_path / before
        runs.fit(root, *half, f"--model.old_policy={before}")
        run = runs.fit(root, *OPTIONS, f"--model.old_policy={after}", "--ckpt_path=last")
        assert runs.largest_difference(runs.weights(run), runs.weights(undisturbed)) == 0.0


@pytest.mark.thorough
def test_the_only_checkpoint_torn_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=1")
    last = run / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    runs.fit(tmp_path, *OPTIONS, "--ckpt_path=last", code=2)
    assert "no checkpoint in" in (error := capsys.readouterr().err)
    assert "step-00000002.ckpt: torn: 1,000 of" in error


@pytest.mark.thorough
def test_last_before_there_is_a_run_starts_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=1", "--ckpt_path=last")
    assert run.name == "version_0"
    assert "starting from the beginning" in capsys.readouterr().err


def test_last_without_a_checkpoint_is_a_clear_error_where_nothing_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["validate", f"--config={runs.QUICKSTART}", f"--trainer.default_root_dir={tmp_path}", "--ckpt_path=last"]
    assert main(argv) == 2
    assert "no run in" in capsys.readouterr().err


@pytest.mark.long
def test_two_ranks_go_on_in_the_middle_of_an_iteration_each_with_its_own_rows(tmp_path: Path) -> None:
    """Rank 0 writes what both still need: one of two mini-batches here, in the second pass."""
    options = [
        *OPTIONS, "--trainer.max_epochs=1", "--data.epochs_per_rollout=2", "--data.val=null",
        "--trainer.strategy=ddp",
    ]  # fmt: skip

    def run(name: str, *more: str) -> Path:
        return fit_on_ranks(tmp_path / name, *options, *more)

    whole = run("whole")
    half = run("halves", "--trainer.max_steps=3")
    first, second = runs.checkpoint(half)["PromptDataModule"]["ranks"]
    kept = [[b is not None for b in rank["experience"]["mini_batches"]] for rank in (first, second)]
    assert kept[0] == kept[1]
    assert sorted(kept[0]) == [False, True]  # one of two comes in the second pass
    left = [next(b for b in rank["experience"]["mini_batches"] if b) for rank in (first, second)]
    assert not torch.equal(*(batch["micro_batches"][0]["input_ids"] for batch in left))
    assert run("halves", "--ckpt_path=last") == half
    assert runs.largest_difference(runs.weights(half), runs.weights(whole)) == 0.0
    assert runs.scalars(half) == runs.scalars(whole)
