"""A cold start as a stage of its own: packed rows, adapters, and a kill that costs nothing but time."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.training import saved_progress, supervised
from gspo_lightning.training.cold_start import ColdStart
from gspo_lightning.training.saved_progress import SavedProgress
from gspo_lightning.training.supervised import _Training, read_curve
from tests.runs.processes import SERVER
from tests.training.test_cold_start import Spoken

LONG = [("7+5:", "#2"), ("1*3-4:", "1*3=3;3-4=9;#9"), ("9:", "9+0=9;" * 12 + "#9"), ("8*8:", "#4")]
TASK = ChainTask("cold_start", size=48, operands=2)
QUICK = ColdStart(TASK, steps=9, batch_size=4, warmup_steps=1)
TINY = ModelSettings("tiny-qwen3")
ADAPTED = dataclasses.replace(TINY, lora=LoRA(r=4))


def test_packed_rows_compute_no_padding_and_teach_the_same() -> None:
    cold, seen, curves, weights = ColdStart(Spoken(*LONG), 3, 4, warmup_steps=1), [], [], []
    for layout in ("packed", "padded"):
        policy, places = load_policy(TINY), []

        def count(module: nn.Module, inputs: Any, options: dict[str, Any], places: list[int] = places) -> None:
            places.append((options | dict(enumerate(inputs)))["input_ids"].numel())

        policy.backbone.register_forward_pre_hook(count, with_kwargs=True)
        curves.append([point.loss for point in cold.train(policy, seed=1, layout=layout)])  # type: ignore[arg-type]
        seen.append(places[-1])
        weights.append(policy.state_dict())
    tokens = [len(prompt) + len(completion) for prompt, completion in LONG]  # the end token predicts nothing
    assert seen == [sum(tokens), 4 * max(tokens)]
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-5) for name in weights[0])


@pytest.mark.parametrize("packed", [True, False])
def test_a_long_batch_is_computed_in_pieces_of_its_own_tokens(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [supervised.Taught([1] * 3, [1] * n, [True] * n) for n in (2, 7, 2, 2, 20)]  # 5, 10, 5, 5 and 23 tokens
    monkeypatch.setattr(supervised, "_TOKENS", 20)
    pieces = [len(piece) for piece in supervised._pieces(rows, packed=packed)]
    assert pieces == ([3, 1, 1] if packed else [2, 2, 1])


@pytest.mark.thorough
def test_adapters_alone_are_trained_and_the_run_starts_from_them(tmp_path: Path) -> None:
    cold = dataclasses.replace(QUICK, adapters=True)
    made = cold.ensure(ADAPTED, tmp_path)
    folder = cold.made(made)
    assert made == dataclasses.replace(ADAPTED, lora=LoRA(r=4, start_from=str(folder)))
    assert folder.parent == tmp_path / "cold_start"
    assert [point.step for point in read_curve(folder)] == list(range(1, 10))
    weights = load_file(folder / "adapter_model.safetensors")
    assert weights
    assert all(bool(weight.any()) for weight in weights.values())
    assert not list(folder.glob("model*"))
    policy, fresh, ids = load_policy(made), load_policy(ADAPTED), torch.arange(3, 30)[None]
    for (name, weight), (_, before) in zip(policy.named_parameters(), fresh.named_parameters(), strict=True):
        assert torch.equal(weight, before) == (".lora_" not in name)
    with torch.no_grad():
        theirs = PeftModel.from_pretrained(load_policy(TINY).model, folder).eval()(ids).logits
        assert torch.equal(policy.model(ids).logits, theirs)
    again = cold.ensure(ADAPTED, tmp_path)
    assert again == made
    more = cold.ensure(made, tmp_path)  # adapters that were trained before learn on
    assert cold.made(more) != folder
    assert read_curve(cold.made(more))[0].loss < read_curve(folder)[0].loss


def test_adapters_that_are_not_there_or_would_lose_their_base_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.cold_start.adapters.*model.lora is not set"):
        dataclasses.replace(QUICK, adapters=True).ensure(TINY, tmp_path)
    with pytest.raises(UserError, match=r"model.lora.start_from.*change the weights"):
        QUICK.ensure(dataclasses.replace(TINY, lora=LoRA(start_from="x")), tmp_path)


def all_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(folder.glob("*.safetensors")))


def killed_at(monkeypatch: pytest.MonkeyPatch, cold: ColdStart, settings: ModelSettings, root: Path, step: int) -> None:
    """A cold start that saves after every step and ends before ``step``, as if it had been killed there."""
    counted, own = itertools.count(1), _Training.step

    def stepped(self: _Training, rows: Any) -> None:
        if next(counted) == step:
            raise KeyboardInterrupt
        own(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(saved_progress, "EVERY_S", 0.0)
        patch.setattr(saved_progress, "SHARE", 0.0)
        patch.setattr(_Training, "step", stepped)
        with pytest.raises(KeyboardInterrupt):
            cold.ensure(settings, root)


@pytest.mark.thorough("True")
@pytest.mark.parametrize("adapters", [False, True])
def test_a_killed_one_continues_bit_for_bit(adapters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = dataclasses.replace(QUICK, steps=9, batch_size=2, adapters=adapters)
    settings, at = ADAPTED if adapters else TINY, 6
    monkeypatch.setattr(supervised, "POINTS", 2)  # a point of the curve every four steps: the kill is between two
    whole = cold.made(cold.ensure(settings, tmp_path / "whole"))
    killed_at(monkeypatch, cold, settings, tmp_path, at)
    (kept,) = tmp_path.glob("cold_start/*.progress/*.pt")
    assert kept.name == f"step-{at - 1:08d}.pt"
    steps: list[int] = []
    own = _Training.step
    monkeypatch.setattr(_Training, "step", lambda self, rows: (steps.append(self.done), own(self, rows))[1])
    folder = cold.made(cold.ensure(settings, tmp_path))
    assert steps == list(range(at - 1, cold.steps))
    assert read_curve(folder) == read_curve(whole)
    found, expected = all_weights(folder), all_weights(whole)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert not list(tmp_path.glob("cold_start/*.progress"))


@pytest.mark.thorough
def test_progress_that_was_damaged_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = QUICK.made(QUICK.ensure(TINY, tmp_path / "whole"))
    killed_at(monkeypatch, QUICK, TINY, tmp_path, 4)
    (kept,) = tmp_path.glob("cold_start/*.progress/*.pt")
    with open(kept, "r+b") as file:
        file.seek(kept.stat().st_size // 2)
        file.write(bytes(64))
    folder = QUICK.made(QUICK.ensure(TINY, tmp_path))
    assert "is not used (altered" in caplog.text
    assert all(torch.equal(a, all_weights(whole)[name]) for name, a in all_weights(folder).items())


def test_saving_takes_little_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a save of 2 s every 40 s at most; at quick ones every 10 s."""
    now = [0.0]
    monkeypatch.setattr(saved_progress.time, "monotonic", lambda: now[0])
    saved, written = SavedProgress(tmp_path / "x"), []

    def state() -> dict[str, Any]:
        written.append(now[0])
        now[0] += 2.0
        return {}

    for step in range(120):
        now[0] = max(now[0], float(step))
        saved.save_if_due(step, state)
    assert written == [10.0, 52.0, 94.0]
    assert [path.name for path in (tmp_path / "x.progress").glob("*.pt")] == ["step-00000094.pt"]


def _killed(root: str) -> None:
    """In a process of its own: SIGKILL behind the fifth step."""
    saved_progress.EVERY_S = saved_progress.SHARE = 0.0
    own = SavedProgress.save_if_due

    def save(self: SavedProgress, step: int, state: Any) -> None:
        own(self, step, state)
        if step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    SavedProgress.save_if_due = save  # type: ignore[method-assign]
    QUICK.ensure(TINY, Path(root))


@pytest.mark.thorough
def test_a_sigkill_costs_no_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = SERVER.Process(target=_killed, args=(str(tmp_path),))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    caplog.set_level("INFO")
    folder = QUICK.made(QUICK.ensure(TINY, tmp_path))
    assert "continuing behind step 5" in caplog.text
    whole = all_weights(QUICK.made(QUICK.ensure(TINY, tmp_path / "whole")))
    assert all(torch.equal(weight, whole[name]) for name, weight in all_weights(folder).items())
