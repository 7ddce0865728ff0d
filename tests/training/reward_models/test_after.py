"""What other commands make of a finished or interrupted run of ``gspo fit-reward``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from gspo_lightning.cli import main
from gspo_lightning.rewards import Sample, SequenceClassificationReward
from tests.runs import runs as policy_runs
from tests.support.recorded_run import write_run
from tests.training.reward_models import runs

SHORT = ["--data.batch_size=10", "--model.optimizer.lr=1e-2", "--trainer.max_epochs=2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train, val = (runs.write(folder / f"{n}.jsonl", runs.planted(23, n)) for n in (0, 1))
    return runs.fit_reward(folder, train, f"--data.val={val}", *SHORT)


@pytest.mark.thorough
def test_a_report_draws_the_picture_of_the_end_again(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    before = (run / "report.png").read_bytes()
    (run / "report.png").unlink()
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    assert (run / "report.png").read_bytes() == before
    assert not (run / "report.md").exists()
    said = capsys.readouterr().out
    value = runs.results(run)["held_out"]["accuracy"]["value"]
    assert f"held-out accuracy {value:.3f} (95% interval" in said
    assert "23 pairs of 23 prompts" in said
    assert "note:" not in said
    assert main(["report", str(run), "--output", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "report.png").read_bytes() == before


@pytest.mark.thorough(
    "results.json-note: no results.json: the run has not finished; its curves are drawn as far as it went"
)
@pytest.mark.parametrize(
    ("lost", "note"),
    [
        ("results.json", "note: no results.json: the run has not finished; its curves are drawn as far as it went"),
        ("held_out_margins.json", "note: no margins of held-out pairs are drawn: held_out_margins.json is missing"),
    ],
)
def test_a_report_of_an_unfinished_or_older_run_says_what_is_missing(
    trained: Path, tmp_path: Path, lost: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    before = (run / "report.png").read_bytes()
    (run / lost).unlink()
    assert main(["report", str(run)]) == 0
    assert note in capsys.readouterr().out
    assert (run / "report.png").read_bytes() not in (before, b"")


def test_results_from_before_a_run_went_on_are_not_its_results(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "results.json").write_text(json.dumps({**runs.results(run), "updates": 2}))
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr().out
    assert "note: results.json was written at update 2, before the run went on" in said
    assert "held-out accuracy" not in said


def test_a_reward_model_is_not_drawn_beside_a_policy(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = write_run(tmp_path / "policy" / "version_0")
    assert main(["report", str(policy), str(trained)]) == 2
    assert f"{trained} is a run of gspo fit-reward, which cannot be drawn beside others" in capsys.readouterr().err


EACH = '--trainer.callbacks=[{"class_path": "RunCheckpoint", "init_args": {"every_n_steps": 1}}]'


def rewards_of(folder: Path, answers: list[str]) -> list[float]:
    reward = SequenceClassificationReward(str(folder))
    return [score.reward for score in reward.score_batch([Sample("0", "1+1:", answer) for answer in answers])]


@pytest.mark.thorough
@pytest.mark.parametrize("lora", [[], ["--model.lora.r=4"]], ids=["all weights", "adapters"])
def test_a_checkpoint_is_exported_as_the_run_exports_itself(
    tmp_path: Path, lora: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The last checkpoint gives the folder of the run's end; the one before it gives its own weights, no results."""
    train, val = (runs.write(tmp_path / f"{n}.jsonl", runs.planted(23, n)) for n in (0, 1))
    run = runs.fit_reward(tmp_path / "runs", train, f"--data.val={val}", *SHORT, *lora, EACH)
    before, last = sorted((run / "checkpoints").glob("step-*.ckpt"))
    assert main(["export", str(last), str(tmp_path / "last")]) == 0
    ours = {file.name: file.read_bytes() for file in (tmp_path / "last").iterdir()}
    assert ours == {file.name: file.read_bytes() for file in (run / "model").iterdir()}
    assert main(["export", str(before), str(tmp_path / "before")]) == 0
    card = (tmp_path / "before" / "README.md").read_text()
    assert "| updates | 5 |" in card
    assert "held-out pairs" not in card
    assert not (tmp_path / "before" / "report.png").exists()

    answers = ["AA7", "B", "xyzAB"]
    exported = AutoModelForSequenceClassification.from_pretrained(tmp_path / "last")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "last")
    with torch.no_grad():
        alone = [float(exported(**tokenizer(f"1+1:{a}", return_tensors="pt")).logits[0, 0]) for a in answers]
    assert rewards_of(tmp_path / "last", answers) == pytest.approx(alone, abs=1e-5)
    assert rewards_of(tmp_path / "before", answers) != pytest.approx(alone, abs=1e-4)  # of one update less

    capsys.readouterr()
    assert main(["export", str(last), str(tmp_path / "last")]) == 2
    assert f"output: {tmp_path / 'last'} exists" in capsys.readouterr().err
    assert main(["export", str(last), str(tmp_path / "last"), "--overwrite"]) == 0
    assert {file.name: file.read_bytes() for file in (tmp_path / "last").iterdir()} == ours


