"""Sampling under autocast: every weight is cast once for a rollout, and what is sampled stays the same, bit by bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from benchmarks.models import Shape, build_model, word_tokenizer
from benchmarks.simulated.casts import weight_casts
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.numerics.autocast_weights import in_compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, GroupedSampler, TransformersGenerate
from gspo_lightning.rollouts.sampler import sampler
from gspo_lightning.rollouts.source import RolloutSource
from tests.support import model_families

SHAPE = Shape(64, 32, 2, 4, 2, 8, 48)
PROMPTS = [Prompt(0, "a", (3, 5, 7)), Prompt(1, "b", (4, 6, 8, 9, 2))]


@contextmanager
def as_it_is(policy: Policy) -> Iterator[Policy]:
    yield policy


def build(family: str) -> Policy:
    if family == "tied":
        return Policy(build_model(SHAPE), word_tokenizer(SHAPE.vocabulary)).eval()
    policy = model_families.build_policy("qwen3" if family == "adapters" else family, 0, 3.0).eval()
    if family == "adapters":
        add_adapters(policy.model, LoRA(r=2), seed=0)
        for name, value in policy.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(value)
    policy.packed = True
    return policy


def sample(policy: Policy, source: RolloutSource) -> tuple[list[list[int]], torch.Tensor]:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        groups = source.generate(policy, PROMPTS, group_size=2, sampling=SamplingParams(6), draws=Draws(1))
    rollouts = [r for group in groups for r in group]
    return [r.token_ids.tolist() for r in rollouts], torch.cat([r.logprobs for r in rollouts if r.logprobs is not None])


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3-moe", "adapters"])
@pytest.mark.parametrize("way", ["shared", "padded"])
def test_sampling_with_cast_weights_equals_autocast_bit_for_bit(
    family: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = build(family)
    policy.decoding.way = way  # type: ignore[assignment]
    tokens, logprobs = sample(policy, GroupedSampler())
    assert policy.decoding.cast
    monkeypatch.setattr(sampler, "in_compute_dtype", as_it_is)
    plain_tokens, plain_logprobs = sample(policy, GroupedSampler())
    assert tokens == plain_tokens
    assert torch.equal(logprobs, plain_logprobs)


@pytest.mark.parametrize("source", [GroupedSampler(), TransformersGenerate()])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3-moe", "tied"])
def test_no_weight_is_cast_while_a_rollout_is_sampled(family: str, source: RolloutSource) -> None:
    """Those that are there are the copies, one for each weight, made once."""
    policy = build(family)
    sample(policy, source)  # which finds out what autocast casts
    with weight_casts(policy) as casts:
        sample(policy, source)
    assert casts.outside_copies == 0
    assert casts.total == len(casts.weights) > 0


def test_the_copy_shares_what_is_not_cast_and_changes_nothing() -> None:
    policy = build("llama").train()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    with torch.autocast("cpu", torch.bfloat16), in_compute_dtype(policy) as twin:
        assert twin is not policy
        own, other = dict(policy.model.named_parameters()), dict(twin.model.named_parameters())
        cast = {name for name in other if other[name].dtype == torch.bfloat16}
        assert {name for name in own if "proj" in name} < cast
        assert not any("norm" in name or "embed_tokens" in name for name in cast)
        assert all(other[name].data_ptr() == own[name].data_ptr() for name in own if name not in cast)
        assert twin.training
        assert not any(p.requires_grad for p in twin.parameters())
    assert all(p.requires_grad for p in policy.parameters())
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def test_without_autocast_there_is_no_copy() -> None:
    policy = build("llama")
    with in_compute_dtype(policy) as same:
        assert same is policy
    cast = Policy(policy.model.bfloat16(), policy.tokenizer)  # type: ignore[arg-type]
    with torch.autocast("cpu", torch.bfloat16), in_compute_dtype(cast) as same:
        assert same is cast


def test_a_weight_that_is_also_read_as_it_is_is_not_cast() -> None:
    """Tied weights are read by the embedding, too; there they stay what they are."""
    policy = build("tied")
    with torch.autocast("cpu", torch.bfloat16), in_compute_dtype(policy) as twin:
        assert twin.model.get_output_embeddings().weight.dtype == torch.bfloat16
        assert twin.model.get_input_embeddings().weight.dtype == torch.float32
    assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight


def test_search_for_tied_weights_ignores_modules_of_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that reads a tied weight is that of this thread, whatever another one has called last."""
    policy, other = build("tied"), torch.nn.Linear(2, 2)
    real = policy.backbone.forward

    def forward(*args: Any, **options: Any) -> Any:
        thread = threading.Thread(target=other, args=(torch.ones(1, 2),))
        thread.start()
        thread.join()
        return real(*args, **options)

    monkeypatch.setattr(policy.backbone, "forward", forward)
    with torch.autocast("cpu", torch.bfloat16), in_compute_dtype(policy):
        assert policy.decoding.cast is not None
    alone = build("tied")
    with torch.autocast("cpu", torch.bfloat16), in_compute_dtype(alone):
        assert alone.decoding.cast == policy.decoding.cast
