"""The contract of every rollout source: in float32 the same tokens from all of them, whatever their batching."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, GroupedSampler, RolloutSource, TransformersGenerate
from tests.rollouts.replayed import Replayed
from tests.rollouts.through_http import ThroughHTTP
from tests.support import model_families
from tests.support.model_families import WINDOW

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
STOPS = (1, 5, 9, 20)
"""Several end tokens, so that responses of an untrained model differ in length."""
SAMPLING = SamplingParams(14, stop_token_ids=STOPS)
GROUP = 5
SOURCES: dict[str, RolloutSource] = {
    "grouped": GroupedSampler(),
    "grouped-one-prompt-at-a-time": GroupedSampler(max_rows=1),
    "grouped-two-prompts-at-a-time": GroupedSampler(max_rows=2 * GROUP + 1),
    "grouped-compact-always": GroupedSampler(compact_at=1e-9),
    "grouped-compact-never": GroupedSampler(compact_at=1.0),
    "grouped-own-modules": GroupedSampler(decode="model"),
    "generate": TransformersGenerate(),
    "generate-small-batches": TransformersGenerate(batch_size=3),
    "recorded": Replayed(".jsonl"),
    "recorded-parquet": Replayed(".parquet"),
    "server": ThroughHTTP(),
}
FAMILIES = ["qwen3", "qwen3-moe", "llama", "gemma2", "qwen3 padded", "llama padded", "qwen3-next"]
"""Gemma 2 caps its attention scores and Qwen3-Next has states: both are padded; the others share prompts unless told
otherwise."""

every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
every_family = pytest.mark.parametrize("family", FAMILIES)


def build_policy(family: str, seed: int = 0, sharpen: float = 3.0) -> Policy:
    name, _, layout = family.partition(" ")
    policy = model_families.build_policy(name, seed, sharpen)
    policy.packed = name not in ("gemma2", "qwen3-next") and layout != "padded"
    return policy


def flat(groups: Sequence[Sequence[Rollout]]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group]


def tokens(groups: Sequence[Sequence[Rollout]]) -> list[list[int]]:
    return [r.token_ids.tolist() for r in flat(groups)]


def one_by_one(policy: Policy, prompt: Prompt, k: int, sampling: SamplingParams) -> list[int]:
    """The definition: a full forward per token, no cache, no padding, no batch."""
    found: list[int] = []
    with torch.no_grad():
        while len(found) < sampling.max_response_tokens:
            ids = torch.tensor([[*prompt.token_ids, *found]])
            logits = policy.model(ids, use_cache=False).logits[0, -1].double()
            if sampling.temperature == 0:
                found.append(int(logits.argmax()))
            else:
                cumulative = torch.softmax(logits / sampling.temperature, -1).cumsum(0)
                uniform = DRAWS.uniform(torch.tensor([prompt.id]), torch.tensor([k]), len(found))
                found.append(int((cumulative <= uniform * cumulative[-1]).sum()))
            if found[-1] in sampling.stop_token_ids:
                break
            if any(stop in policy.tokenizer.decode(found) for stop in sampling.stop_strings):
                break
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, list[list[int]]]:
    """What the definition gives, once per family."""
    return {}


def definition(
    cache: dict[str, list[list[int]]], family: str, policy: Policy, prompts: Sequence[Prompt]
) -> list[list[int]]:
    if family not in cache:
        cache[family] = [one_by_one(policy, p, k, SAMPLING) for p in prompts for k in range(GROUP)]
    return cache[family]


@pytest.mark.thorough(
    "grouped-gemma2", "grouped-qwen3", "grouped-qwen3 padded", "grouped-qwen3-moe", "grouped-qwen3-next"
)
@every_family
@every_source
def test_every_source_samples_what_the_definition_says(
    source: RolloutSource, family: str, prompts: list[Prompt], expected: dict[str, list[list[int]]]
) -> None:
    policy = build_policy(family)
    groups = source.generate(policy, prompts, group_size=GROUP, sampling=SAMPLING, draws=DRAWS, version=8)
    wanted = definition(expected, family, policy, prompts)
    assert tokens(groups) == wanted
    lengths = {len(row) for row in wanted}
    assert len(lengths) > 3  # the case is worth something: rows end at different steps
    assert max(lengths) == 14
    assert max(lengths) + max(len(p.token_ids) for p in prompts) > WINDOW

    # shape of the answer: prompts in order, exactly G each, numbered
    assert [[(r.prompt, r.sample) for r in group] for group in groups] == [
        [(prompt, k) for k in range(GROUP)] for prompt in prompts
    ]
    for rollout in flat(groups):
        ids = rollout.token_ids.tolist()
        ended = ids[-1] in STOPS
        assert rollout.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert rollout.truncated is not ended
        assert ended or len(ids) == 14
        assert not set(ids[:-1]) & set(STOPS)  # nothing after an end, and the end token is in
        assert rollout.response_mask.all()
        assert rollout.policy_version == 8
        assert rollout.text == policy.tokenizer.decode(ids, skip_special_tokens=True)
        assert rollout.token_ids.dtype == torch.int64

    # log-probabilities caught while sampling are those of the training forward
    for rollout in flat(groups):
        rollout.reward = 0.0
    batch = make_micro_batch(flat(groups))
    with torch.no_grad():
        logprobs, _ = policy(batch)
    assert batch.behaviour_logprobs is not None
    assert batch.behaviour_logprobs.dtype == torch.float32
    rounding = 1e-4 if family == "qwen3-next" else 1e-5  # its states come in chunks there and token by token here
    assert float(((logprobs - batch.behaviour_logprobs).abs() * batch.response_mask).max()) < rounding


@every_source
def test_the_temperature_is_in_tokens_and_logprobs(source: RolloutSource, prompts: list[Prompt]) -> None:
    policy, sampling = build_policy("llama"), SamplingParams(6, temperature=1.8)
    groups = source.generate(policy, prompts[:2], group_size=2, sampling=sampling, draws=DRAWS)
    assert tokens(groups) == [one_by_one(policy, p, k, sampling) for p in prompts[:2] for k in range(2)]
    for rollout in flat(groups):
        rollout.reward = 0.0
    batch = make_micro_batch(flat(groups))
    with torch.no_grad():
        logprobs, _ = policy(batch, 1.8)
    assert batch.behaviour_logprobs is not None
    torch.testing.assert_close(logprobs * batch.response_mask, batch.behaviour_logprobs, rtol=0, atol=1e-5)


@every_family
@every_source
def test_greedy_is_transformers_own_greedy(source: RolloutSource, family: str, prompts: list[Prompt]) -> None:
    policy = build_policy(family)
    sampling = SamplingParams(12, temperature=0.0, stop_token_ids=(1,))
    groups = source.generate(policy, prompts, group_size=1, sampling=sampling, draws=DRAWS)
    for prompt, (rollout,) in zip(prompts, groups, strict=True):
        ids = torch.tensor([prompt.token_ids])
        theirs = policy.model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=1, pad_token_id=0)
        assert rollout.token_ids.tolist() == theirs[0, ids.shape[1] :].tolist()


@every_source
def test_without_end_tokens_every_response_has_the_full_length(source: RolloutSource, prompts: list[Prompt]) -> None:
    policy = build_policy("llama")
    policy.model.generation_config.eos_token_id = list(range(3, 20))
    sampling = SamplingParams(7)
    groups = source.generate(policy, prompts, group_size=3, sampling=sampling, draws=DRAWS)
    assert all(len(r.token_ids) == 7 and r.truncated for r in flat(groups))
    assert tokens(groups) == [one_by_one(policy, p, k, sampling) for p in prompts for k in range(3)]


@pytest.mark.thorough("generate-small-batches", "server")
@every_source
def test_stop_strings_end_a_response_with_the_token_that_completes_them(
    source: RolloutSource, prompts: list[Prompt]
) -> None:
    policy = build_policy("qwen3", sharpen=1.0)
    plain = SamplingParams(24, stop_token_ids=(1,))
    free = flat(source.generate(policy, prompts, group_size=GROUP, sampling=plain, draws=DRAWS))
    stop = free[0].text[5:7]  # two characters that do occur
    sampling = SamplingParams(24, stop_token_ids=(1,), stop_strings=(stop, "never-written"))
    found = flat(source.generate(policy, prompts, group_size=GROUP, sampling=sampling, draws=DRAWS))
    assert any(stop in r.text for r in found)
    for rollout, other in zip(found, free, strict=True):
        ids = rollout.token_ids.tolist()
        assert ids == other.token_ids.tolist()[: len(ids)]
        if stop in other.text:
            assert rollout.text == other.text[: other.text.index(stop) + len(stop)]
            assert rollout.finish_reason is FinishReason.STOP
        else:
            assert len(ids) == len(other.token_ids)
            assert rollout.finish_reason is other.finish_reason


@pytest.mark.thorough("generate-small-batches", "server")
@every_source
def test_a_stop_string_is_never_completed_by_the_prompt(
    source: RolloutSource, tokenizer: PreTrainedTokenizerFast
) -> None:
    """The prompt ends in ``:``; a response that begins with ``#`` has not written ``:#``."""
    policy = build_policy("qwen3", sharpen=1.0)
    prompts = [Prompt(i, "1+1:", tuple(tokenizer("1+1:")["input_ids"])) for i in range(8)]
    free = source.generate(policy, prompts, group_size=8, sampling=SamplingParams(6), draws=DRAWS)
    first = free[0][0].text[0]
    sampling = SamplingParams(6, stop_strings=(f":{first}",))
    found = source.generate(policy, prompts, group_size=8, sampling=sampling, draws=DRAWS)
    for rollout, other in zip(flat(found), flat(free), strict=True):
        if f":{first}" not in other.text:
            assert rollout.token_ids.tolist() == other.token_ids.tolist()
            assert rollout.truncated


