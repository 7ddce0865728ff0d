"""Adapters: trained alone, saved alone, resumed bit for bit, turned off for the reference, merged for an export."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

from gspo_lightning.cli import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.old_policy.reference import ReferencePolicy
from gspo_lightning.policy.adapters.lora import LoRA, adapters_off, merge_adapters
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.policy import Policy
from tests.runs import runs

ADAPTERS = [*runs.UNTAUGHT, "--model.lora={r: 4, alpha: 8}", "--model.optimizer.init_args.lr=0.003"]
ONE = "--trainer.max_epochs=1"


def batch() -> MicroBatch:
    ids = torch.arange(36).view(4, 9) % 30 + 3
    mask = torch.ones(4, 5, dtype=torch.bool)
    return MicroBatch(ids, torch.full((4,), 4), torch.full((4,), 5), mask, torch.zeros(4))


def adapted(scale: float = 0.05, base: Literal["as_loaded", "4bit"] = "as_loaded") -> Policy:
    """A policy whose adapters are not the zero they start from."""
    policy = load_policy(ModelSettings("tiny-qwen3", lora=LoRA(r=4, base=base)))
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.add_(scale * torch.arange(weight.numel()).view_as(weight).cos())
    return policy


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations without a break."""
    return runs.fit(tmp_path_factory.mktemp("whole"), *ADAPTERS)


@pytest.mark.thorough
def test_only_adapters_are_saved_and_a_resume_is_exact(tmp_path: Path, whole: Path) -> None:
    saved = runs.checkpoint(whole)["state_dict"]
    assert saved
    assert all(".lora_" in name for name in saved)
    runs.fit(tmp_path, *ADAPTERS, ONE)
    resumed = runs.fit(tmp_path, *ADAPTERS, "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(resumed), runs.weights(whole)) == 0.0
    rewards = runs.scalars(whole)["reward/mean"]
    assert runs.scalars(resumed)["reward/mean"] == rewards
    assert len(rewards) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["ResidentSnapshot", "OffloadedSnapshot"])
def test_every_form_of_the_old_policy_trains_the_same_adapters(form: str, tmp_path: Path, whole: Path) -> None:
    run = runs.fit(tmp_path, *ADAPTERS, f"--model.old_policy={form}")
    assert runs.largest_difference(runs.weights(run), runs.weights(whole)) == 0.0


@pytest.mark.thorough
def test_export_is_an_ordinary_model_with_the_same_logits(tmp_path: Path, whole: Path) -> None:
    assert main(["export", str(whole / "checkpoints" / "last.ckpt"), str(tmp_path / "out")]) == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not [name for name, _ in exported.named_parameters() if "lora" in name]
    policy = load_policy(ModelSettings("tiny-qwen3", lora=LoRA(r=4, alpha=8), seed=1))
    own = {n.removeprefix("policy."): w for n, w in runs.weights(whole).items()}
    assert not policy.load_state_dict(own, strict=False).unexpected_keys
    ids = batch().input_ids
    with torch.no_grad():
        expected, base = policy.model(ids).logits, None
        with adapters_off(policy.model):
            base = policy.model(ids).logits
        found = exported(ids).logits
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, base, atol=1e-4)  # training has moved them


FOUR_BITS = [*ADAPTERS, "--model.lora.base=4bit"]


@pytest.mark.thorough
def test_adapters_on_four_bit_weights_train_resume_and_export_merged(tmp_path: Path) -> None:
    whole = runs.fit(tmp_path / "whole", *FOUR_BITS)
    assert all(".lora_" in name for name in runs.checkpoint(whole)["state_dict"])
    assert all(value > 0 for _, value in runs.scalars(whole)["optim/gradient_norm"])
    runs.fit(tmp_path, *FOUR_BITS, ONE)
    resumed = runs.fit(tmp_path, *FOUR_BITS, "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(resumed), runs.weights(whole)) == 0.0
    assert runs.scalars(resumed)["reward/mean"] == runs.scalars(whole)["reward/mean"]
    last = whole / "checkpoints" / "last.ckpt"
    assert main(["export", str(last), str(tmp_path / "model")]) == 0
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1, lora=LoRA(r=4, alpha=8, base="4bit")))
    own = {n.removeprefix("policy."): w for n, w in runs.weights(whole).items()}
    assert not policy.load_state_dict(own, strict=False).unexpected_keys
    exported, ids = AutoModelForCausalLM.from_pretrained(tmp_path / "model"), batch().input_ids
    with torch.no_grad():
        assert torch.allclose(exported(ids).logits, policy.model(ids).logits, atol=1e-5)


