"""Rewards that differ by rounding only teach nothing: 0.1 + 0.2 is 0.3 to every part of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from tests.runs import runs

TENTHS = [
    "--model.cold_start=null", f"--plugins={Path(__file__).with_name('tenths.py')}",
    '--data.rewards={"one": "EvenSum", "two": "EvenSum", "three": "OddSum"}',
    '--data.reward_weights={"one": 0.1, "two": 0.2, "three": 0.3}',
    "--trainer.max_epochs=1", "--data.minibatches_per_rollout=1", "--data.resample_dead_groups=2",
    "--model.optimizer.eps=1e-15",  # a step of full size for any gradient, however small
]  # fmt: skip
"""A response earns .1 + .2 = .30000000000000004, or .3."""


@pytest.mark.thorough
def test_totals_that_differ_by_rounding_are_dead_groups(tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *TENTHS, "--data.record_rollouts=true", "--data.record_tokens=64")
    totals = defaultdict(set)
    for file in sorted((run / "rollouts").glob("*.jsonl")):
        for row in map(json.loads, file.read_text().splitlines()):
            totals[row["prompt"]].add(row["reward"])
    assert {0.3, 0.1 + 0.2} in totals.values()
    scalars = {tag: values[-1][1] for tag, values in runs.scalars(run).items()}
    assert scalars["reward/dead_groups"] == 1.0
    assert scalars["reward/resampled_groups"] == 0.0
    assert scalars["reward/std"] == 0.0
    assert scalars["optim/gradient_norm"] == 0.0
    assert runs.largest_difference(runs.weights(run), runs.untrained()) == 0.0


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["LeaveOneOut", "MaxRL"])
def test_other_advantages_see_no_difference_either(name: str, tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *TENTHS, f"--data.advantages={name}")
    assert runs.largest_difference(runs.weights(run), runs.untrained()) == 0.0


@pytest.mark.thorough("weighted_sum")
@pytest.mark.parametrize("combine", ["weighted_sum", "normalised_separately"])
def test_rewards_of_float32_differ_by_its_own_rounding(combine: str, tmp_path: Path) -> None:
    single = ['--data.rewards={"one": "SingleSum"}', "--data.reward_weights={}", f"--data.combine_rewards={combine}"]
    run = runs.fit(tmp_path, *TENTHS, *single, "--data.record_rollouts=true", "--data.record_tokens=64")
    rows = [json.loads(line) for file in (run / "rollouts").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert {row["reward"] for row in rows} == {1.0, float(np.float32(1.0000001))}  # one of the two in each group
    assert dict(runs.scalars(run)["reward/dead_groups"])[1] == 1.0
    assert runs.largest_difference(runs.weights(run), runs.untrained()) == 0.0