@every_source
def test_the_models_own_generation_config_changes_nothing(source: RolloutSource, prompts: list[Prompt]) -> None:
    policy = build_policy("llama")
    usual = tokens(source.generate(policy, prompts, group_size=3, sampling=SAMPLING, draws=DRAWS))
    theirs = policy.model.generation_config
    theirs.update(
        do_sample=True, temperature=0.1, top_p=0.3, top_k=2, repetition_penalty=4.0, no_repeat_ngram_size=1,
        num_beams=2, max_length=4, min_new_tokens=9, suppress_tokens=[4, 5, 6], eos_token_id=[1, 4, 7], use_cache=False,
        bad_words_ids=[[8]], forced_eos_token_id=3,
    )  # fmt: skip
    assert tokens(source.generate(policy, prompts, group_size=3, sampling=SAMPLING, draws=DRAWS)) == usual
    assert policy.model.generation_config is theirs  # and it is still there for the export


@pytest.mark.thorough("server")
@every_source
def test_top_p_and_top_k_bound_what_is_sampled(source: RolloutSource, prompts: list[Prompt]) -> None:
    policy = build_policy("llama")
    greedy = SamplingParams(8, temperature=0.0, stop_token_ids=(1,))
    wanted = tokens(source.generate(policy, prompts, group_size=2, sampling=greedy, draws=DRAWS))
    for narrow in (SamplingParams(8, top_k=1, stop_token_ids=(1,)), SamplingParams(8, top_p=1e-9, stop_token_ids=(1,))):
        assert tokens(source.generate(policy, prompts, group_size=2, sampling=narrow, draws=DRAWS)) == wanted


