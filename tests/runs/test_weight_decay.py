"""Weights move where a reward moves them, and nowhere else: no optimizer decays them unless a config says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.runs import runs

FLAT = [
    "--model.cold_start=null", f"--plugins={Path(runs.__file__).with_name('graded.py')}",
    '--data.rewards={"flat": "Flat"}', "--trainer.max_epochs=1", "--data.minibatches_per_rollout=1",
]  # fmt: skip
"""One update whose gradient is exactly 0: every response is worth the same."""


def config(folder: Path, optimizer: object) -> Path:
    """The quickstart with another optimizer, or with none."""
    content = yaml.safe_load(runs.QUICKSTART.read_text())
    del content["model"]["optimizer"]
    content["model"] |= {"optimizer": optimizer} if optimizer is not None else {}
    file = folder / "decay.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.mark.thorough("None")
@pytest.mark.parametrize("optimizer", [None, {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-2}}])
def test_a_zero_gradient_moves_no_weight(optimizer: object, tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *FLAT, config=config(tmp_path, optimizer), small=True)
    assert runs.checkpoint(run)["global_step"] == 1
    assert runs.largest_difference(runs.weights(run), runs.untrained()) == 0.0


@pytest.mark.thorough
def test_a_run_that_decayed_its_weights_goes_on_so_or_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, "torch.optim.Adam")
    decayed = "--model.optimizer.weight_decay=0.01"  # an older version decayed so without a word in the config
    run = runs.fit(tmp_path, *FLAT, decayed, config=file)
    before, after = runs.untrained(), runs.weights(run)
    assert runs.largest_difference(after, before) > 0
    longer = [*FLAT, "--trainer.max_epochs=2", "--ckpt_path=last"]
    runs.fit(tmp_path, *longer, config=file, code=2)
    assert "model.optimizer.init_args.weight_decay: 0.01 -> 0.0" in capsys.readouterr().err
    assert runs.largest_difference(runs.weights(run), after) == 0.0
    assert runs.fit(tmp_path, *longer, decayed, config=file) == run
    assert runs.largest_difference(runs.weights(run), after) > 0
