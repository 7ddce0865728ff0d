"""Adapters in a model that reads pictures: where they are, and rows that stay those of transformers' own forward."""

from __future__ import annotations

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.adapters.lora import LoRA, merge_adapters
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.families import FAMILIES, tower_of
from gspo_lightning.rollouts import GroupedSampler, TransformersGenerate
from tests.policy.vision.test_exact import alone, prompts_of, rollouts_of
from tests.rollouts.test_pictures import gap, sampled
from tests.support.pictures import SEEING

TINY = SEEING


def adapted(name: str, lora: LoRA, freeze: list[str] | None = None) -> Policy:
    """With adapters that are not the zero they start from."""
    policy = load_policy(ModelSettings(name, seed=3, lora=lora, freeze=freeze)).eval()
    with torch.no_grad():
        for parameter, weight in policy.named_parameters():
            if "lora_B" in parameter:
                weight.add_(0.03 * torch.arange(weight.numel()).view_as(weight).cos())
    return policy


def adapters(policy: Policy) -> list[str]:
    return [name for name, _ in policy.named_parameters() if ".lora_" in name]


@pytest.mark.parametrize("name", TINY)
def test_the_frozen_tower_gets_none_and_one_that_is_trained_does(name: str) -> None:
    policy = load_policy(ModelSettings(name, lora=LoRA(r=2)))
    trained = [n for n, p in policy.named_parameters() if p.requires_grad]
    assert trained == adapters(policy)  # none that is there and never trained
    parts = tuple(f"model.{part}." for part in tower_of(policy.model))
    assert not [n for n in trained if n.startswith(parts)]
    assert any(".self_attn.q_proj." in n for n in trained)
    everywhere = load_policy(ModelSettings(name, lora=LoRA(r=2), freeze=[]))
    assert set(adapters(everywhere)) > set(trained)
    assert len([n for n in adapters(everywhere) if n.startswith(parts)]) > 10
    text = FAMILIES[policy.model.config.model_type].text
    last = load_policy(ModelSettings(name, lora=LoRA(r=2), freeze=["vision", f"model.{text}.layers.0"]))
    assert set(adapters(last)) == {n for n in trained if ".layers.1." in n}


def test_layers_that_are_frozen_are_named_as_such() -> None:
    with pytest.raises(UserError, match=r"(?s)target_modules.*qkv.*that model.freeze leaves to train.*q_proj"):
        load_policy(ModelSettings("tiny-qwen3-vl", lora=LoRA(target_modules=["qkv"])))
    with pytest.raises(UserError, match=r"names no layer of Qwen3VL(?!.*model\.freeze)"):
        load_policy(ModelSettings("tiny-qwen3-vl", lora=LoRA(target_modules=["nothing"]), freeze=[]))
    assert adapters(load_policy(ModelSettings("tiny-qwen3-vl", lora=LoRA(target_modules=["qkv"]), freeze=[])))


@pytest.mark.thorough("tiny-gemma3-padded")
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", TINY)
def test_rows_are_those_of_a_plain_forward_also_after_the_merge(name: str, packed: bool) -> None:
    policy = adapted(name, LoRA(r=2), freeze=[])
    policy.packed = packed
    rollouts = rollouts_of(prompts_of(policy))
    logprobs, _ = policy(make_micro_batch(rollouts))
    with torch.no_grad():
        for row, rollout in zip(logprobs, rollouts, strict=True):
            torch.testing.assert_close(row[: rollout.length], alone(policy, rollout), rtol=1e-5, atol=1e-5)
        bare = load_policy(ModelSettings(name, seed=3)).eval()
        assert (logprobs[0, :3] - alone(bare, rollouts[0])).abs().max() > 1e-2  # the adapters do something
    logprobs.sum().backward()
    for parameter, weight in policy.named_parameters():
        assert (weight.grad is not None) == (".lora_" in parameter), parameter
    merge_adapters(policy.model)
    with torch.no_grad():
        for row, rollout in zip(logprobs, rollouts, strict=True):
            torch.testing.assert_close(row[: rollout.length], alone(policy, rollout), rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
def test_sources_say_what_the_training_forward_says() -> None:
    policy = adapted("tiny-qwen3-vl", LoRA(r=2))
    choose_layout(policy, "packed", 128)
    for source in (GroupedSampler(max_rows=6), TransformersGenerate(batch_size=5)):
        assert gap(policy, sampled(source, policy, prompts_of(policy))) < 2e-5


def test_four_bits_are_for_the_language_model() -> None:
    policy = adapted("tiny-qwen3-vl", LoRA(r=2, base="4bit"))
    packed = [n for n, m in policy.model.named_modules() if type(m).__name__ == "Linear4bit"]
    assert packed
    assert not [n for n in packed if ".visual." in n]
    whole = load_policy(ModelSettings("tiny-qwen3-vl", seed=3))
    tower = dict(whole.model.model.visual.named_parameters())
    assert all(torch.equal(p, tower[n]) for n, p in policy.model.model.visual.named_parameters())
    choose_layout(policy, "packed", 128)
    rollouts = rollouts_of(prompts_of(policy))
    with torch.no_grad():
        for row, rollout in zip(policy(make_micro_batch(rollouts))[0], rollouts, strict=True):
            torch.testing.assert_close(row[: rollout.length], alone(policy, rollout), rtol=1e-4, atol=1e-4)
