"""Early warnings on recorded curves that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.lab.early_warning import Replayed, main, replay, reward_fall, table
from gspo_lightning.report.run import Run, Series


def recorded(rewards: list[float], drift: list[float]) -> Run:
    """Two updates an iteration, one drift each."""
    updates = np.arange(2 * len(rewards))
    curves = {
        "reward/mean": [r for r in rewards for _ in range(2)],
        "data/mini_batch": [0.0, 1.0] * len(rewards),
        "kl/old_new_k3": drift,
    }
    scalars = {tag: Series(updates, np.array(values, dtype=np.float64)) for tag, values in curves.items()}
    scalars["val/accuracy"] = Series(np.array([0, 4]), np.array([0.2, 0.5]))  # of evaluations, not of updates
    return Run(Path("x"), scalars, config={"data": {"minibatches_per_rollout": 2, "prompts_per_rollout": 4}})


def test_a_warning_is_dated_before_the_fall() -> None:
    drift = [0.5, 0.5, 0, 0, 0, 0.06, 0.06, 0.06, 0, 0, 0, 0]  # the first iteration is exempt, and update 6 pays
    found = replay(recorded([0.4, 0.8, 0.8, 0.8, 0.2, 0.1], drift), "it")
    # means of two iterations: .6, .8, .8, .5, .15; the fourth is .3 below the best: iteration 4 (from 0), update 9
    assert (found.fell, found.warned) == (9, {"drift_without_reward": 8, "reward_collapse": 12})
    calm = replay(recorded([0.4, 0.8, 0.8, 0.8, 0.8, 0.8], drift[:5] + [0.0] * 7), "calm")
    assert (calm.fell, calm.warned, calm.learned) == (None, {}, True)
    assert reward_fall([0.5]) is None
    assert reward_fall([0.8, 0.8, 0.1, 0.1, 0.8, 0.8, 0.3, 0.2]) == 6  # that it came back in between starts a new one


def test_the_table_counts_warnings_before_the_fall_only() -> None:
    runs = [
        Replayed("in time", 20, {"ratio_tails": 12, "drift_without_reward": 15}),
        Replayed("late", 20, {"ratio_tails": 20, "reward_collapse": 25}),
        Replayed("calm", None, {}),
        Replayed("false", None, {"sample_size_fall": 7}),
        Replayed("never learned", None, {"ratio_tails": 7}, learned=False),
    ]
    rows = {line.split(" | ")[0].strip("| "): line for line in table(runs).splitlines()}
    assert "of 2 collapses" in table(runs)
    assert "of 2 healthy" in table(runs)
    assert rows["`ratio_tails`"] == "| `ratio_tails` | 1 | 8 | 0 |"
    assert rows["the three"] == "| the three | 1 | 8 | 1 |"
    assert rows["`reward_collapse`"] == "| `reward_collapse` | 0 | - | 0 |"


def test_a_grid_without_runs_has_an_empty_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tmp_path)]) == 0
    assert "of 0 collapses" in capsys.readouterr().out
