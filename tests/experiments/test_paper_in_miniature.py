"""The grid is what its file says, a cell runs, and the page says what is there and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.paper_in_miniature.grid import Grid
from experiments.paper_in_miniature.numbers import read_results, reward_for_tokens
from experiments.paper_in_miniature.picture import draw
from experiments.paper_in_miniature.run import run
from experiments.paper_in_miniature.tables import page


def test_every_cell_has_a_name_of_its_own_and_every_regime_its_control() -> None:
    cells = list(Grid.read().cells())
    assert len({cell.name for cell in cells}) == len(cells) == 240
    for regime in {cell.regime for cell in cells}:
        methods = {cell.method for cell in cells if cell.regime == regime}
        assert {"GSPO", "GSPO-token", "GRPO", "GRPO tight", "PPO"} <= methods
        assert ("GRPO + R2" in methods) == ("moe" in regime[0])


@pytest.mark.thorough
def test_a_cell_of_each_kind_runs_and_is_measured(tmp_path: Path) -> None:
    small = {"iterations": 1, "held_out_prompts": 4, "cold_start_steps": 2, "prompts": 128}
    cells = {cell.method: cell for cell in Grid.read().cells() if cell.seed == 1 and cell.mini_batches == 4}
    replay = run(cells["GRPO + R2"], small, tmp_path)
    assert replay["updates"]["index"] == [0, 1, 2, 3]
    assert replay["updates"]["clipped"][0] == replay["updates"]["changed"][0] == 0
    assert 0 <= replay["changed_over_iteration"][0] <= 1
    assert json.dumps(replay)
    noisy = run(cells["GSPO, bf16 old"], small, tmp_path)
    assert noisy["updates"]["log_sequence_std"][0] > 1e-4  # not 0 before the first update: that is the point
    assert noisy["failed"] is None


def test_the_page_says_what_is_seen_and_what_is_missing(tmp_path: Path) -> None:
    grid = Grid.read()
    assert "**0 of 240 cells have a result.**" in page(grid, {}, "command")
    for cell in grid.cells():
        if cell.regime == ("tiny-qwen3", 2e-4, 4) and cell.method in ("GSPO", "GRPO") and cell.seed < 3:
            sequence = cell.method == "GSPO"
            updates = {"index": [0, 1], "clipped": [0.0, 0.4 if sequence else 0.004], "gradient_norm": [1.0, 2.0]}
            result = {"accuracy_after": 0.5 + 0.1 * cell.seed * sequence, "reward": [0.5], "updates": updates}
            result |= {"changed_over_iteration": [], "failed": None, "tokens": [100.0], "accuracy_before": 0.5}
            (tmp_path / f"{cell.name}.json").write_text(json.dumps(result))
    text = page(grid, read_results(tmp_path), "command")
    assert "**4 of 240 cells have a result.**" in text
    assert "26 of dense, lr 0.0002, 4 updates per rollout" not in text
    assert "31 of dense, lr 0.0002, 4 updates per rollout" in text
    assert "clipped tokens: GSPO 0.4, GRPO 0.004, 100 x" in text
    assert "accuracy after: GSPO 0.65, GRPO 0.5 | +0.15 [+0.1, +0.2] | so in every seed" in text
    assert "| GSPO ends better | accuracy after: GSPO less GRPO | +0.15 | 1 | 0 | 0 | 0 |" in text
    assert (
        "| GSPO earns more for the same compute | reward for the same tokens: GSPO less GRPO | +0 | 0 | 0 | 0 | 1 |"
        in text
    )
    assert "| GSPO | 1, 2 | **0.65** (0.6, 0.7) | **0.5** (0.5, 0.5) | **0.4** (0.4, 0.4) |" in text
    assert text.count("### ") == 2
    assert "Learning with most tokens clipped" not in text  # nothing clips half of them here
    assert [axes.get_title(loc="left") for axes in draw(grid, read_results(tmp_path)).axes] == [
        "Reward against compute", "Clipped tokens", "Gradient norm, largest of an iteration",
    ]  # fmt: skip


def test_reward_is_compared_at_the_same_number_of_tokens() -> None:
    run = {"reward": [0.2, 0.6, 1.0], "tokens": [100.0, 200.0, 100.0]}
    assert reward_for_tokens(200)(run) == pytest.approx((100 * 0.2 + 100 * 0.6) / 200)
    assert reward_for_tokens(400)(run) == pytest.approx((20 + 120 + 100) / 400)
    assert reward_for_tokens(401)(run) is None


@pytest.mark.parametrize("word", ["seeds", "regimes", "methods", "cold_start_steps"])
def test_the_declaration_is_complete(word: str) -> None:
    assert Grid.read().declared[word]
