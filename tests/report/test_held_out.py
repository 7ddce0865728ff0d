"""The change of a held-out metric: paired by prompt, with n and an interval, and what the headline says of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gspo_lightning.report.answers import SCORES, AnswersFile, read_answers
from gspo_lightning.report.held_out import fall, held_out_change, reward_change
from gspo_lightning.report.learning import judge_gamed
from gspo_lightning.report.read import read_run
from gspo_lightning.report.run import Run, Series
from gspo_lightning.report.verdicts import verdicts
from gspo_lightning.report.words import headline
from tests.report.view.made import make_run


def recorded(folder: Path, before: Sequence[float], after: Sequence[float], column: str = "accuracy") -> Run:
    """A run of 40 updates whose held-out prompts had these scores."""
    means = [float(np.mean(before)), float(np.mean(after))]
    make_run(folder, evaluations=means)
    file = AnswersFile(folder, SCORES)
    for update, scores in ((0, before), (40, after)):
        other = {"accuracy": "reward", "reward": "accuracy"}[column]
        file.add(update, [{"id": list(range(len(scores))), column: list(scores), other: [None] * len(scores)}])
    return read_run(folder)


def word(run: Run) -> str:
    return next(verdict.word for verdict in verdicts(run) if verdict.topic == "learning")


def test_a_paired_difference_sees_what_two_independent_means_do_not(tmp_path: Path) -> None:
    """400 prompts, 20 of which become right and none wrong: +0.05 is 1.4 errors of a difference of means.

    By pairs: mean 0.05, standard deviation sqrt(0.05 * 0.95 * 400 / 399), t(399) = 1.966.
    """
    before, after = [1.0] * 200 + [0.0] * 200, [1.0] * 220 + [0.0] * 180
    run = recorded(tmp_path / "run", before, after)
    change = held_out_change(run)
    assert change is not None
    half = 1.9659 * math.sqrt(0.05 * 0.95 * 400 / 399 / 400)
    assert (change.value, change.low, change.high, change.n) == (
        pytest.approx(0.05), pytest.approx(0.05 - half, abs=1e-5), pytest.approx(0.05 + half, abs=1e-5), 400,
    )  # fmt: skip
    assert word(run) == "learned"
    assert headline(run).startswith("held-out accuracy 0.50 → 0.55: +0.05 [+0.03, +0.07], n = 400 (")
    run.scores = []  # an older run, which has standard errors of 0.02: 0.05 +- 1.96 * 0.02 * sqrt(2)
    change = held_out_change(run)
    assert change is not None
    assert (change.low, change.high) == (pytest.approx(-0.0054, abs=1e-4), pytest.approx(0.1054, abs=1e-4))
    assert word(run) == "no change shown"
    assert "from standard errors" in headline(run)


def test_a_change_that_chance_explains_is_no_learning(tmp_path: Path) -> None:
    """Five prompts of 12 become right and two wrong: 1/4 more, and no reason to claim anything."""
    before, after = [0.0] * 5 + [1.0] * 2 + [0.0] * 5, [1.0] * 5 + [0.0] * 2 + [0.0] * 5
    run = recorded(tmp_path / "run", before, after)
    assert word(run) == "no change shown"
    assert "+0.25 [" in headline(run)
    worse = recorded(tmp_path / "worse", [1.0] * 30, [1.0] * 10 + [0.0] * 20)
    assert word(worse) == "unlearned"


def test_rewards_of_any_scale_are_compared_by_pairs(tmp_path: Path) -> None:
    """Rewards from -4 to 6, each 2 more: the difference is exactly 2."""
    before = [float(i % 5 - 4) for i in range(40)]
    folder = tmp_path / "run"
    run = recorded(folder, before, [value + 2.0 for value in before], column="reward")
    run.scalars["val/lowest_score"] = Series(np.array([0, 40]), np.array([-4.0, -2.0]))  # no accuracy
    run.scalars["val/reward"] = Series(np.array([0, 40]), np.array([np.mean(before), np.mean(before) + 2]))
    change = held_out_change(run)
    assert change is not None
    assert (change.value, change.low, change.high) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))


def test_prompts_without_a_score_are_left_out_and_damaged_lines_are_no_evaluation(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [0.0] * 10, [1.0] * 10)
    run.scores[0]["accuracy"][3] = None
    assert (change := held_out_change(run)) is not None
    assert change.n == 9
    with open(tmp_path / "run" / SCORES, "a") as file:
        file.write(json.dumps({"update": 44, "id": [1, 2], "accuracy": [1.0]}) + "\n{half")
    assert (change := held_out_change(read_run(tmp_path / "run"))) is not None
    assert change.n == 10
    assert len(read_answers(tmp_path / "run", SCORES)) == 3


def test_a_fall_counts_by_the_rule_of_the_alarm() -> None:
    """Three standard errors of the difference: 0.0849 with 0.02 each."""
    run = Run(Path("run"))
    for last, fell in ((0.82, False), (0.80, True)):
        run.scalars["val/accuracy"] = Series(np.array([0, 20, 40]), np.array([0.2, 0.9, last]))
        run.scalars["val/accuracy_standard_error"] = Series(np.array([0, 20, 40]), np.full(3, 0.02))
        assert (fall(run) is not None) == fell


def test_the_interval_of_training_rewards_is_that_of_their_prompts() -> None:
    """Means 0.3 and 0.5 of 32 prompts with a spread of 0.4: 1.96 * 0.4 * sqrt(2 / 32)."""
    run = Run(Path("run"), config={"data": {"prompts_per_rollout": 32}})
    run.scalars["reward/mean"] = Series(np.arange(1, 3), np.array([0.3, 0.5]))
    assert (change := reward_change(run)) is not None
    assert change.low is None
    run.scalars["reward/std"] = Series(np.arange(1, 3), np.array([0.4, 0.4]))
    assert (change := reward_change(run)) is not None
    assert change.low == pytest.approx(0.2 - 1.96 * 0.1, abs=1e-4)
    assert headline(run) == "training reward 0.30 → 0.50: +0.20 [+0.00, +0.40], n = 32 prompts an iteration (2 updates)"


def resumed(folder: Path, recorded_at: Sequence[int]) -> Run:
    """400 prompts at 0.1, 0.5, 0.79 and 0.8 right after 0, 20, 40 and 60 updates; scores of some evaluations only."""
    shares = {0: 0.1, 20: 0.5, 40: 0.79, 60: 0.8}
    make_run(folder, scalars={"reward/mean": [0.1 + 0.7 * i / 60 for i in range(60)]}, evaluations=[*shares.values()])
    file = AnswersFile(folder, SCORES)
    for update in recorded_at:
        right = round(400 * shares[update])
        file.add(update, [{"id": list(range(400)), "accuracy": [1.0] * right + [0.0] * (400 - right)}])
    return read_run(folder)


@pytest.mark.parametrize("recorded_at", [(40, 60), (0, 20), (20, 40), ()])
def test_only_the_first_and_the_last_evaluation_are_paired(recorded_at: Sequence[int], tmp_path: Path) -> None:
    """A run resumed by a newer version lacks the first rows, a killed one the last: 0.7 +- 1.96 * 0.02 * sqrt(2)."""
    run = resumed(tmp_path / "run", recorded_at)
    assert (change := held_out_change(run)) is not None
    assert change.value == pytest.approx(0.7)
    if 0 in recorded_at:  # 0.1 of 400: sqrt(0.09 / 400) = 0.015 at the start
        assert change.low == pytest.approx(0.7 - 1.96 * math.hypot(0.015, 0.02), abs=1e-3)
    assert change.how == "from standard errors"
    assert [verdict.topic for verdict in verdicts(run) if verdict.level == "bad"] == []


def test_a_torn_last_line_of_scores_is_not_replaced_by_an_older_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    resumed(folder, (0, 20, 60))
    lines = (folder / SCORES).read_text().splitlines(keepends=True)
    (folder / SCORES).write_text("".join(lines[:-1]) + lines[-1][:100])
    assert "0.10 → 0.80: +0.70 [+0.65, +0.75], from standard errors" in headline(read_run(folder))


def test_a_run_resumed_into_a_new_folder_is_compared_with_its_own_first_evaluation(tmp_path: Path) -> None:
    """Its summary begins at 0.05, with an evaluation of the old folder."""
    folder = tmp_path / "run"
    resumed(folder, (0, 60))
    summary = {"accuracy_before": 0.05, "accuracy_after": 0.8, "updates": 60}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert headline(read_run(folder)).startswith("held-out accuracy 0.10 → 0.80: +0.70 [")
    summary["accuracy_before"] = float(np.float32(0.1))  # event files hold 32 bits
    (folder / "summary.json").write_text(json.dumps(summary))
    run = read_run(folder)
    assert run.held_out() == (summary["accuracy_before"], 0.8)
    run.scalars["val/accuracy"] = Series(np.array([60]), np.array([0.8]))  # evaluated at the end only
    assert (change := held_out_change(run)) is not None
    assert (change.value, change.low) == (pytest.approx(0.7), None)


def steady(updates: int, evaluated_at: int, share: float, spread: float = 0.0) -> Run:
    """A training reward that rises by 0.002 an update, four an iteration; ``share`` of it on held-out prompts."""
    steps = np.arange(1, updates + 1)
    means = 0.1 + 0.008 * ((steps - 1) // 4)
    run = Run(Path("run"), config={"data": {"prompts_per_rollout": 32}})
    run.scalars = {
        "reward/mean": Series(steps, means), "data/iteration": Series(steps, (steps - 1.0) // 4),
        "reward/std": Series(steps, np.full(updates, spread)),
        "reward/min": Series(steps, np.zeros(updates)), "reward/max": Series(steps, np.ones(updates)),
    }  # fmt: skip
    ends = np.array([0.1, 0.1 + share * 0.002 * evaluated_at])
    run.scalars["val/accuracy"] = Series(np.array([0, evaluated_at]), ends)
    run.scalars["val/accuracy_standard_error"] = Series(np.array([0, evaluated_at]), np.array([0.013, 0.02]))
    return run


def test_rewards_after_the_last_evaluation_are_not_held_against_it() -> None:
    """400 updates, of which the first 80 are evaluated: 0.1 -> 0.26 on both sides is honest, though 0.9 is reached."""
    assert judge_gamed(steady(400, 80, share=1.0)) is None
    found = judge_gamed(steady(400, 80, share=0.0))
    assert found is not None
    assert "rose by 13 % of its range" in found.sentence  # means of the first and last 4 of 20 iterations: 16 apart


def test_a_rise_that_chance_explains_is_not_gamed() -> None:
    """0.1 -> 0.252 in 20 iterations of 32 prompts: 1.96 * spread * sqrt(2 / 32) is 0.098 for 0.2, and 0.196 for 0.4."""
    assert judge_gamed(steady(80, 80, share=0.0, spread=0.2)) is not None
    assert judge_gamed(steady(80, 80, share=0.0, spread=0.4)) is None


@pytest.mark.parametrize(("count", "found"), [(2, False), (9, False), (10, True)])
def test_two_iterations_are_no_trend(count: int, found: bool) -> None:
    """Iterations at 0.2 and then at 0.4; held-out answers stay."""
    run = steady(4 * count, 4 * count, share=0.0)
    number = run.scalars["data/iteration"].values
    run.scalars["reward/mean"] = Series(np.arange(1, 4 * count + 1), np.where(number < count // 2, 0.2, 0.4))
    assert (judge_gamed(run) is not None) == found


def evaluated(folder: Path, *scores: Sequence[float], recorded: bool = True) -> Run:
    """A run with these scores of its prompts at its evaluations."""
    make_run(folder, evaluations=[float(np.mean(row)) for row in scores])
    run = read_run(folder)
    steps, errors = run.scalars["val/accuracy"].steps, [float(np.std(row) / math.sqrt(len(row))) for row in scores]
    run.scalars["val/accuracy_standard_error"] = Series(steps, np.array(errors))
    if recorded:
        ids = list(range(len(scores[0])))
        run.scores = [
            {"update": int(u), "id": ids, "accuracy": list(row)} for u, row in zip(steps, scores, strict=True)
        ]
    return run


@pytest.mark.parametrize("recorded", [True, False])
def test_two_prompts_that_turn_wrong_are_no_fall(recorded: bool, tmp_path: Path) -> None:
    """All right, then all wrong: both standard errors are 0. Of 2 prompts it is chance, of 20 it is not."""
    few = evaluated(tmp_path / "few", [1.0, 0.0], [1.0, 1.0], [0.0, 0.0], recorded=recorded)
    assert fall(few) is None
    assert word(few) != "learned, then fell back"
    many = evaluated(tmp_path / "many", [1.0, 0.0] * 10, [1.0] * 20, [0.0] * 20, recorded=recorded)
    assert fall(many) == (20, 1.0, 0.0)
    assert word(many) == "learned, then fell back"


def test_a_fall_is_paired_by_prompt(tmp_path: Path) -> None:
    """20 of 400 prompts turn wrong and none right: 0.05 is 1.4 errors of independent means, and 4.6 of pairs."""
    best = [1.0] * 200 + [0.0] * 200
    last = [0.0] * 20 + best[20:]
    assert fall(evaluated(tmp_path / "pairs", [0.0] * 400, best, last)) is not None
    assert fall(evaluated(tmp_path / "means", [0.0] * 400, best, last, recorded=False)) is None


def test_a_rise_by_chance_was_not_learned(tmp_path: Path) -> None:
    """20 of 50 right, 22, and 9: the best is no better than the start, and the end is worse than the best."""
    start = [1.0] * 20 + [0.0] * 30
    best = [0.0] * 10 + [1.0] * 22 + [0.0] * 18
    last = [0.0] * 23 + [1.0] * 9 + [0.0] * 18
    assert word(evaluated(tmp_path / "run", start, best, last)) == "fell back"