@every_source
def test_a_response_of_one_token(source: RolloutSource, policy: Policy, prompts: list[Prompt]) -> None:
    groups = source.generate(policy, prompts, group_size=2, sampling=SamplingParams(1), draws=DRAWS)
    assert all(len(r.token_ids) == 1 for r in flat(groups))
    assert source.generate(policy, [], group_size=2, sampling=SamplingParams(1), draws=DRAWS) == []


@pytest.mark.thorough("server")
@every_source
def test_draws_follow_the_prompt_id_and_not_its_place(
    source: RolloutSource, policy: Policy, prompts: list[Prompt]
) -> None:
    forward = source.generate(policy, prompts, group_size=2, sampling=SAMPLING, draws=DRAWS)
    backward = source.generate(policy, prompts[::-1], group_size=2, sampling=SAMPLING, draws=DRAWS)
    assert tokens(forward) == tokens(backward[::-1])
    more = source.generate(policy, prompts[1:2], group_size=6, sampling=SAMPLING, draws=DRAWS)
    assert tokens(more)[:2] == tokens(forward[1:2])  # sample k is the same in a larger group
    other = Draws.of(1, Purpose.TRAIN_SAMPLING, 2)
    assert tokens(source.generate(policy, prompts, group_size=2, sampling=SAMPLING, draws=other)) != tokens(forward)