@pytest.mark.thorough
def test_a_run_does_not_end_by_deleting_what_it_did_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = runs.write(tmp_path / "train.jsonl", runs.planted(23))
    argv = [f"--data.val={train}", *SHORT]
    run = runs.fit_reward(tmp_path / "runs", train, *argv)
    (run / "model" / "mine.txt").write_text("notes")
    again = [*argv, "--ckpt_path=last", "--trainer.max_epochs=2"]
    runs.fit_reward(tmp_path / "runs", train, *again, code=2)  # before it trains
    assert f"ckpt_path: {run / 'model'} holds mine.txt, which no export wrote" in capsys.readouterr().err
    (run / "model" / "mine.txt").rename(tmp_path / "mine.txt")
    assert runs.fit_reward(tmp_path / "runs", train, *again) == run


@pytest.mark.thorough
def test_commands_for_policies_name_a_reward_model(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, config = str(trained / "checkpoints" / "last.ckpt"), str(trained / "config.yaml")
    evaluation = tmp_path / "results"
    evaluation.mkdir()
    (evaluation / "results.json").write_text(
        json.dumps({"run": {}, "aime2024": {"avg@4": {"value": 0.25, "low": 0.1, "high": 0.4, "n": 30}}})
    )
    runs.write(tmp_path / "aime2024.jsonl", [{"id": "1", "problem": "1+1", "answer": "2"}])
    root = f"--trainer.default_root_dir={tmp_path}"
    for argv, message in (
        (["fit", "--config=quickstart", f"--ckpt_path={checkpoint}", root], "ckpt_path: "),
        (["validate", "--config=quickstart", f"--ckpt_path={checkpoint}", root], "ckpt_path: "),
        (["evaluate", f"--ckpt_path={checkpoint}", "--suite=aime2024", f"--data={tmp_path}"], "checkpoint: "),
        (["fit", f"--config={config}", root], "config: is for a reward model: it sets model.center_rewards_coef"),
        (["plan", "--config=reward_model"], "config: is for a reward model: it sets model.center_rewards_coefficient"),
        (["export", checkpoint, str(tmp_path / "o"), "--evaluation", str(evaluation)], "--evaluation: is for policies"),
    ):
        assert main(argv) == 2
        said = capsys.readouterr().err
        assert f"error: {message}" in said
        assert "holds a reward model" in said or "is for a reward model" in said
        assert "Traceback" not in said


def test_a_policy_is_not_resumed_as_a_reward_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = policy_runs.fit(tmp_path / "policy", *policy_runs.UNTAUGHT, "--trainer.max_epochs=1")
    train = runs.write(tmp_path / "t.jsonl", runs.planted(23))
    checkpoint = policy / "checkpoints" / "last.ckpt"
    assert main(runs.command(tmp_path, train, f"--data.val={train}", f"--ckpt_path={checkpoint}")) == 2
    said = capsys.readouterr().err
    assert f"ckpt_path: {checkpoint.resolve()} holds a policy" in said
    assert "give a checkpoint of gspo fit-reward" in said
