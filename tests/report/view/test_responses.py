"""Verdicts of the page: planted faults of real runs are found, healthy runs are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.report.view.responses import template_of
from gspo_lightning.report.view.run_data import RunData
from tests.report.view.faults import drifting, gamed, sampler_off
from tests.report.view.made import make_run, row
from tests.runs import runs


def found(folder: Path) -> dict[str, dict[str, str]]:
    data = RunData(folder)
    data.refresh()
    return {verdict["topic"]: verdict for verdict in data.overview()["verdicts"]}


@pytest.fixture
def taught(cold_starts: Path, tmp_path: Path) -> Path:
    runs.share_cold_start(cold_starts, tmp_path)
    return tmp_path


def test_a_sampler_that_is_off_by_a_hundredth_of_a_nat(taught: Path) -> None:
    hints = found(sampler_off(taught))
    assert (hints["sampler"]["level"], hints["sampler"]["word"]) == ("bad", "not the policy")
    assert (
        "differ from the trainer's by 0.01 nats per token, always in the same direction" in hints["sampler"]["sentence"]
    )
    assert hints["sampler"]["link"] == "#overview?chart=noise/sampler_logprob_gap"
    assert "gamed reward" not in hints


@pytest.mark.thorough
def test_a_gamed_reward(taught: Path) -> None:
    hints = found(gamed(taught))
    assert hints["gamed reward"]["level"] == "bad"
    assert "held-out accuracy" in hints["gamed reward"]["sentence"]
    assert "Most of the rise is paid." in hints["gamed reward"]["sentence"]


@pytest.mark.thorough
def test_a_client_that_rewrites_what_the_policy_said(taught: Path) -> None:
    run = drifting(taught)
    hints = found(run)
    assert "changed what the policy said" in hints["client"]["sentence"]
    data = RunData(run)
    data.refresh()
    first = data.rollouts({})["rows"][0]
    rows = data.rows({"iteration": str(first["iteration"]), "prompt_id": str(first["prompt_id"])})["rows"]
    branches = [r for r in rows if r.get("parent", -1) == 0]
    assert branches, "a rewritten history is another row, a branch of the first"
    assert all(0 < r["shared"] < r["context"] for r in branches)


@pytest.mark.thorough
def test_a_healthy_run_has_no_bad_hint(taught: Path) -> None:
    assert [h for h in found(runs.fit(taught, "--trainer.max_epochs=6")).values() if h["level"] == "bad"] == []


def rising(last: float = 1.0) -> dict[str, list[float]]:
    return {"reward/mean": [last * i / 39 for i in range(40)], "reward/min": [0.0] * 40, "reward/max": [1.0] * 40}


def test_held_out_answers_that_fall_while_the_reward_rises(tmp_path: Path) -> None:
    hints = found(make_run(tmp_path / "a", scalars=rising(), evaluations=[0.3, 0.5, 0.2]))
    assert "the held-out accuracy fell from 0.5 to 0.2" in hints["gamed reward"]["sentence"]
    assert "gamed reward" not in found(make_run(tmp_path / "b", scalars=rising(), evaluations=[0.1, 0.5, 0.95]))
    flat = {"reward/mean": [0.5] * 40}
    assert "gamed reward" not in found(make_run(tmp_path / "c", scalars=flat, evaluations=[0.5, 0.5]))


def test_one_template_in_most_answers(tmp_path: Path) -> None:
    def rows(early: str, late: str) -> list[dict[str, Any]]:
        texts = [early.replace("?", "x" * k) if i < 5 else late for i in range(10) for k in range(8)]
        return [row(i // 8, prompt_id=i, sample=0, completion=f"{text} {i}") for i, text in enumerate(texts)]

    one_way = rows("thought ?", "As a model I say")
    hints = found(make_run(tmp_path / "a", one_way, scalars=rising()))
    assert hints["one template"]["level"] == "bad"
    assert "100 % of the last recorded answers follow one template, 0 % at first" in hints["one template"]["sentence"]
    assert "as a model i say 0" in hints["one template"]["sentence"]
    learned = found(make_run(tmp_path / "b", one_way, scalars=rising(), evaluations=[0.2, 0.9]))
    assert not {"gamed reward", "one template"} & learned.keys(), "right on held-out prompts: a skill"
    assert template_of(" It is\n 42,5 ") == "it is 0,0"


@pytest.mark.parametrize(
    ("before", "after"), [("<|user|>{}<|bot|>", "User: {} Answer:"), ("Question: {}", "{}\nReply now:")]
)
def test_prompts_whose_wrapping_changes(tmp_path: Path, before: str, after: str) -> None:
    def rows(second: str) -> list[dict[str, Any]]:
        return [
            row(i, prompt_id=i, prompt=(before if i < 40 else second).format(f"{i * 7919 % 97}+1")) for i in range(80)
        ]

    held = [{"update": 0, "id": i, "prompt": after.format(f"{i}*3"), "completion": "x", "reward": 0} for i in range(8)]
    assert "changed their wrapping" in found(make_run(tmp_path / "a", rows(after)))["template drift"]["word"]
    other = found(make_run(tmp_path / "b", rows(before), answers=held))
    assert "wrapped in another way" in other["template drift"]["word"]
    assert "template drift" not in found(make_run(tmp_path / "c", rows(before)))


@pytest.mark.parametrize(
    ("name", "scalars"),
    [
        ("dead groups", {"reward/mean": [0.1] * 40, "reward/dead_groups": [0.9] * 40, "reward/max": [1.0] * 40}),
        ("length", {"response/truncated": [0.5] * 40}),
        ("staleness", {"staleness/mean_age": [9.0] * 40}),
        ("rewards", {"reward/timeouts": [0.2] * 40}),
        ("clipping", {"clip/tokens": [0.95] * 40, "clip/sequences": [0.95] * 40}),
        ("clipping", {"clip/tokens": [0.0] * 40, "clip/high": [0.0] * 40}),
    ],
)
def test_each_hint_has_its_number(tmp_path: Path, name: str, scalars: dict[str, list[float]]) -> None:
    assert found(make_run(tmp_path / "bad", scalars=scalars))[name]["level"] == "look"
    usual = {tag: [0.3 if tag == "clip/tokens" else 0.0] * 40 for tag in scalars} | {"clip/sequences": [0.3] * 40}
    level = found(make_run(tmp_path / "usual", scalars=usual)).get(name, {"level": "fine"})["level"]
    assert level == "fine"