def test_four_bits_pack_linear_layers_and_nothing_else() -> None:
    policy, plain = adapted(base="4bit"), load_policy(ModelSettings("tiny-qwen3"))
    packed = {name for name, p in policy.model.named_parameters() if p.dtype == torch.uint8}
    linear = {name for name, layer in plain.model.named_modules() if isinstance(layer, torch.nn.Linear)}
    assert packed == {f"{name}.base_layer.weight" for name in linear - {"lm_head"}}
    assert sum(p.numel() for n, p in policy.model.named_parameters() if n in packed) * 2 == sum(
        plain.model.get_submodule(name).weight.numel() for name in linear - {"lm_head"}
    )
    with torch.no_grad(), adapters_off(policy.model):
        error = (policy(batch())[0] - plain(batch())[0]).abs()
    assert 0 < float(error.mean()) < 0.3


def test_adapters_on_another_base_are_refused(tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*ADAPTERS, f"--ckpt_path={whole / 'checkpoints' / 'last.ckpt'}", "--seed_everything=2"]
    runs.fit(tmp_path, *argv, "--allow_changed_config=true", code=2)
    assert "holds other weights" in capsys.readouterr().err


def test_the_reference_is_the_policy_with_adapters_off() -> None:
    policy, start = adapted(scale=0.0), load_policy(ModelSettings("tiny-qwen3"))
    reference = ReferencePolicy(policy)
    assert reference.policy is policy
    policy.load_state_dict(adapted().state_dict())
    with torch.no_grad(), adapters_off(policy.model):
        off = policy(batch())[0]
    with torch.no_grad():
        assert torch.equal(off, start(batch())[0])
        assert not torch.equal(policy(batch())[0], off)


@pytest.mark.parametrize("whole_model", [False, True], ids=["adapters", "adapters and weights"])
def test_the_reference_of_adapters_that_were_trained_before_has_them(whole_model: bool) -> None:
    policy = adapted(scale=0.0 if whole_model else 0.05).requires_grad_(True)
    for name, weight in policy.named_parameters():
        weight.requires_grad_(whole_model or ".lora_" in name)
    with torch.no_grad():
        start = policy(batch())[0]
        reference = ReferencePolicy(policy)
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.add_(0.05)
        assert torch.equal(reference.policy(batch())[0], start)
        assert not torch.equal(policy(batch())[0], start)
    frozen = {id(p) for p in policy.parameters() if not p.requires_grad}
    assert frozen == {id(p) for name, p in reference.policy.named_parameters() if id(p) in frozen}


def test_a_copy_shares_the_frozen_weights_and_merging_changes_no_logit() -> None:
    policy = adapted()
    with torch.no_grad():
        expected = policy(batch())[0]
    twin = policy.frozen_copy()
    own = {id(p) for p in policy.parameters()}
    assert {".lora_" in n for n, p in twin.named_parameters() if id(p) not in own} == {True}
    merge_adapters(twin.model)
    with torch.no_grad():
        assert torch.allclose(twin(batch())[0], expected, atol=1e-5)


def test_rows_are_packed_with_adapters() -> None:
    policy = adapted()
    choose_layout(policy, "packed", longest=16)
    assert policy.packed


@pytest.mark.parametrize(
    ("lora", "hint"),
    [
        ({"dropout": 0.1}, "dropout moves"),
        ({"r": 0}, "at least 1"),
        ({"target_modules": ["q"]}, "q_proj"),
    ],
)
def test_unusable_lora_settings_are_refused_with_a_hint(lora: dict[str, object], hint: str) -> None:
    with pytest.raises(UserError, match=r"model\.lora") as error:
        load_policy(ModelSettings("tiny-qwen3", lora=LoRA(**lora)))  # type: ignore[arg-type]
    assert hint in str(error.value)