@every_source
def test_sampling_leaves_no_trace_on_the_policy(source: RolloutSource, policy: Policy, prompts: list[Prompt]) -> None:
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    for training in (False, True):
        policy.train(training)
        groups = source.generate(policy, prompts, group_size=2, sampling=SAMPLING, draws=DRAWS)
        assert policy.training is training
        assert all(module.training is training for module in policy.modules())
        assert torch.is_grad_enabled()
        for rollout in flat(groups):
            assert rollout.logprobs is not None
            for tensor in (rollout.logprobs, rollout.token_ids):
                assert not tensor.requires_grad
                assert not tensor.is_inference()  # inference tensors break a later backward
                assert tensor.device.type == "cpu"
                assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()  # no view of more
    assert all(p.grad is None and p.requires_grad for p in policy.parameters())
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    for rollout in flat(groups):
        rollout.reward = 0.0
    policy(make_micro_batch(flat(groups)))[0].sum().backward()


@every_source
def test_progress_counts_responses(source: RolloutSource, policy: Policy, prompts: list[Prompt]) -> None:
    seen: list[tuple[int, int]] = []
    source.generate(
        policy, prompts, group_size=GROUP, sampling=SAMPLING, draws=DRAWS, progress=lambda *p: seen.append(p)
    )
    assert seen[-1] == (4 * GROUP, 4 * GROUP)
    assert all(a[0] < b[0] for a, b in itertools.pairwise(seen))


@pytest.mark.thorough
def test_the_sampler_samples_what_the_model_says(tokenizer: PreTrainedTokenizerFast) -> None:
    """Frequencies of the first two tokens against their exact joint probabilities (chi-square)."""
    policy = build_policy("qwen3", seed=2, sharpen=1.5)
    prompt = Prompt(3, "7+5:", tuple(tokenizer("7+5:")["input_ids"]))
    samples = 20_000
    (group,) = GroupedSampler(max_rows=samples).generate(
        policy, [prompt], group_size=samples, sampling=SamplingParams(2), draws=DRAWS
    )
    found = torch.stack([r.token_ids for r in group])
    size = policy.model.config.vocab_size
    with torch.no_grad():
        ids = torch.tensor([[*prompt.token_ids, v] for v in range(size)])
        logits = policy.model(ids, use_cache=False).logits.double()
    first = torch.softmax(logits[0, -2], -1)
    joint = first.unsqueeze(1) * torch.softmax(logits[:, -1], -1)
    counts = torch.bincount(found[:, 0] * size + found[:, 1], minlength=size * size).double()
    likely = (joint * samples).flatten() >= 5  # the usual condition of the test; all others form one cell
    observed = torch.cat([counts[likely], counts[~likely].sum(0, keepdim=True)])
    wanted = torch.cat([joint.flatten()[likely], joint.flatten()[~likely].sum(0, keepdim=True)]) * samples
    freedom = len(wanted) - 1
    assert freedom > 100
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    assert abs(statistic - freedom) < 3.3 * (2 * freedom) ** 0.5  # both tails: draws that are too even are wrong too


@pytest.mark.parametrize("value", [0, -1])
def test_sizes_below_one_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="max_rows must be at least 1"):
        GroupedSampler(max_rows=value)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        TransformersGenerate(batch_size=value)


@pytest.mark.parametrize("value", [0.0, 1.1])
def test_a_compaction_share_outside_its_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"compact_at must lie in \(0, 1\]"):
        GroupedSampler(compact_at=value)
