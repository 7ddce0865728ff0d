"""``data.suites``: benchmarks beside the held-out prompts, by the code of ``gspo evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks

SUITE = """\
about: held-out sums
data: {class_path: ChainTask, init_args: {split: held_out, size: 24}}
reward: {class_path: ExactMatch}
samples: 2
sampling: {temperature: 1.0, top_p: 1.0, max_response_tokens: 12}
metrics: [avg, pass]
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "sums.yaml"
    path.write_text(SUITE)
    return path


def test_every_evaluation_answers_the_suite_and_evaluate_finds_the_same(suite: Path, tmp_path: Path) -> None:
    run = runs.fit(tmp_path / "runs", "--model.cold_start=null", f"--data.suites=[{suite}]")
    found = runs.scalars(run)
    avg, chance = found["suite/sums/avg@2"], found["suite/sums/pass@2"]
    assert [step for step, _ in avg] == [step for step, _ in found["val/accuracy"]]
    assert len(avg) == len(chance) >= 2
    last = run / "checkpoints" / "last.ckpt"
    words = ["--suite", str(suite), "--ckpt_path", str(last), "--output", str(tmp_path / "after"), "--workers=1"]
    assert main(["evaluate", *words]) == 0
    after = json.loads((tmp_path / "after" / "results.json").read_text())["sums"]
    assert after["avg@2"]["value"] == pytest.approx(avg[-1][1], abs=1e-7)
    assert after["truncated"]["value"] == pytest.approx(found["suite/sums/truncated"][-1][1], abs=1e-7)


def test_a_suite_that_is_not_there_is_said_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, "--model.cold_start=null", "--data.suites=[aime2042]", code=2)
    assert "'aime2042' is not a suite; did you mean aime20" in capsys.readouterr().err


@pytest.mark.long
def test_two_ranks_share_the_problems(suite: Path, tmp_path: Path) -> None:
    words = ["--model.cold_start=null", f"--data.suites=[{suite}]", "--trainer.max_epochs=1"]
    alone = runs.scalars(runs.fit(tmp_path / "alone", *words))
    both = runs.scalars(fit_on_ranks(tmp_path / "two", *words, "--trainer.strategy=ddp"))
    assert both["suite/sums/avg@2"][0] == alone["suite/sums/avg@2"][0]
