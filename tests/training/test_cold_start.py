"""A cold start is trained once for its settings, whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import ChainTask, PromptSet, Record
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import Layout, ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.resume import Manifest, damage, manifest_path
from gspo_lightning.resume.files import sha256
from gspo_lightning.training import cold_start
from gspo_lightning.training.cold_start import ColdStart
from gspo_lightning.training.supervised import Point
from tests.runs.processes import in_processes
from tests.support.unreadable import unreadable

TASK = ChainTask("cold_start", size=8, operands=2)
QUICK = ColdStart(TASK, steps=2, batch_size=4, warmup_steps=1)
TINY = ModelSettings("tiny-qwen3")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element per training that took place."""
    calls: list[int] = []
    own = ColdStart.train

    def counted(self: ColdStart, policy: Policy, seed: int, *more: Any) -> list[Point]:
        calls.append(seed)
        return own(self, policy, seed, *more)

    monkeypatch.setattr(ColdStart, "train", counted)
    return calls


def test_the_second_time_it_is_found_and_not_trained(trained: list[int], tmp_path: Path) -> None:
    first = QUICK.ensure(TINY, tmp_path)
    second = QUICK.ensure(TINY, tmp_path)
    assert first == second
    assert len(trained) == 1
    folder = Path(first.name_or_path)
    assert folder == tmp_path / "cold_start" / QUICK.key(TINY)
    assert first == dataclasses.replace(TINY, name_or_path=str(folder))
    policy = load_policy(first)
    assert policy.tokenizer("7+5:")["input_ids"] == load_policy(TINY).tokenizer("7+5:")["input_ids"]
    fresh = load_policy(TINY)
    assert not torch.equal(next(policy.parameters()), next(fresh.parameters()))


