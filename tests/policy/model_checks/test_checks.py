"""The packed layout of real model families against padded rows, and how a layout is chosen."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, MicroBatch, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.attention import plans
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts import Draws, GroupedSampler
from tests.support.model_families import COMMON, WINDOW, build_policy

PACKED = ["qwen3", "qwen3-moe", "llama", "granite", "cohere"]


def batch(lengths: dict[int, list[int]], seed: int = 0) -> MicroBatch:
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for width, responses in lengths.items():
        prompt = Prompt(width, "", tuple(torch.randint(3, 30, (width,), generator=draw).tolist()))
        for k, length in enumerate(responses):
            ids = torch.randint(3, 30, (length,), generator=draw)
            mask = torch.ones(length, dtype=torch.bool)
            rows.append(Rollout(prompt, k, ids, None, mask, FinishReason.STOP, 0, reward=0.0))
    return make_micro_batch(rows)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", PACKED)
def test_log_probabilities_and_gradients_are_those_of_padded_rows(family: str, checkpointing: bool) -> None:
    policy = build_policy(family).train()
    if checkpointing:
        policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    rows = batch({5: [3, 1, 7], 2: [4], 9: [2, 2]})
    weights = torch.randn(rows.response_mask.shape, generator=torch.Generator().manual_seed(1))

    def run(packed: bool) -> tuple[torch.Tensor, ...]:
        policy.packed = packed
        policy.zero_grad()
        logprobs, entropy = policy(rows, 0.7)
        ((logprobs * weights).sum() + (entropy * weights.flip(1)).sum()).backward()
        gradients = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
        return (logprobs.detach(), entropy.detach(), *gradients)

    for ours, theirs in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize("family", PACKED)
def test_auto_packs_what_can_be_packed(family: str) -> None:
    policy = build_policy(family)
    choose_layout(policy, "auto", 64)
    assert policy.packed
    assert policy.frozen_copy().packed
    choose_layout(policy, "padded", 64)
    assert not policy.packed


def test_a_window_that_is_too_short_falls_back_with_one_message(caplog: pytest.LogCaptureFixture) -> None:
    policy = build_policy("gemma2")
    with caplog.at_level(logging.WARNING):
        choose_layout(policy, "auto", WINDOW + 1)
    assert not policy.packed
    assert len(caplog.records) == 1
    assert f"a sliding window of {WINDOW} tokens" in caplog.text
    with pytest.raises(UserError, match=r"model\.layout: packed does not work here: a sliding window"):
        choose_layout(policy, "packed", WINDOW + 1)


def test_a_window_that_only_the_config_knows_is_found(caplog: pytest.LogCaptureFixture) -> None:
    """Mistral's layers do not know their window: rows beyond it would have stopped the run in the middle."""
    model = MistralForCausalLM(MistralConfig(**COMMON, sliding_window=16))
    policy = Policy(model, character_tokenizer()).eval()
    choose_layout(policy, "auto", 16)
    assert policy.packed
    with caplog.at_level(logging.WARNING):
        choose_layout(policy, "auto", 17)
    assert not policy.packed
    assert "a sliding window of 16 tokens" in caplog.text


def test_soft_capped_scores_fall_back_although_the_window_is_long_enough(caplog: pytest.LogCaptureFixture) -> None:
    policy = build_policy("gemma2")
    for layer in policy.backbone.layers:
        layer.self_attn.sliding_window = 64
    policy.backbone.config.sliding_window = 64
    with caplog.at_level(logging.WARNING):
        choose_layout(policy, "auto", 64)
    assert not policy.packed
    # what transformers chooses: sdpa, which ignores the cap, in 5.19; eager in 5.24
    chosen = policy.model.config._attn_implementation
    assert {"sdpa": "softcap in the attention", "eager": "attn_implementation 'eager'"}[chosen] in caplog.text


def test_eager_attention_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    policy = build_policy("qwen3")
    policy.model.set_attn_implementation("eager")
    with caplog.at_level(logging.WARNING):
        choose_layout(policy, "auto", 64)
    assert not policy.packed
    assert "attn_implementation 'eager'" in caplog.text


def test_a_model_whose_attention_is_another_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = build_policy("llama")
    attention = policy.backbone.layers[0].self_attn
    forward = type(attention).forward

    def backwards(self: torch.nn.Module, hidden_states: torch.Tensor, *args: object, **kwargs: object) -> object:
        if "gspo_plan" in kwargs:  # as a family whose mask means something else
            hidden_states = hidden_states.flip(1)
        return forward(self, hidden_states, *args, **kwargs)

    monkeypatch.setattr(type(attention), "forward", backwards)
    with caplog.at_level(logging.WARNING):
        choose_layout(policy, "auto", 64)
    assert not policy.packed
    assert "nats on average" in caplog.text


def test_the_model_itself_is_left_as_it_was() -> None:
    policy = build_policy("qwen3")
    ids = torch.arange(12).view(2, 6)
    before = policy.model(input_ids=ids).logits
    choose_layout(policy, "auto", 64)
    policy(batch({4: [3, 2]}))
    assert torch.equal(policy.model(input_ids=ids).logits, before)


def test_under_autocast_both_layouts_answer_alike_and_the_sampler_too() -> None:
    policy = build_policy("qwen3", sharpen=1.0)
    rows = batch({5: [3, 1, 7], 2: [4]})
    with torch.autocast("cpu", torch.bfloat16):
        padded, _ = policy(rows)
        policy.packed = True
        packed, _ = policy(rows)
        packed.sum().backward()
    assert packed.dtype == torch.float32
    torch.testing.assert_close(packed, padded, rtol=0, atol=0.05)
    prompt = Prompt(0, "", (3, 4, 5))
    with torch.autocast("cpu", torch.bfloat16):
        groups = GroupedSampler().generate(
            policy, [prompt], group_size=3, sampling=SamplingParams(5), draws=Draws(1), version=0
        )
        again, _ = policy(make_micro_batch(groups[0]))
    sampled = torch.stack([r.logprobs for r in groups[0]])
    torch.testing.assert_close(again.detach(), sampled, rtol=0, atol=0.05)


def test_a_device_without_a_kernel_falls_back_before_the_model_is_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plans, "has_flex", lambda device: False)  # a CUDA wheel of torch brings Triton
    policy = build_policy("qwen3")
    with caplog.at_level(logging.WARNING):
        choose_layout(policy, "auto", 64, torch.device("cuda"))
    assert not policy.packed
    assert "a device of type 'cuda'" in caplog.text
