"""A NaN or infinity never reaches the weights or a checkpoint, wherever it comes from; the update can be replayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.loop.update.dump import Dump
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from tests.runs import runs

OPTIONS = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0"]
NAN, INF = float("nan"), float("inf")


def poison_loss(monkeypatch: pytest.MonkeyPatch, value: float, update: int = 4) -> None:
    """The loss of one update; a loss times a NaN has NaN gradients, too."""
    original, calls = GSPO.__call__, []

    def poisoned(self: GSPO, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        calls.append(1)
        if len(calls) == update:
            out.loss = out.loss * value
        return out

    monkeypatch.setattr(GSPO, "__call__", poisoned)


def poison_gradient(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """The gradient alone: the loss stays finite."""
    original, calls = GSPO.__call__, []

    def poisoned(self: GSPO, logprobs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            logprobs.register_hook(lambda gradient: gradient * value)
        return original(self, logprobs, *args, **kwargs)

    monkeypatch.setattr(GSPO, "__call__", poisoned)


CHECKED = 1
"""Forward passes with a gradient in the check before the first rollout."""


def poison_logprob(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """One log-probability of one token."""
    original, calls = Policy.forward, []

    def poisoned(self: Policy, batch: Any, temperature: float = 1.0) -> Any:
        logprobs, entropy = original(self, batch, temperature)
        calls.append(torch.is_grad_enabled())
        if sum(calls) == CHECKED + 4 and torch.is_grad_enabled():
            logprobs = logprobs.index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(value))
        return logprobs, entropy

    monkeypatch.setattr(Policy, "forward", poisoned)


SOURCES: dict[str, Callable[[pytest.MonkeyPatch, float], None]] = {
    "loss": poison_loss, "gradient": poison_gradient, "log-probability": poison_logprob,
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("source", "value"), [("loss", NAN), ("loss", INF), ("gradient", NAN), ("gradient", INF),
                                               ("log-probability", NAN), ("log-probability", INF)])  # fmt: skip
def test_nonfinite_update_stops_the_run_and_leaves_a_good_checkpoint(
    source: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    SOURCES[source](monkeypatch, value)
    run = runs.fit(tmp_path, *OPTIONS, code=1)
    error = capsys.readouterr().err
    assert "the gradient of update 4 is not finite" in error
    assert "Traceback" not in error
    saved = runs.checkpoint(run)
    assert saved["global_step"] == 2
    assert all(torch.isfinite(v).all() for v in runs.weights(run).values())
    assert [p.name for p in (run / "dumps").iterdir()] == ["update-00000004.pt"]


@pytest.mark.thorough
def test_after_the_stop_the_run_goes_on_as_if_nothing_had_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_loss(monkeypatch, NAN)
    runs.fit(tmp_path, *OPTIONS, code=1)
    monkeypatch.undo()
    whole = runs.fit(tmp_path / "whole", *OPTIONS)
    resumed = runs.fit(tmp_path, *OPTIONS, "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(whole), runs.weights(resumed)) == 0.0


@pytest.mark.thorough
def test_a_skipped_mini_batch_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poison_loss(monkeypatch, NAN, update=2)
    skip = [*OPTIONS, "--model.on_nonfinite=skip"]
    run = runs.fit(tmp_path, *skip, "--trainer.max_epochs=1")
    assert "skipped 1 of at most 3" in capsys.readouterr().err
    after_skip = runs.weights(run)
    optimizer = runs.checkpoint(run)["optimizer_states"][0]["state"]
    monkeypatch.undo()
    assert {int(s["step"]) for s in optimizer.values()} == {1}  # AdamW never saw the second update
    first = "--data.minibatches_per_rollout=2", "--trainer.max_steps=1"
    alone = runs.fit(tmp_path / "alone", *OPTIONS, *first)
    assert runs.largest_difference(after_skip, runs.weights(alone)) == 0.0
    resumed = runs.fit(tmp_path, *skip, "--ckpt_path=last")
    assert runs.checkpoint(resumed)["gspo_skipped"] == 1
    assert all(torch.isfinite(v).all() for v in runs.weights(resumed).values())


@pytest.mark.thorough
def test_skips_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    original = GSPO.__call__

    def poisoned(self: GSPO, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        out.loss = out.loss * NAN
        return out

    monkeypatch.setattr(GSPO, "__call__", poisoned)
    run = runs.fit(tmp_path, *OPTIONS, "--model.on_nonfinite=skip", "--model.max_skips=1", code=1)
    assert "(1 were skipped before)" in capsys.readouterr().err
    assert len(list((run / "dumps").iterdir())) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_reward_that_is_not_finite_is_the_plugins_mistake(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / f"broken_{value}.py"
    plugin.write_text(
        "from gspo_lightning.rewards import Reward\n"
        f"class Broken{value.title()}(Reward):\n"
        "    def score(self, completion: str) -> float:\n"
        f"        return float('{value}') if len(completion) > 20 else 1.0\n"
    )
    rewards = [f"--plugins=[{plugin}]", f'--data.rewards={{"broken": "Broken{value.title()}"}}']
    run = runs.fit(tmp_path, "--model.cold_start=null", *rewards, "--data.max_response_tokens=30", code=2)
    error = capsys.readouterr().err
    assert "a reward must be finite" in error
    assert "broken" in error
    assert not (run / "checkpoints").exists()


def test_weights_that_are_not_finite_are_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build_tiny_model("tiny-qwen3", seed=0)
    with torch.no_grad():
        next(model.parameters())[0, 0] = NAN
    model.save_pretrained(tmp_path / "model")
    character_tokenizer().save_pretrained(tmp_path / "model")
    runs.fit(tmp_path, *OPTIONS, f"--model.name_or_path={tmp_path / 'model'}", code=1)
    assert "model.model.embed_tokens.weight is not finite in" in capsys.readouterr().err


def test_weights_that_overflow_in_an_update_are_not_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    huge = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=1e38", "--trainer.gradient_clip_val=null"]
    huge += ["--data.advantages=LeaveOneOut", "--data.reward_weights={graded: 1e8}"]
    run = runs.fit(tmp_path, *OPTIONS, *huge, code=1)  # the gradient is finite, times the rate it is not
    assert "is not finite after update" in capsys.readouterr().err
    assert not list(run.glob("checkpoints/*.ckpt"))


@pytest.mark.thorough
def test_replay_finds_the_row_with_its_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poison_logprob(monkeypatch, NAN)
    run = runs.fit(tmp_path, *OPTIONS, code=1)
    monkeypatch.undo()
    path = run / "dumps" / "update-00000004.pt"
    capsys.readouterr()
    assert main(["replay", str(path)]) == 0
    assert "not reproduced" in capsys.readouterr().out  # the poison was not in the data

    dump = Dump.read(path)
    dump.mini_batch.micro_batches[0].old_logprobs[3, 0] = NAN
    dump.update = 5
    worse = dump.write(tmp_path, rank=0)
    assert main(["replay", str(worse)]) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if "old log-probabilities" in line)
    name, reward = line.split("(")[1].split(")")[0].split(", reward ")
    assert dump.rewards[name][1] == float(reward)
    assert "micro-batch 0, row 3" in line
    assert "loss nan" in shown


@pytest.mark.thorough
def test_a_dump_holds_the_weights_before_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_loss(monkeypatch, NAN, update=1)
    dump = Dump.read(runs.fit(tmp_path, *OPTIONS, code=1) / "dumps" / "update-00000001.pt")
    start = load_policy(dump.model).model.state_dict()
    assert all(torch.equal(start[name], value) for name, value in dump.weights.items())
    assert dump.rng == {"seed": 1, "iteration": 0}
    batch = dump.mini_batch.micro_batches[0]
    assert batch.old_logprobs is not None
    assert torch.allclose(dump.logprobs[0], batch.old_logprobs, atol=1e-6)  # on-policy


def test_replay_refuses_a_file_that_is_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dump.pt").write_text("hello")
    assert main(["replay", str(tmp_path / "dump.pt")]) == 2
    assert "cannot be read" in capsys.readouterr().err
