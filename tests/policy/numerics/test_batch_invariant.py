"""Batch-invariant policies: the sampler's log-probabilities are those of training, to the last bit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.loop.old_policy.noise import check_ratio_noise
from gspo_lightning.objectives import REINFORCE
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.attention import PagedPlan
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import check_head, choose_layout
from gspo_lightning.policy.numerics import batch_invariant
from gspo_lightning.policy.numerics.batch_invariant import (
    PlacelessSiLU,
    TiledLinear,
    make_batch_invariant,
    tiled_product,
)
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts.drawing import Draws
from gspo_lightning.rollouts.sampler.admission_queue import Prefill
from gspo_lightning.rollouts.sampler.decoding import SharedDecoder
from gspo_lightning.rollouts.sampler.memory import Costs
from gspo_lightning.rollouts.sampler.sampler import GroupedSampler
from gspo_lightning.rollouts.verify import verify_decoding
from tests.support.model_families import COMMON, build_policy

Context = Callable[[], AbstractContextManager[object]]
CONTEXTS: dict[str, Context] = {
    "float32": nullcontext,
    "bf16-mixed": partial(torch.autocast, "cpu", torch.bfloat16),
}
TEMPERATURE = 0.8
OTHERS = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72, "intermediate_size": 67}
MODELS: dict[str, Callable[[], Policy]] = {
    "qwen3": lambda: build_policy("qwen3"),
    "llama": lambda: Policy(LlamaForCausalLM(LlamaConfig(**COMMON | OTHERS)), character_tokenizer()),
    "qwen2": lambda: Policy(Qwen2ForCausalLM(Qwen2Config(**COMMON)), character_tokenizer()),
    "mistral": lambda: Policy(
        MistralForCausalLM(MistralConfig(**COMMON, sliding_window=None, attention_bias=True)), character_tokenizer()
    ),
    "large vocabulary": lambda: Policy(
        LlamaForCausalLM(LlamaConfig(**COMMON | {"vocab_size": 50_021})), character_tokenizer(), unsaid=()
    ),
}


def policy_of(name: str, *, exact: bool = True) -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = MODELS[name]().eval()
    if exact:
        make_batch_invariant(policy)
    choose_layout(policy, "packed", 200)
    return policy


def sampled(policy: Policy, context: Context, max_rows: int = 512) -> list[Rollout]:
    """Groups of three, behind common tokens, with prompts around the end of a page and responses of many lengths."""
    prompts = [Prompt(i, "", (3, 1, 4, *(7 * t % 30 + i for t in range(n)))) for i, n in enumerate((1, 58, 60, 61, 9))]
    ends = tuple(range(5, 5 + policy.model.config.vocab_size // 12))
    sampling = SamplingParams(24, TEMPERATURE, stop_token_ids=ends)
    draws = Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
    with context():
        groups = GroupedSampler(max_rows).generate(policy, prompts, group_size=3, sampling=sampling, draws=draws)
    return [dataclasses.replace(rollout, reward=0.0) for group in groups for rollout in group]


def whole_rows(policy: Policy, rollouts: list[Rollout], context: Context, *, size: int, packed: bool) -> Tensor:
    """Log-probabilities of all response tokens from forward passes of ``size`` rows."""
    found = []
    policy.packed = packed
    for first in range(0, len(rollouts), size):
        part = rollouts[first : first + size]
        with context(), torch.no_grad():
            logprobs, _ = policy(make_micro_batch(part), TEMPERATURE)
        found += [row[: rollout.length] for row, rollout in zip(logprobs, part, strict=True)]
    policy.packed = True
    return torch.cat(found)


def reported(rollouts: list[Rollout]) -> Tensor:
    return torch.cat([rollout.logprobs for rollout in rollouts if rollout.logprobs is not None])


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_sampler_logprobs_equal_whole_rows_in_every_batch(name: str, context: Context) -> None:
    policy, other = policy_of(name), policy_of(name)  # two models of the same weights
    rollouts = sampled(policy, context)
    assert len({rollout.length for rollout in rollouts}) > 3
    for packed in (True, False):
        for size in (len(rollouts), 4, 1):
            assert torch.equal(whole_rows(other, rollouts, context, size=size, packed=packed), reported(rollouts))
    few = sampled(policy, context, max_rows=4)
    assert [r.token_ids.tolist() for r in few] == [r.token_ids.tolist() for r in rollouts]
    assert torch.equal(reported(few), reported(rollouts))


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_logprobs_differ_without_the_batch_invariant_mode(context: Context) -> None:
    policy = policy_of("qwen3", exact=False)
    rollouts = sampled(policy, context)
    found = whole_rows(policy, rollouts, context, size=len(rollouts), packed=True)
    assert (found != reported(rollouts)).float().mean() > 0.2
    torch.testing.assert_close(found, reported(rollouts), rtol=0, atol=1e-5 if context is nullcontext else 0.3)


def test_gradients_are_those_of_the_plain_model() -> None:
    found = []
    for exact in (True, False):
        policy = policy_of("llama", exact=exact)
        rollouts = sampled(policy, nullcontext)
        logprobs, entropies = policy(make_micro_batch(rollouts), TEMPERATURE)
        (logprobs.sum() + entropies.sum()).backward()
        found.append({name: p.grad for name, p in policy.named_parameters()})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.thorough
def test_adapters_sample_and_train_in_the_same_bits() -> None:
    policy = load_policy(ModelSettings(lora=LoRA(r=4), batch_invariant=True)).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    choose_layout(policy, "packed", 200)
    rollouts = sampled(policy, nullcontext)
    assert torch.equal(whole_rows(policy, rollouts, nullcontext, size=4, packed=False), reported(rollouts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inner", "outer"), [(32, 64), (48, 100), (77, 33), (576, 1536), (1536, 576)])
def test_a_row_of_a_tiled_product_does_not_depend_on_its_place(inner: int, outer: int, dtype: torch.dtype) -> None:
    draws = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(n, inner, generator=draws).to(dtype) for n in (100, outer))
    whole = tiled_product(rows, weight.t())
    torch.testing.assert_close(whole, rows @ weight.t(), rtol=2e-2, atol=1e-3 if dtype == torch.float32 else 0.5)
    for first in (0, 1, 7, 31, 40, 99):
        for count in (1, 2, 5, 33):
            part = tiled_product(rows[first : first + count], weight.t())
            assert torch.equal(part, whole[first : first + count])


@pytest.mark.parametrize("bias", [True, False])
def test_a_tiled_layer_has_the_gradients_of_a_plain_one(bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(20, 30, bias=bias, dtype=torch.float64)
    tiled = TiledLinear(20, 30, bias=bias, dtype=torch.float64)
    tiled.load_state_dict(plain.state_dict())
    x = torch.randn(2, 45, 20, dtype=torch.float64)
    found = []
    for layer in (plain, tiled):
        given = x.clone().requires_grad_()
        out = layer(given)
        out.pow(3).sum().backward()
        found.append([out, given.grad, *(p.grad for p in layer.parameters())])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_silu_does_not_depend_on_the_place_of_an_element(dtype: torch.dtype) -> None:
    x = (torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 8).to(dtype)
    silu = PlacelessSiLU()
    for start in (1, 3, 8, 17, 63):
        for length in (1, 2, 9, 31, 1000):
            assert torch.equal(silu(x[start : start + length].clone()), silu(x)[start : start + length])
    torch.testing.assert_close(silu(x), nn.functional.silu(x))
    edges = torch.tensor([-200.0, -100.0, 0.0, 100.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(silu(edges).sum(), edges)
    assert gradient.tolist() == pytest.approx([0.0, 0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (lambda: build_policy("qwen3-moe"), "layers of type Qwen3MoeDecoderLayer"),
        (lambda: build_policy("gemma2"), "layers of type Gemma2DecoderLayer"),
        (lambda: build_policy("qwen3-next"), "layers of type Qwen3NextDecoderLayer"),
        (lambda: load_policy(ModelSettings("tiny-qwen3-vl")), "a vision tower"),
        (lambda: load_policy(ModelSettings(attn_implementation="eager")), "attn_implementation 'eager'"),
        (
            lambda: Policy(MistralForCausalLM(MistralConfig(**COMMON, sliding_window=6)), character_tokenizer()),
            "a sliding window of 6 tokens",
        ),
        (
            lambda: Policy(LlamaForCausalLM(LlamaConfig(**COMMON, hidden_act="gelu")), character_tokenizer()),
            "the activation GELUActivation",
        ),
    ],
)
def test_a_model_that_was_not_made_invariant_is_refused(policy: Callable[[], Policy], reason: str) -> None:
    with pytest.raises(UserError, match=f"model.batch_invariant: is true, but .* has {re.escape(reason)}"):
        make_batch_invariant(policy())


def test_the_head_and_the_logits_of_the_model_itself_stay_what_they_are() -> None:
    policy = policy_of("qwen3")
    check_head(policy)
    ids = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        plain = policy_of("qwen3", exact=False).model(input_ids=ids).logits
        torch.testing.assert_close(policy.model(input_ids=ids).logits, plain)


def test_a_copy_has_the_mode_and_the_bits() -> None:
    policy = policy_of("qwen3")
    rollouts = sampled(policy, nullcontext)
    copy = policy.frozen_copy()
    assert copy.batch_invariant
    assert torch.equal(whole_rows(copy, rollouts, nullcontext, size=3, packed=True), reported(rollouts))


@pytest.mark.thorough
def test_pages_fit_into_the_memory_that_rows_are_said_to_take() -> None:
    policy = policy_of("qwen3")
    decoder, widths, rows, steps = SharedDecoder(policy), [5, 70, 63], [2, 3, 4], 70
    costs = Costs.of(policy, True, max(widths))
    decoder.add(Prefill([[7] * width for width in widths], rows))
    positions = torch.tensor(widths).repeat_interleave(torch.tensor(rows))
    for step in range(steps):
        decoder.step(torch.full_like(positions, 8), positions + step)
    logits = Costs(policy.model.config, 0, True, 0).row(0)
    said = sum(costs.context(n) for n in widths) + sum(rows) * (costs.row(steps) - logits)
    assert said / 3 < decoder.cache.nbytes <= said


@pytest.mark.thorough
def test_kernels_that_depend_on_the_batch_are_noticed_before_the_first_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of("qwen3")
    rows = make_micro_batch(sampled(policy, nullcontext))
    check_ratio_noise(policy, rows, REINFORCE(), nullcontext)
    monkeypatch.setattr(batch_invariant, "tiled_product", lambda rows, weight: rows @ weight)
    own = PagedPlan.attend
    monkeypatch.setattr(
        PagedPlan, "attend", lambda self, layer, q, *rest: own(self, layer, q, *rest) * (1 + 1e-6 * len(q))
    )
    with pytest.raises(UserError, match=r"model.batch_invariant: .* have other bits if they are computed row by"):
        check_ratio_noise(policy, rows, REINFORCE(), nullcontext)


def test_a_sampler_that_is_off_by_a_bit_is_noticed_before_the_first_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of("qwen3")
    verify_decoding(policy, GroupedSampler(), temperature=TEMPERATURE, longest=40)
    own = SharedDecoder.step
    monkeypatch.setattr(SharedDecoder, "step", lambda *args: own(*args) * (1 + 1e-6))
    policy.decoding.verified.clear()
    with pytest.raises(UserError, match=r"model.batch_invariant: is true, but \d+ of 22 sampled tokens have other"):
        verify_decoding(policy, GroupedSampler(), temperature=TEMPERATURE, longest=40)
