"""What other commands make of a finished or interrupted run of ``gspo fit-reward``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests.reward_models import runs
from tests.support.recorded_run import write_run

SHORT = ["--data.batch_size=10", "--model.optimizer.lr=1e-2", "--trainer.max_epochs=2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train, val = (runs.write(folder / f"{n}.jsonl", runs.planted(23, n)) for n in (0, 1))
    return runs.fit_reward(folder, train, f"--data.val={val}", *SHORT)


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
