"""Recorded tokens of real runs: their numbers are those of the metrics, and an interruption changes no byte."""

from __future__ import annotations

import json
import math
import stat
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.report.tokens import BYTES_AT_FIRST, BYTES_PER_UPDATE, TOKENS, TokensFile
from tests.runs import runs

EVERY = "--data.record_tokens=32"  # 8 prompts x 4 responses
Rows = list[dict[str, Any]]


def rows_of(run: Path) -> Rows:
    return [json.loads(line) for line in (run / TOKENS).read_text().splitlines()]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, cold_starts: Path) -> Path:
    root = tmp_path_factory.mktemp("recorded")
    runs.share_cold_start(cold_starts, root)
    return runs.fit(root, EVERY, "--data.max_response_tokens=32")


def by_update(run: Path) -> dict[int, Rows]:
    found = defaultdict(list)
    for row in rows_of(run):
        found[row["update"]].append(row)
    return found


@pytest.mark.thorough
def test_the_recorded_rows_are_the_rows_of_the_updates(recorded: Path) -> None:
    """All rows are recorded here, so their means are the logged metrics, which are computed elsewhere."""
    scalars = {tag: dict(points) for tag, points in runs.scalars(recorded).items()}
    for update, rows in by_update(recorded).items():
        assert len(rows) == 16
        tokens = sum(row["length"] for row in rows)
        mean = sum(row["log_s"] for row in rows) / len(rows)
        clipped = sum(row["length"] for row in rows if row["clip"]) / tokens
        entropy = sum(sum(row["tokens"]["entropy"]) for row in rows) / tokens
        assert mean == pytest.approx(scalars["ratio/log_sequence_mean"][update], abs=2e-5)
        assert clipped == pytest.approx(scalars["clip/tokens"][update], abs=1e-6)
        assert entropy == pytest.approx(scalars["policy/entropy"][update], rel=1e-3)
    assert sorted(by_update(recorded)) == [1, 2, 3, 4]


@pytest.mark.thorough
def test_every_row_says_why_it_clips(recorded: Path) -> None:
    rows = rows_of(recorded)
    for row in rows:
        s, (low, high) = math.exp(row["log_s"]), row["band"]
        ratios = row["tokens"]["log_ratio"]
        rounding = 5e-4 * max(map(abs, ratios)) + 1e-9
        assert sum(ratios) / row["length"] == pytest.approx(row["log_s"], abs=rounding)
        above, below = s > 1 + high and row["advantage"] > 0, s < 1 - low and row["advantage"] < 0
        assert row["clip"] == (1 if above else -1 if below else 0)
        assert {len(values) for values in row["tokens"].values()} == {row["length"]}
        assert "".join(row["tokens"]["text"]).removesuffix("<eos>") == row["completion"]
        assert row["reward"] == row["parts"]["correct"] == float(row["completion"].endswith(f"#{row['answer']}"))
    assert {row["log_s"] for row in rows if row["mini_batch"] == 0} == {0.0}
    assert any(row["clip"] for row in rows)


@pytest.mark.thorough
def test_token_level_objectives_say_which_tokens_clip(tmp_path: Path, cold_starts: Path) -> None:
    runs.share_cold_start(cold_starts, tmp_path)
    lr = "--model.optimizer.init_args.lr=1e-3"
    run = runs.fit(tmp_path, EVERY, "--model.objective=GRPO", lr, "--data.max_response_tokens=32")
    clipped = runs.scalars(run)["clip/tokens"]
    assert any(share > 0 for _, share in clipped)
    for update, share in clipped:
        rows = by_update(run)[update]
        sides = [side for row in rows for side in row["tokens"]["clip"]]
        assert sum(map(abs, sides)) / sum(row["length"] for row in rows) == pytest.approx(share, abs=1e-6)
        for row in rows:
            for side, ratio in zip(row["tokens"]["clip"], row["tokens"]["log_ratio"], strict=True):
                assert side == 0 or side * ratio > 0


@pytest.mark.thorough
def test_recording_tokens_changes_no_weight(tmp_path: Path, cold_starts: Path, recorded: Path) -> None:
    runs.share_cold_start(cold_starts, tmp_path)
    without = runs.fit(tmp_path, "--data.record_tokens=0", "--data.max_response_tokens=32")
    assert not (without / TOKENS).exists()
    assert runs.largest_difference(runs.weights(without), runs.weights(recorded)) == 0.0


@pytest.mark.thorough
@pytest.mark.parametrize("trained", [1, 2])
def test_a_resumed_run_writes_the_same_bytes(tmp_path: Path, cold_starts: Path, recorded: Path, trained: int) -> None:
    runs.share_cold_start(cold_starts, tmp_path)
    options = [EVERY, "--data.max_response_tokens=32"]
    with runs.interrupted(lambda loader: loader.iteration == 0 and loader.trained == trained):
        run = runs.fit(tmp_path, *options, code=130)
    with open(run / TOKENS, "ab") as file:  # what a killed run leaves behind its checkpoint
        file.write(json.dumps({"update": 3, "prompt": "lost"}).encode() + b'\n{"update": 4, "pro')
    assert runs.fit(tmp_path, *options, "--ckpt_path=last") == run
    assert (run / TOKENS).read_bytes() == (recorded / TOKENS).read_bytes()


def test_by_default_two_groups_are_recorded_and_only_for_their_owner(tmp_path: Path, cold_starts: Path) -> None:
    runs.share_cold_start(cold_starts, tmp_path)
    run = runs.fit(tmp_path, "--trainer.max_epochs=1", "--data.group_size=8")
    rows = rows_of(run)
    assert {row["choice"] for row in rows} == {"any", "live"}
    assert sorted(len([r for r in rows if r["prompt_id"] == i]) for i in {r["prompt_id"] for r in rows}) == [8, 8]
    live = [row["reward"] for row in rows if row["choice"] == "live"]
    assert len(set(live)) == 2
    assert stat.S_IMODE((run / TOKENS).stat().st_mode) == 0o600


def test_the_file_grows_with_the_updates_and_no_faster(tmp_path: Path) -> None:
    file = TokensFile(tmp_path)
    row = {"text": "x" * 99_980}
    written = [update for update in range(1, 101) if file.add(update, [row | {"update": update}])]
    assert written[:10] == list(range(1, 11)), "a run begins with room"
    assert file.path.stat().st_size <= BYTES_AT_FIRST + 100 * BYTES_PER_UPDATE
    assert len(written) == pytest.approx((BYTES_AT_FIRST + 100 * BYTES_PER_UPDATE) / 100_000, abs=1)
    large = [{"text": "x" * 900_000}, {"text": "y" * 900_000}]
    (tmp_path / "other").mkdir()
    assert TokensFile(tmp_path / "other").add(1, large) == 1, "of long responses, as many as there is room for"
    file.cut(3)
    assert [json.loads(line)["update"] for line in file.path.read_text().splitlines()] == [1, 2]
