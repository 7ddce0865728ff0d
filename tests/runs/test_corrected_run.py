"""Corrections for a sampler that is off, in whole runs: what is masked, and steps by the effective sample size."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.runs import runs
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_invariance import OPTIONS

OFF = [
    *OPTIONS, f"--plugins+={Path(__file__).with_name('distorted.py')}", "--data.rollouts=Distorted",
    "--model.old_logprobs=recompute", "--data.minibatches_per_rollout=1",
]  # fmt: skip
BAND = ["--model.objective.correction_floor=0.8", "--model.objective.correction_cap=1.25"]
CORRECTED = [*OFF, "--model.objective.correction=sequence", *BAND]


def test_a_step_is_scaled_by_the_root_of_the_effective_sample_size(tmp_path: Path) -> None:
    """Plain gradient descent: the weights move by the same gradient at another rate, and the rate is put back."""
    plain = runs.fit(tmp_path / "plain", *CORRECTED)
    scaled = runs.fit(tmp_path / "scaled", *CORRECTED, "--model.ess_step_scaling=true", "--model.metrics=off")
    ((_, share),) = runs.scalars(plain)["correction/effective_sample_size"]
    assert 0.9 < share < 0.99
    assert runs.scalars(scaled)["optim/lr"] == [(1, pytest.approx(0.5 * math.sqrt(share)))]
    start, one, other = runs.untrained(), runs.weights(plain), runs.weights(scaled)
    for name, before in start.items():
        assert (other[name] - before).allclose((one[name] - before) * math.sqrt(share), atol=3e-7), name
    (group,) = runs.checkpoint(scaled)["optimizer_states"][0]["param_groups"]
    assert group["lr"] == 0.5


@pytest.mark.thorough
def test_a_mask_with_two_bounds_and_a_trust_region_say_what_they_drop(tmp_path: Path) -> None:
    """Responses k = 0 to 3 of a group are off by about .42, -.38, .33 and -.27 nats: weights 1.5, .7, 1.4 and .8."""
    masked = runs.scalars(runs.fit(tmp_path / "band", *CORRECTED, "--model.objective.correction_mode=mask"))
    assert masked["correction/masked"][0][1] > 0.5
    assert masked["correction/masked_length"][0][1] > 1
    region = runs.scalars(runs.fit(tmp_path / "trm", *OFF, "--model.objective.trm_delta=0.08"))
    assert 0.2 < region["correction/trm_sequences"][0][1] < 0.8
    assert region["correction/masked"][0][1] > 0.1
    assert "correction/weight" not in region


@pytest.mark.thorough
def test_two_ranks_scale_a_step_as_one_process_does(tmp_path: Path) -> None:
    options = [*CORRECTED, "--model.ess_step_scaling=true"]
    two = fit_on_ranks(tmp_path / "two", *options, overlay="ddp")
    one = runs.fit(tmp_path / "one", *options)
    assert runs.largest_difference(runs.weights(one), runs.weights(two)) < 1e-6


def test_scaling_without_a_correction_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.fit(tmp_path, *OFF, "--model.ess_step_scaling=true", code=2)
    assert "model.ess_step_scaling" in capsys.readouterr().err
