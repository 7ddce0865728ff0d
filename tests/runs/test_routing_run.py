"""Mixtures of experts in whole runs: Routing Replay by one word, router metrics, what they cost and change."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gspo_lightning.training.data import ExperienceLoader
from tests.runs.runs import UNTAUGHT, fit, largest_difference, scalars, weights

MOE = [*UNTAUGHT, "--model.name_or_path=tiny-qwen3-moe", "--model.optimizer.lr=3e-3", "--model.objective=GRPO"]


def first_updates(tags: dict[str, list[tuple[int, float]]], tag: str) -> list[float]:
    """Of each of the two iterations of two updates."""
    return [value for step, value in tags[tag] if step % 2 == 1]


def test_metrics_change_no_weight_and_show_what_routing_does(tmp_path: Path) -> None:
    with_metrics = fit(tmp_path / "with", *MOE)
    without = fit(tmp_path / "without", *MOE, "--model.router_metrics=false")
    assert largest_difference(weights(with_metrics), weights(without)) == 0
    tags = scalars(with_metrics)
    assert not [tag for tag in scalars(without) if tag.startswith("moe/")]
    assert first_updates(tags, "moe/changed_choices") == [0.0, 0.0]
    later = dict(tags["moe/changed_choices"])
    assert all(0 < later[step] < 1 for step in (2, 4))
    assert [step for step, _ in tags["moe/changed_over_iteration"]] == [2, 4]
    assert all(later[step] < value < 1 for step, value in tags["moe/changed_over_iteration"])
    assert all(1 / 16 < value < 1 for _, value in tags["moe/router_confidence"])
    assert all(0 < value < 1 for _, value in tags["moe/load_entropy"])
    assert all(0 < value < 7 for _, value in tags["moe/load_max_violation"])


@pytest.mark.parametrize("replay", ["R2", pytest.param("R3", marks=pytest.mark.long)])
def test_replay_by_one_word_survives_a_resume_inside_an_iteration(
    tmp_path: Path, replay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [*MOE, f"--model.routing_replay={replay}"]
    whole = fit(tmp_path / "whole", *chosen)
    tags = scalars(whole)
    assert first_updates(tags, "ratio/mean") == [1.0, 1.0]
    assert first_updates(tags, "ratio/std") == [0.0, 0.0]
    assert dict(tags["moe/changed_choices"])[2] > 0
    original = ExperienceLoader.mark_trained

    def interrupt(self: ExperienceLoader) -> None:
        original(self)
        if self.iteration * 2 + self.trained == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ExperienceLoader, "mark_trained", interrupt)
    fit(tmp_path / "cut", *chosen, code=143)
    monkeypatch.undo()
    resumed = fit(tmp_path / "cut", *chosen, "--ckpt_path=last")
    assert largest_difference(weights(whole), weights(resumed)) == 0
    assert scalars(resumed) == tags


def test_replay_with_a_resident_snapshot_trains_alike(tmp_path: Path) -> None:
    chosen = [*MOE, "--model.routing_replay=R2"]
    cached = fit(tmp_path / "cached", *chosen)
    resident = fit(tmp_path / "resident", *chosen, "--model.old_policy=ResidentSnapshot")
    assert largest_difference(weights(cached), weights(resident)) == 0
    free = fit(tmp_path / "free", *MOE)
    assert largest_difference(weights(cached), weights(free)) > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model.router_metrics=true"], ["model.router_metrics", "no routers", "tiny-qwen3-moe"]),
        (["--model.routing_replay=R2"], ["model.routing_replay", "no routers"]),
        (["--model.routing_replay=R4"], ["routing_replay", "R4", "R2"]),
        (["--model.routing_replay=R3", "--data.rollouts=TransformersGenerate"], ["R3", "TransformersGenerate", "R2"]),
    ],
)
def test_what_cannot_be_is_said_in_one_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    fit(tmp_path, *UNTAUGHT, *arguments, code=2)
    message = capfd.readouterr().err
    assert all(word in message for word in words), message


def test_a_bare_off_in_yaml_means_off(tmp_path: Path) -> None:
    overlay = tmp_path / "off.yaml"
    overlay.write_text("model:\n  routing_replay: off\n")
    fit(tmp_path, *UNTAUGHT, f"--config={overlay}", "--trainer.max_epochs=1")