def test_the_result_depends_on_nothing_but_its_settings(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = load_policy(QUICK.ensure(TINY, tmp_path / "a"))
    torch.manual_seed(2)
    second = load_policy(QUICK.ensure(TINY, tmp_path / "b"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


CHANGES: dict[str, Callable[[], tuple[ColdStart, ModelSettings]]] = {
    "steps": lambda: (dataclasses.replace(QUICK, steps=3), TINY),
    "batch size": lambda: (dataclasses.replace(QUICK, batch_size=5), TINY),
    "learning rate": lambda: (dataclasses.replace(QUICK, learning_rate=1e-3), TINY),
    "warm-up": lambda: (dataclasses.replace(QUICK, warmup_steps=2), TINY),
    "clip": lambda: (dataclasses.replace(QUICK, gradient_clip=0.5), TINY),
    "task size": lambda: (dataclasses.replace(QUICK, demonstrations=ChainTask("cold_start", 9, 2)), TINY),
    "task seed": lambda: (dataclasses.replace(QUICK, demonstrations=ChainTask("cold_start", 8, 2, seed=1)), TINY),
    "share": lambda: (dataclasses.replace(QUICK, demonstrations=ChainTask("cold_start", 8, 2, step_share=1.0)), TINY),
    "model": lambda: (QUICK, dataclasses.replace(TINY, name_or_path="tiny-qwen3-moe")),
    "model seed": lambda: (QUICK, dataclasses.replace(TINY, seed=1)),
    "dtype": lambda: (QUICK, dataclasses.replace(TINY, dtype="bfloat16")),
    "overrides": lambda: (QUICK, dataclasses.replace(TINY, config_overrides={"rms_norm_eps": 0.1})),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_setting_is_part_of_the_key(change: Callable[[], tuple[ColdStart, ModelSettings]]) -> None:
    cold_start, model = change()
    assert cold_start.key(model) != QUICK.key(TINY)


class Spoken(PromptSet):
    """A user's prompt set that keeps an object without a stable name."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self.pairs, self.helper = pairs, object()

    def records(self) -> Sequence[Record]:
        return [{"prompt": p} for p, _ in self.pairs]

    def demonstrations(self) -> Sequence[tuple[str, str]]:
        return self.pairs


def test_the_key_is_of_the_demonstrations_and_not_of_the_object_that_has_them() -> None:
    def key(*pairs: tuple[str, str]) -> str:
        return ColdStart(Spoken(*pairs)).key(TINY)

    assert key(("1+1:", "#2")) == key(("1+1:", "#2"))
    assert key(("1+1:", "#2")) != key(("1+1:", "#3"))


def test_the_key_of_a_local_model_changes_with_its_files(policy: Policy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path / "model")
    model = ModelSettings(str(tmp_path / "model"))
    before = QUICK.key(model)
    assert QUICK.key(model) == before
    with torch.no_grad():
        next(policy.parameters()).add_(1)
    policy.save_pretrained(tmp_path / "model")
    assert QUICK.key(model) != before


@pytest.mark.parametrize("at", ["training", "saving"])
def test_a_kill_half_way_leaves_nothing_at_the_target(
    at: str, trained: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "cold_start" / QUICK.key(TINY)

    def killed(self: object, *_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((ColdStart, "_schedule") if at == "training" else (cold_start.Path, "rename")), killed)
        with pytest.raises(KeyboardInterrupt):
            QUICK.ensure(TINY, tmp_path)
    assert not target.exists()
    assert Path(QUICK.ensure(TINY, tmp_path).name_or_path) == target  # the next run is not disturbed by what is left
    assert len(trained) == 2
    load_policy(ModelSettings(str(target)))
    assert {p.name.partition(".")[2] for p in target.parent.iterdir()} <= {"", "lock", "manifest.json"}


def zeroed(model: Path) -> None:
    weights = model / "model.safetensors"
    with open(weights, "r+b") as file:
        file.seek(weights.stat().st_size - 40_000)
        file.write(bytes(40_000))


def flipped(model: Path) -> None:
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-100] ^= 1
    (model / "model.safetensors").write_bytes(data)


def truncated(model: Path) -> None:
    os.truncate(model / "model.safetensors", 1000)


def without_tokenizer(model: Path) -> None:
    for file in model.glob("tokenizer*"):
        file.unlink()


def with_code(model: Path) -> None:
    """A file of code, and a config that asks for it."""
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "planted.Planted"}
    (model / "config.json").write_text(json.dumps(config))
    (model / "planted.py").write_text(f"open({str(model.parent / 'ran')!r}, 'w')")


def added(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")


def without_manifest(model: Path) -> None:
    manifest_path(model).unlink()


DAMAGE: dict[Callable[[Path], None], str] = {
    zeroed: "altered: its checksum is another one",
    flipped: "altered: its checksum is another one",
    truncated: "torn: 1,000 of",
    without_tokenizer: "is missing",
    with_code: "torn: ",
    added: "adapter_config.json was added",
    without_manifest: "incomplete: it has no manifest",
}


@pytest.mark.parametrize("harm", DAMAGE, ids=lambda harm: harm.__name__)
def test_a_damaged_one_is_named_moved_aside_and_made_again(
    harm: Callable[[Path], None], trained: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(QUICK.ensure(TINY, tmp_path).name_or_path)
    whole = {f.name: f.read_bytes() for f in folder.iterdir()}
    harm(folder)
    harmed = {f.name: f.read_bytes() for f in folder.iterdir()}
    assert QUICK.ensure(TINY, tmp_path).name_or_path == str(folder)
    aside = folder.with_name(f"{folder.name}.damaged-1")
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith(f"cold start: {folder} is damaged (")
    assert DAMAGE[harm] in said
    assert f"moved to {aside}, and recomputed" in said
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == whole  # the same settings, the same weights
    assert {f.name: f.read_bytes() for f in aside.iterdir()} == harmed
    QUICK.ensure(TINY, tmp_path)
    assert len(trained) == 2
    assert not (folder.parent / "ran").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "", "manifest"])
def test_cold_start_without_read_permission_is_not_called_damaged(
    name: str, trained: list[int], tmp_path: Path
) -> None:
    """A second user, or a first one with a strict umask, loses nothing."""
    folder = Path(QUICK.ensure(TINY, tmp_path).name_or_path)
    before = sorted(tmp_path.rglob("*"))
    denied = manifest_path(folder) if name == "manifest" else folder / name
    with unreadable(denied), pytest.raises(UserError, match="may not be read: Permission denied") as caught:
        QUICK.ensure(TINY, tmp_path)
    assert str(denied) in caught.value.field
    assert "chmod a+r" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert len(trained) == 1


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o026)
    try:
        folder = Path(QUICK.ensure(TINY, tmp_path).name_or_path)
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in [*folder.iterdir(), manifest_path(folder)]}
    assert set(modes.values()) == {0o640}, modes
    assert folder.stat().st_mode & 0o777 == 0o751


def test_a_cache_that_vouches_for_its_code_does_not_run_it(tmp_path: Path) -> None:
    """A manifest is not a signature: whoever can write the model can write that, too."""
    model = QUICK.ensure(TINY, tmp_path)
    folder = Path(model.name_or_path)
    with_code(folder)
    files = {f"{folder.name}/{f.name}": (f.stat().st_size, sha256(f)) for f in folder.iterdir()}
    Manifest(files, 1, 1).write(folder)
    again = QUICK.ensure(TINY, tmp_path)
    assert again == model
    assert not again.trust_remote_code
    load_policy(again)
    assert not (folder.parent / "ran").exists()


def _ensure(number: int, folder: str) -> None:
    """In a process of its own: the cold start, and the other process arrives while it is trained."""
    root, own = Path(folder), ColdStart.train

    def train(self: ColdStart, *arguments: Any) -> list[Point]:
        (root / f"trained-{number}").touch()
        time.sleep(0.5)
        return own(self, *arguments)

    ColdStart.train = train  # type: ignore[method-assign]
    (root / f"ready-{number}").touch()
    while len(list(root.glob("ready-*"))) < 2:
        time.sleep(0.01)
    (root / f"answer-{number}").write_text(QUICK.ensure(TINY, root).name_or_path)


@pytest.mark.thorough
def test_two_processes_at_once_train_once(tmp_path: Path) -> None:
    in_processes(_ensure, str(tmp_path))
    assert len(list(tmp_path.glob("trained-*"))) == 1
    key = str(tmp_path / "cold_start" / QUICK.key(TINY))  # it is this process's, too
    assert [(tmp_path / f"answer-{number}").read_text() for number in range(2)] == [key, key]
    zeroed(Path(key))  # and make it again once
    for left in (*tmp_path.glob("ready-*"), *tmp_path.glob("trained-*")):
        left.unlink()
    in_processes(_ensure, str(tmp_path))
    assert len(list(tmp_path.glob("trained-*"))) == 1
    assert len(list(tmp_path.glob("cold_start/*.damaged-*"))) == 1
    assert damage(Path(key)) is None


class Silent(PromptSet):
    """A prompt set that only asks."""

    def records(self) -> Sequence[Record]:
        return [{"prompt": "1+1:"}]


def test_a_set_without_demonstrations_is_a_clear_message(tmp_path: Path) -> None:
    cold_start = dataclasses.replace(QUICK, demonstrations=Silent())
    with pytest.raises(UserError, match="Silent has no demonstrations") as caught:
        cold_start.ensure(TINY, tmp_path)
    assert caught.value.field == "model.cold_start.demonstrations"
    assert not (tmp_path / "cold_start").exists()


def test_the_loss_is_the_mean_over_completion_tokens_with_the_end_token(policy: Policy) -> None:
    pairs = [("7+5:", "#2"), ("1*3-4:", "1*3=3;3-4=9;#9")]
    total, count = 0.0, 0
    for prompt, completion in pairs:
        ids = torch.tensor([[*policy.tokenizer(prompt + completion)["input_ids"], 1]])
        labels = ids.clone()
        labels[:, : len(prompt)] = -100
        tokens = len(completion) + 1
        total += float(policy.model(ids, labels=labels).loss.detach()) * tokens
        count += tokens
    cold_start = ColdStart(Spoken(*pairs), steps=1, batch_size=2, warmup_steps=0)
    assert cold_start.train(policy, seed=0)[-1].loss == pytest.approx(total / count, rel=1e-5)


def test_training_lowers_the_loss(policy: Policy) -> None:
    cold_start = ColdStart(Spoken(("7+5:", "#2"), ("1*3:", "#3")), steps=30, batch_size=2, warmup_steps=5)
    assert cold_start.train(policy, seed=0)[-1].loss < 0.7


def test_common_start_of_prompts_is_computed_once_with_equal_results() -> None:
    start = "9*9=1;8*8=4;7*7=9;6*6=6;5*5=5;"  # worked examples, a token each character
    pairs = [(f"{start}{sum_}:", answer) for sum_, answer in (("7+5", "#2"), ("1*3-4", "#9"), ("7+5", "5+7=2;#2"))]
    cold_start = ColdStart(Spoken(*pairs), steps=3, batch_size=3, warmup_steps=0, learning_rate=1e-3)

    def trained(layout: Layout) -> tuple[list[float], dict[str, torch.Tensor], int]:
        policy, tokens = load_policy(TINY), 0

        def count(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            nonlocal tokens
            tokens += inputs[0].numel() if torch.is_grad_enabled() else 0

        policy.model.get_input_embeddings().register_forward_pre_hook(count)
        curve = cold_start.train(policy, seed=0, layout=layout)
        return [point.loss for point in curve], policy.model.state_dict(), tokens

    losses, weights, tokens = trained("auto")
    padded_losses, padded_weights, padded_tokens = trained("padded")
    assert losses == pytest.approx(padded_losses, rel=1e-5)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, padded_weights[name], rtol=0, atol=2e-5, msg=name)
    # a step: the start once, each sum once, and every token of the answers but the end token
    assert padded_tokens == 3 * 3 * (len(start) + 4 + 9 - 1)
    assert tokens == 3 * (len(start) + len("7+5:") + len("1*3-4:") + len("#2") + len("#9") + len("5+7=2;#2"))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 600), st.integers(0, 50))
def test_the_learning_rate_rises_then_falls_to_a_tenth(steps: int, warmup: int) -> None:
    schedule = ColdStart(TASK, steps=steps, warmup_steps=warmup)._schedule
    values = [schedule(step) for step in range(steps)]
    assert all(0 < v <= 1 for v in values)
    late = values[warmup:]
    assert late == sorted(late, reverse=True)
    if steps > warmup + 1:
        assert values[-1] == pytest.approx(1 - 0.9 * (steps - 1) / steps)
    if warmup > 1:
        assert values[0] == pytest.approx(1 / warmup)
