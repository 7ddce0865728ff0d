"""Measuring reads tensors and never writes any: weights are the same, bit for bit, however much is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import runs

OPTIONS = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0"]


@pytest.mark.thorough
def test_weights_do_not_depend_on_what_is_measured(tmp_path: Path) -> None:
    found = {
        level: runs.fit(tmp_path / level, *OPTIONS, f"--model.metrics={level}") for level in ("full", "basic", "off")
    }
    for level in ("basic", "off"):
        assert runs.largest_difference(runs.weights(found["full"]), runs.weights(found[level])) == 0.0
    full, basic, off = (runs.scalars(found[level]) for level in ("full", "basic", "off"))
    for fewer in (basic, off):
        assert {tag: full[tag] for tag in fewer} == fewer
    assert {"update/changed", "ratio/log_token_p01", "by_mini_batch/clip_tokens_1"} <= full.keys() - basic.keys()
    assert "clip/tokens" in basic.keys() - off.keys()
    assert {"loss", "optim/gradient_norm", "reward/mean"} <= off.keys()
