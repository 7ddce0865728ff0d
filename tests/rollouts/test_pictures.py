"""Sampling with pictures: what a source says of its tokens is what the training forward says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.loop.experience.partial import PartialRollouts
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import EnvironmentRollouts, GroupedSampler, RolloutSource, TransformersGenerate
from gspo_lightning.rollouts.drawing import Draws
from gspo_lightning.rollouts.environments import Environment, Messages, Step
from gspo_lightning.rollouts.source import ResponsePrefix
from tests.rollouts.through_http import ThroughHTTP
from tests.support.pictures import SEEING, plain_inputs, png, seeing_prompt

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
SAMPLING = SamplingParams(12, 1.0, stop_token_ids=(1,))
SOURCES = {
    "grouped": lambda: GroupedSampler(max_rows=6),
    "modules": lambda: GroupedSampler(max_rows=6, decode="model"),
    "generate": lambda: TransformersGenerate(batch_size=5),
    "server": ThroughHTTP,
}
every_source = pytest.mark.parametrize("kind", SOURCES)
every_pair = pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n in SEEING for k in SOURCES if k != "server" or n.startswith("tiny-qwen")]
)
every_model = pytest.mark.parametrize("name", SEEING)


def policy_of(name: str, packed: bool) -> Policy:
    policy = load_policy(ModelSettings(name, seed=3)).eval()
    choose_layout(policy, "packed" if packed else "padded", 128)
    return policy


def prompts_of(policy: Policy) -> list[Prompt]:
    """The first and the last have the same tokens and other pictures; one of the second is scaled."""
    return [
        seeing_prompt(policy, 0, ["1+", png(0), "=?"]),
        seeing_prompt(policy, 1, [png(1, 48, 32), "ABC", png(2, 20, 70)]),
        seeing_prompt(policy, 2, ["7+5*3:"]),
        seeing_prompt(policy, 3, ["1+", png(4), "=?"]),
    ]


def sampled(source: RolloutSource, policy: Policy, prompts: Sequence[Prompt]) -> list[Rollout]:
    groups = source.generate(policy, prompts, group_size=3, sampling=SAMPLING, draws=DRAWS)
    return [rollout for group in groups for rollout in group]


def gap(policy: Policy, rollouts: Sequence[Rollout]) -> float:
    for rollout in rollouts:
        rollout.reward = 1.0
    with torch.no_grad():
        logprobs = policy(make_micro_batch(rollouts))[0]
    return max(float((row[: r.length] - r.logprobs).abs().max()) for row, r in zip(logprobs, rollouts, strict=True))


@pytest.mark.thorough(
    "tiny-qwen2.5-vl-server-packed",
    "tiny-qwen2.5-vl-server-padded",
    "tiny-qwen3-vl-moe-server-packed",
    "tiny-qwen3-vl-moe-server-padded",
    "tiny-qwen3-vl-server-packed",
    "tiny-qwen3-vl-server-padded",
)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@every_pair
def test_a_source_gives_the_log_probabilities_of_the_training_forward(name: str, kind: str, packed: bool) -> None:
    policy = policy_of(name, packed)
    rollouts = sampled(SOURCES[kind](), policy, prompts_of(policy))
    assert gap(policy, rollouts) < 2e-5
    texts = sampled(SOURCES[kind](), policy, [prompts_of(policy)[2]])  # nothing of the pictures stays behind
    assert [r.token_ids.tolist() for r in texts] == [r.token_ids.tolist() for r in rollouts[6:9]]


class Short(GroupedSampler):
    """Turns of 4 tokens: an untrained model hardly ever ends one."""

    def extend(self, policy: Policy, beginnings: Sequence[ResponsePrefix], **options: Any) -> list[Rollout]:
        options["enough"] = None  # a turn that is cut for others would lose its end
        turns = super().extend(
            policy, [dataclasses.replace(b, token_budget=min(b.token_budget, 4)) for b in beginnings], **options
        )
        return [dataclasses.replace(turn, finish_reason=FinishReason.STOP) for turn in turns]


class Asks(Environment):
    """Two more questions about what was shown; it opens the conversation, or says other words, if it is told to."""

    def __init__(self, opening: str = "", words: str = "+2:") -> None:
        self.opening, self.words, self.turns = opening, words, 0

    def reset(self, prompt: Prompt) -> Messages:
        return [{"role": "user", "content": self.opening}] if self.opening else []

    def step(self, completion: str) -> Step:
        self.turns += 1
        return [{"role": "user", "content": self.words}], 0.0, self.turns == 3


@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "tiny-smolvlm", "tiny-gemma3"])
def test_a_conversation_sees_the_pictures_of_its_prompt_in_every_turn(name: str) -> None:
    policy = policy_of(name, packed=True)
    long = dataclasses.replace(SAMPLING, max_response_tokens=60)
    source = EnvironmentRollouts(Asks(), Short(max_rows=6))
    assert source.reads_pictures
    with closing(source):
        groups = source.generate(policy, prompts_of(policy), group_size=2, sampling=long, draws=DRAWS)
    rollouts = [rollout for group in groups for rollout in group]
    assert max(len(r.turn_ends) for r in rollouts) == 3
    for rollout in rollouts:
        rollout.reward = 1.0
    with torch.no_grad():
        logprobs = policy(make_micro_batch(rollouts))[0]
    for row, rollout in zip(logprobs, rollouts, strict=True):
        own = rollout.response_mask
        assert int(own.sum()) > 0
        torch.testing.assert_close(row[: len(own)][own], rollout.logprobs[own], atol=2e-5, rtol=0)
    first, other = rollouts[0], rollouts[6]  # the same tokens before another picture
    assert first.prompt.token_ids == other.prompt.token_ids
    assert first.token_ids.tolist() != other.token_ids.tolist() or not torch.equal(first.logprobs, other.logprobs)


def test_an_environment_neither_opens_over_pictures_nor_says_their_placeholder() -> None:
    policy = policy_of("tiny-qwen3-vl", packed=True)
    assert policy.image_processor is not None
    image = policy.tokenizer.convert_ids_to_tokens(policy.image_processor.image)

    def said(environment: Environment, prompts: Sequence[Prompt]) -> str:
        with closing(EnvironmentRollouts(environment, Short())) as source, pytest.raises(UserError) as error:
            sampled(source, policy, prompts)
        return str(error.value)

    assert "prompt 0 has pictures" in said(Asks(opening="1+1:"), prompts_of(policy)[:1])
    assert f"said {image}" in said(Asks(words=f"1{image}2"), prompts_of(policy)[:1])
    assert f"said {image}" in said(Asks(opening=f"1{image}2"), prompts_of(policy)[2:3])


def scores(policy: Policy, prompt: Prompt, ids: Sequence[int]) -> Tensor:
    """Logits [V] of the next token by transformers alone: its processor reads the files, its model the pixels."""
    image_processor = policy.image_processor
    assert image_processor is not None
    row = torch.tensor([[*prompt.token_ids, *ids]])
    with torch.no_grad():
        found = policy.model(row, use_cache=False, **plain_inputs(policy, prompt.media, row)).logits[0, -1]
    policy.model.base_model.rope_deltas = None
    return found.double().index_fill(0, torch.tensor(image_processor.unsaid), -torch.inf)


def definition(policy: Policy, prompt: Prompt, k: int, sampling: SamplingParams) -> list[int]:
    """A full forward per token, no cache, no padding, no batch."""
    found: list[int] = []
    while len(found) < sampling.max_response_tokens and not set(found[-1:]) & set(sampling.stop_token_ids):
        logits = scores(policy, prompt, found)
        if not sampling.temperature:
            found.append(int(logits.argmax()))
            continue
        cumulative = torch.softmax(logits / sampling.temperature, -1).cumsum(0)
        uniform = DRAWS.uniform(torch.tensor([prompt.id]), torch.tensor([k]), len(found))
        found.append(int((cumulative <= uniform * cumulative[-1]).sum()))
    return found


@pytest.fixture(scope="module")
def defined() -> dict[tuple[str, float], list[list[int]]]:
    """What the definition gives, once per model and temperature."""
    return {}


@pytest.mark.thorough("tiny-qwen2.5-vl-server-0.0", "tiny-qwen3-vl-moe-server-0.0", "tiny-qwen3-vl-server-0.0")
@pytest.mark.parametrize("temperature", [0.0, 1.3])
@every_pair
def test_every_source_samples_what_the_definition_says(
    name: str, kind: str, temperature: float, defined: dict[tuple[str, float], list[list[int]]]
) -> None:
    policy = policy_of(name, True)
    sampling = SamplingParams(8, temperature, stop_token_ids=(1, 5, 9, 20))
    prompts = prompts_of(policy)[:3]
    if (name, temperature) not in defined:
        defined[name, temperature] = [definition(policy, p, k, sampling) for p in prompts for k in range(2)]
    groups = SOURCES[kind]().generate(policy, prompts, group_size=2, sampling=sampling, draws=DRAWS)
    assert [r.token_ids.tolist() for group in groups for r in group] == defined[name, temperature]
    narrow = dataclasses.replace(sampling, temperature=1.3, top_k=1)  # greedy, by another way
    if not temperature:
        groups = SOURCES[kind]().generate(policy, prompts, group_size=2, sampling=narrow, draws=DRAWS)
        assert [r.token_ids.tolist() for group in groups for r in group] == defined[name, temperature]


@every_source
def test_a_stop_string_ends_a_response_to_a_picture(kind: str) -> None:
    policy = policy_of("tiny-qwen3-vl", True)
    free = sampled(SOURCES[kind](), policy, prompts_of(policy)[:1])
    stop = free[0].text[3:5]
    sampling = dataclasses.replace(SAMPLING, stop_strings=(stop,))
    (group,) = SOURCES[kind]().generate(policy, prompts_of(policy)[:1], group_size=3, sampling=sampling, draws=DRAWS)
    assert group[0].text == free[0].text[: free[0].text.index(stop) + len(stop)]
    assert group[0].finish_reason is FinishReason.STOP


@pytest.mark.thorough("tiny-qwen2.5-vl", "tiny-qwen3-vl", "tiny-qwen3-vl-moe")
@every_model
def test_all_sources_draw_the_same_tokens(name: str) -> None:
    policy = policy_of(name, True)
    makes = [make for kind, make in SOURCES.items() if kind != "server" or name.startswith("tiny-qwen")]
    found = [[r.token_ids.tolist() for r in sampled(make(), policy, prompts_of(policy))] for make in makes]
    assert all(other == found[0] for other in found)
    assert found[0][:3] != found[0][9:]  # the same text, another picture, other draws


def test_the_same_tokens_with_another_picture_do_not_share_a_context() -> None:
    policy = policy_of("tiny-qwen3-vl", True)
    first, other = (seeing_prompt(policy, 7, ["1+", png(seed), "=?"]) for seed in (0, 4))
    assert first.token_ids == other.token_ids
    rows = [ResponsePrefix(p, 0, p.token_ids, 0, 12) for p in (first, other, first)]
    found = GroupedSampler().extend(policy, rows, sampling=SAMPLING, draws=DRAWS)
    assert max(gap(policy, [rollout]) for rollout in found) < 2e-5  # one id each: they do not share a prompt
    assert not torch.equal(found[0].logprobs[:1], found[1].logprobs[:1])
    assert torch.equal(found[0].token_ids, found[2].token_ids)


def test_a_response_in_two_pieces_equals_the_response_in_one() -> None:
    policy = policy_of("tiny-qwen3-vl", True)
    prompt = prompts_of(policy)[1]
    (whole,) = GroupedSampler().extend(
        policy, [ResponsePrefix(prompt, 0, prompt.token_ids, 0, 8)], sampling=SAMPLING, draws=DRAWS
    )
    assert whole.length == 8
    for source in (GroupedSampler(), TransformersGenerate()):
        begun = tuple(whole.token_ids[:3].tolist())
        row = ResponsePrefix(prompt, 0, (*prompt.token_ids, *begun), 3, 5, begun)
        (rest,) = source.extend(policy, [row], sampling=SAMPLING, draws=DRAWS)
        assert torch.equal(rest.token_ids, whole.token_ids[3:])


def test_responses_to_pictures_go_on_in_the_next_iteration_and_after_a_resume() -> None:
    """Their pieces are the whole, drawn and scored as if nothing had been cut; a checkpoint holds no picture."""
    policy = policy_of("tiny-qwen3-vl", True)
    prompts = {p.id: p for p in prompts_of(policy)}
    sampling = SamplingParams(12, 1.0, stop_token_ids=(1, 5))
    whole = GroupedSampler().generate(policy, list(prompts.values()), group_size=2, sampling=sampling, draws=DRAWS)

    def partial() -> PartialRollouts:
        return PartialRollouts(
            GroupedSampler(compact_at=1e-9), lambda place: prompts[place % 4], in_flight=4, groups=1, max_carry=9
        )

    rollouts = partial()
    done, cut = [], 0
    for _ in range(4):
        done += rollouts.generate(policy, group_size=2, sampling=sampling, draws=DRAWS)
        cut += sum(0 < r.length < 12 for g in rollouts.in_flight for r in g.open)
        state = rollouts.state_dict()
        rollouts = partial()
        rollouts.load_state_dict(state, lambda number: prompts[number])
    assert cut > 0
    seeing = [group for group in done if group[0].prompt.media]
    assert len(seeing) >= 2
    for group in done:
        expected = whole[group[0].prompt.id]
        assert [r.token_ids.tolist() for r in group] == [r.token_ids.tolist() for r in expected]
        assert gap(policy, group) < 2e-5


@every_source
def test_placeholders_are_never_sampled_though_the_model_wants_nothing_else(kind: str) -> None:
    policy = policy_of("tiny-qwen3-vl", True)
    assert policy.image_processor is not None
    with torch.no_grad():
        policy.model.lm_head.weight.zero_()
        policy.model.lm_head.weight[list(policy.image_processor.unsaid)] = (
            5 * policy.model.model.language_model.norm.weight.sign()
        )
    rollouts = sampled(SOURCES[kind](), policy, prompts_of(policy))
    said = {token for r in rollouts for token in r.token_ids.tolist()}
    assert not said & set(policy.image_processor.unsaid)
    assert len(said) > 20
    assert gap(policy, rollouts) < 2e-5


def test_a_picture_is_seen_once_for_all_responses() -> None:
    policy = policy_of("tiny-qwen3-vl", True)
    prompt = prompts_of(policy)[0]
    seen: list[int] = []
    policy.model.model.visual.register_forward_hook(lambda m, args, out: seen.append(len(out.pooler_output)))
    for kind in ("grouped", "modules", "generate"):
        seen.clear()
        SOURCES[kind]().generate(policy, [prompt], group_size=4, sampling=SAMPLING, draws=DRAWS)
        assert seen == [prompt.media[0].tokens]
