"""``gspo predict``: where it writes, what it says, and which policy it says it was."""

from __future__ import annotations

import json
import stat
import warnings
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests.runs import runs

PLAIN = ["--data.val=null", "--trainer.num_sanity_val_steps=0", "--trainer.max_epochs=2"]
ASKED = [
    '--data.predict={"class_path": "ChainTask", "init_args": {"split": "held_out", "size": 6}}',
    "--data.evaluation.samples=2",
    "--data.evaluation.temperature=1",
    "--data.reward_workers=1",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder after two iterations of two updates."""
    return runs.fit(tmp_path_factory.mktemp("root"), *runs.UNTAUGHT, *PLAIN)


def predict(root: Path, *more: str) -> list[str]:
    argv = ["predict", f"--config={runs.QUICKSTART}", *runs.SMALL, *runs.UNTAUGHT, *PLAIN, *ASKED]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert main([*argv, f"--trainer.default_root_dir={root}", *more]) == 0
    return [str(warning.message) for warning in found]


@pytest.mark.thorough
def test_predict_writes_into_the_run_and_prints_the_mean_reward(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = predict(trained.parents[1], "--ckpt_path=last")
    shown = capsys.readouterr()
    (file,) = trained.glob("predict/*/predictions.jsonl")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 12
    assert {row["policy_version"] for row in rows} == {4}
    assert runs.checkpoint(trained)["global_step"] == 4
    mean = sum(row["reward"] for row in rows) / 12
    assert f"12 responses, mean reward {mean:.4g}\n" in shown.out
    assert str(file) in shown.out
    for words in ("add the following callbacks", "infer the batch indices"):
        assert not any(words in text for text in said)
        assert words not in shown.err


@pytest.mark.thorough
def test_second_predict_writes_another_folder(trained: Path) -> None:
    before = set(trained.glob("predict/*"))
    predict(trained.parents[1], f"--ckpt_path={trained / 'checkpoints' / 'last.ckpt'}")
    assert len(set(trained.glob("predict/*")) - before) == 1


def test_predictions_without_a_checkpoint_have_policy_version_0(tmp_path: Path) -> None:
    predict(tmp_path)
    (file,) = tmp_path.glob("quickstart/predict/*/predictions.jsonl")
    assert {json.loads(line)["policy_version"] for line in file.read_text().splitlines()} == {0}
    assert [f for f in tmp_path.rglob("*") if f.is_file()] == [file]
