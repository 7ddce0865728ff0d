"""A NaN never reaches the weights or a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gspo_lightning.objectives import GSPO
from tests.training import runs


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_non_finite_gradient_stops_the_run_and_leaves_a_good_checkpoint(
    tmp_path: Path, poison: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, calls = GSPO.__call__, []

    def poisoned(self: GSPO, *args: object, **kwargs: object) -> object:
        out = original(self, *args, **kwargs)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 4:  # the second update of the second iteration
            out.loss = out.loss * poison
        return out

    monkeypatch.setattr(GSPO, "__call__", poisoned)
    options = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0"]
    run = runs.fit(tmp_path, *options, code=1)
    error = capsys.readouterr().err
    assert "gradient of update 4 is not finite" in error
    assert "Traceback" not in error
    saved = runs.checkpoint(run)
    assert saved["global_step"] == 2
    assert all(torch.isfinite(v).all() for v in runs.weights(run).values())
    monkeypatch.undo()
    whole = runs.fit(tmp_path / "whole", *options)
    resumed = runs.fit(tmp_path, *options, "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(whole), runs.weights(resumed)) == 0.0
