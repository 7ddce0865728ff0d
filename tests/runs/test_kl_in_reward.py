"""The KL penalty in whole runs: where there is no KL there is no gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import runs

OPTIONS = [
    "--model.cold_start=null", f"--plugins={Path(__file__).with_name('graded.py')}", "--data.val=null",
    "--trainer.num_sanity_val_steps=0", "--trainer.precision=bf16-mixed",
]  # fmt: skip


@pytest.mark.thorough("normalised_separately")
@pytest.mark.parametrize("combine", ["weighted_sum", "normalised_separately"])
def test_equal_rewards_and_a_policy_that_is_the_reference_have_no_gradient(tmp_path: Path, combine: str) -> None:
    chosen = ['--data.rewards={"flat": "Flat"}', "--data.kl_in_reward=1", f"--data.combine_rewards={combine}"]
    run = runs.fit(tmp_path, *OPTIONS, *chosen)
    scalars = runs.scalars(run)
    assert scalars["optim/gradient_norm"] == [(step, 0.0) for step in (1, 2, 3, 4)]
    assert scalars["reward/dead_groups"] == [(step, 1.0) for step in (1, 2, 3, 4)]


@pytest.mark.thorough
def test_before_the_first_update_no_coefficient_matters(tmp_path: Path) -> None:
    """Sampled and trained in bfloat16, whose noise is not a KL."""
    chosen = [*OPTIONS, '--data.rewards={"graded": "Graded"}', "--trainer.max_epochs=1"]
    free, held = (runs.fit(tmp_path / str(c), *chosen, f"--data.kl_in_reward={c}") for c in (0, 100))
    assert runs.largest_difference(runs.weights(free), runs.weights(held)) == 0.0
    assert runs.scalars(free)["optim/gradient_norm"][0][1] > 1e-3
