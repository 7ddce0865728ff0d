"""The page of the deals says what was measured, what may be claimed and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.dealing.numbers import Numbers, _numbers, finished
from experiments.dealing.page import page, read_price
from gspo_lightning.report.run import Run, Series


def test_rollouts_to_the_goal_are_counted_from_evaluations() -> None:
    """Two updates an iteration of 4 x 8 responses: 0.9 is reached after the third iteration, at update 6."""
    steps = np.arange(1, 9)
    run = Run(Path("run"), config={"data": {"prompts_per_rollout": 4, "group_size": 8}})
    run.scalars = {
        "val/accuracy": Series(np.array([0, 2, 4, 6, 8]), np.array([0.1, 0.5, 0.89, 0.9, 0.7])),
        "reward/mean": Series(steps, steps / 8.0),
        "data/mini_batch": Series(steps, np.array([0.0, 1.0] * 4)),
    }
    assert _numbers(run) == Numbers(3 * 32, pytest.approx(4.5 / 8), 0.7)  # type: ignore[arg-type]


def test_only_seeds_that_every_deal_has_finished_are_compared(tmp_path: Path) -> None:
    for name in ("groups-seed1", "groups-seed2", "stratified-seed2"):
        folder = tmp_path / "runs" / name / "version_0"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text("{}")
    found = finished(tmp_path, ["groups", "stratified"], [1, 2, 3])
    assert {deal: list(by_seed) for deal, by_seed in found.items()} == {"groups": [2], "stratified": [2]}


def test_the_page_claims_from_eight_seeds_on_and_names_what_was_not_run(tmp_path: Path) -> None:
    def runs(count: int, more: float) -> dict[int, Numbers]:
        return {
            seed: Numbers(None if seed == 2 else 2560, 0.5 + more + seed / 1000, 1.0) for seed in range(1, count + 1)
        }

    price = tmp_path / "price.json"
    case = {"prompt_tokens": 24, "response_tokens": 128, "rounds": 3, "tokens": {}, "cpu_s": {}}
    case |= {"tokens_ratio": {}, "cpu_ratio": {}}
    for deal, ratio in (("groups", 1.0), ("stratified", 1.25), ("shuffled", 1.2)):
        case["tokens"][deal], case["cpu_s"][deal] = round(1000 * ratio), ratio
        case["tokens_ratio"][deal] = case["cpu_ratio"][deal] = ratio
    price.write_text(json.dumps([case]))
    results = {
        "quickstart": {d: runs(8, more) for d, more in (("groups", 0.0), ("stratified", 0.02), ("shuffled", 0.0))},
        "guess": {"groups": runs(2, 0.0), "stratified": runs(2, 0.02)},
    }
    text = page(results, read_price(price))
    assert "+0.02 [+0.02, +0.02]: higher" in text
    assert "+0.02 [+0.02, +0.02]: not separated (2 of the 8 seeds that a claim needs)" in text
    assert "| `groups` | 2560 | - | 2560 |" in text
    assert "Not run: Mixture of experts, Low-rank adapters." in text
    assert "| 24 | 128 | `stratified` | 1,250 | 1.25 | 1.25 | 1.25 |" in text
    assert "## Cost" not in page(results, read_price(tmp_path / "none"))
