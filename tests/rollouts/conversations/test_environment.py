"""Conversations as rollouts: the definition, one token at a time; masks; limits; failures cost what they must."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.randomness import Purpose, stream
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.objectives import GSPO, DrGRPO
from gspo_lightning.policy.packing.batches import cut_micro_batches, make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import (
    Draws,
    EnvironmentRollouts,
    GroupedSampler,
    Recorded,
    ResponsePrefix,
    RolloutSource,
    TransformersGenerate,
    VLLMServer,
)
from gspo_lightning.rollouts.environments import Environment
from tests.rollouts.toy_server import ToyServer
from tests.support import model_families

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
STOPS = (1, 5, 9, 20, 22, 30)
SAMPLING = SamplingParams(24, stop_token_ids=STOPS)
GROUP = 3


class Echo(Environment):
    """Answers with the last character it heard and a digit of its own; ends after ``turns``."""

    def __init__(self, turns: int = 3, opens: str = "") -> None:
        self.turns, self.opens = turns, opens

    async def reset(self, prompt: Prompt) -> list[dict[str, str]]:
        self.heard = 0
        return [{"role": "user", "content": f"{prompt.text}{self.opens}"}] if self.opens else []

    async def step(self, completion: str) -> Any:
        self.heard += 1
        reply = f"({completion[-1:]}{(self.seed + self.heard) % 10})"
        return [{"role": "user", "content": reply}], 0.25 * len(completion), self.heard == self.turns


def flat(groups: Sequence[Sequence[Rollout]]) -> list[Rollout]:
    return [r for group in groups for r in group]


def talk(
    policy: Policy,
    prompts: Sequence[Prompt],
    environment: Environment,
    sampling: SamplingParams = SAMPLING,
    **more: Any,
) -> list[Rollout]:
    source = EnvironmentRollouts(environment, **more)
    try:
        return flat(source.generate(policy, prompts, group_size=GROUP, sampling=sampling, draws=DRAWS, version=4))
    finally:
        source.close()


def one_by_one(policy: Policy, prompt: Prompt, k: int, turns: int) -> tuple[list[int], list[bool]]:
    """The definition: a full forward per token over everything said so far; draws count the policy's tokens."""
    environment = Echo(turns)
    environment.seed = stream(DRAWS.base, prompt.id, k)
    asyncio.run(environment.reset(prompt))
    ids: list[int] = []
    mask: list[bool] = []
    done = False
    while not done:
        said: list[int] = []
        while not said or said[-1] not in STOPS:
            if len(ids) == SAMPLING.max_response_tokens:
                return ids, mask
            with torch.no_grad():
                row = torch.tensor([[*prompt.token_ids, *ids]])
                logits = policy.model(row, use_cache=False).logits[0, -1].double()
            cumulative = torch.softmax(logits, -1).cumsum(0)
            uniform = DRAWS.uniform(torch.tensor([prompt.id]), torch.tensor([k]), sum(mask))
            said.append(int((cumulative <= uniform * cumulative[-1]).sum()))
            ids, mask = [*ids, said[-1]], [*mask, True]
        messages, _, done = asyncio.run(environment.step(policy.tokenizer.decode(said, skip_special_tokens=True)))
        reply = policy.tokenizer(messages[0]["content"])["input_ids"]
        if done or len(ids) + len(reply) >= SAMPLING.max_response_tokens:
            return ids, mask
        ids, mask = ids + reply, mask + [False] * len(reply)
    return ids, mask


@pytest.fixture(scope="module")
def expected() -> dict[int, tuple[list[int], list[bool]]]:
    """What the definition gives, once."""
    return {}


@pytest.mark.thorough("sampler")
@pytest.mark.parametrize(
    ("source", "layout"),
    [
        (GroupedSampler(), "packed"),
        (GroupedSampler(max_rows=2, compact_at=1.0), "packed"),
        (GroupedSampler(), "padded"),
        (TransformersGenerate(batch_size=4), "packed"),
    ],
    ids=["sampler", "sampler-two-rows", "sampler-padded", "generate"],
)
def test_conversations_are_what_the_definition_says(
    source: RolloutSource, layout: str, prompts: list[Prompt], expected: dict[int, tuple[list[int], list[bool]]]
) -> None:
    policy = model_families.build_policy("qwen3", 0, 3.0)
    policy.packed = layout == "packed"
    rollouts = talk(policy, prompts, Echo(), source=source)
    if not expected:
        pairs = [(p, k) for p in prompts for k in range(GROUP)]
        expected |= {i: one_by_one(policy, p, k, 3) for i, (p, k) in enumerate(pairs)}
    wanted = list(expected.values())
    assert [r.token_ids.tolist() for r in rollouts] == [ids for ids, _ in wanted]
    assert [r.response_mask.tolist() for r in rollouts] == [mask for _, mask in wanted]
    assert {r.finish_reason for r in rollouts} == {FinishReason.DONE, FinishReason.LENGTH}  # both happen
    assert len({len(r.turn_ends) for r in rollouts}) > 1
    check_books(rollouts, policy)


def check_books(rollouts: list[Rollout], policy: Policy) -> None:
    for r in rollouts:
        assert len(r.token_ids) <= SAMPLING.max_response_tokens
        assert r.response_mask[-1]  # nothing follows the policy's last word
        assert len(r.turn_ends) == len(r.turn_rewards)
        assert all(r.response_mask[end - 1] for end in r.turn_ends)
        assert r.turn_ends[-1] == len(r.token_ids)
        assert r.policy_version == 4
        own = [m["content"] for m in r.messages if m["role"] == "assistant"]
        assert r.text == "\n".join(own)
        assert len(own) == len(r.turn_ends)
        told = own if not r.truncated or r.messages[-1]["role"] != "assistant" else own[:-1]
        assert list(r.turn_rewards) == [0.25 * len(text) for text in told] + [0.0] * (len(own) - len(told))
        r.reward = sum(r.turn_rewards)
    for part in (make_micro_batch(rollouts), *cut_micro_batches(rollouts, 200, policy.packed)):
        with torch.no_grad():
            logprobs, _ = policy(part)
        assert part.behaviour_logprobs is not None
        difference = (logprobs - part.behaviour_logprobs).abs()
        assert float(difference[part.response_mask].max()) < 1e-5


@pytest.mark.thorough
def test_a_server_speaks_for_the_policy(policy: Policy, prompts: list[Prompt]) -> None:
    with ToyServer() as toy, closing(EnvironmentRollouts(Echo(), VLLMServer([toy.url], exact_seeds=True))) as source:
        source.open(40)
        assert source.for_evaluation() is source
        source.sync_weights(policy, 4)
        groups = source.generate(policy, prompts, group_size=GROUP, sampling=SAMPLING, draws=DRAWS, version=4)
        again = source.generate(policy, prompts, group_size=GROUP, sampling=SAMPLING, draws=DRAWS, version=4)
    check_books(flat(groups), policy)
    assert {len(r.turn_ends) for r in flat(groups)} > {1}
    assert (
        len({tuple(r.token_ids.tolist()) for r in groups[0]}) == GROUP
    )  # conversations of a group have their own draws
    assert [r.token_ids.tolist() for r in flat(groups)] == [r.token_ids.tolist() for r in flat(again)]
    assert toy.loads == 1


class Other(GroupedSampler):
    """Has held-out prompts answered by somebody else, and says what it is told."""

    def __init__(self, evaluation: RolloutSource, told: list[str]) -> None:
        super().__init__()
        self.evaluation, self.told = evaluation, told

    def open(self, longest: int) -> None:
        self.told.append(f"open {longest}")

    def for_evaluation(self) -> RolloutSource:
        return self.evaluation

    def sync_weights(self, policy: Policy, version: int) -> None:
        self.told.append(f"sync {version}")

    def close(self) -> None:
        self.told.append("close")


def test_the_source_is_told_everything_and_may_leave_evaluation_to_another(
    policy: Policy, prompts: list[Prompt]
) -> None:
    told: list[str] = []
    greedy = GroupedSampler()
    source = EnvironmentRollouts(Echo(), Other(greedy, told))
    source.open(33)
    source.sync_weights(policy, 2)
    held_out = source.for_evaluation()
    assert isinstance(held_out, EnvironmentRollouts)
    assert held_out.source is greedy
    assert isinstance(source.source, Other)
    groups = held_out.generate(policy, prompts, group_size=GROUP, sampling=SAMPLING, draws=DRAWS)
    assert [r.token_ids.tolist() for r in flat(groups)] == [r.token_ids.tolist() for r in talk(policy, prompts, Echo())]
    source.close()
    assert told == ["open 33", "sync 2", "close"]


def test_a_source_that_cannot_go_on_cannot_talk() -> None:
    for source in (Recorded("rollouts"), EnvironmentRollouts(Echo())):
        with pytest.raises(UserError, match=r"EnvironmentRollouts\.source.*cannot continue a partial response"):
            EnvironmentRollouts(Echo(), source)


@pytest.mark.thorough
def test_a_conversation_does_not_depend_on_who_else_talks(policy: Policy, prompts: list[Prompt]) -> None:
    together = talk(policy, prompts, Echo())
    keys = [(r.prompt.id, r.sample) for r in together]
    everything = {key: (r.token_ids.tolist(), r.turn_rewards) for key, r in zip(keys, together, strict=True)}
    alone = [r for p in reversed(prompts) for r in talk(policy, [p], Echo())]
    for r in alone:
        assert everything[r.prompt.id, r.sample] == (r.token_ids.tolist(), r.turn_rewards)


class Last(Echo):
    """In conversations about ``prompt``: answers only when all others are over."""

    over: list[int] = []  # noqa: RUF012 (shared on purpose)

    def __init__(self, prompt: int, others: int) -> None:
        super().__init__()
        self.prompt, self.others = prompt, others

    async def reset(self, prompt: Prompt) -> list[dict[str, str]]:
        self.waits = prompt.id == self.prompt
        return await super().reset(prompt)

    async def step(self, completion: str) -> Any:
        while self.waits and len(self.over) < self.others:
            await asyncio.sleep(0.01)
        return await super().step(completion)

    def close(self) -> None:
        """Only now the environment knows that a conversation ended early."""


def test_a_conversation_does_not_wait_for_the_environments_of_others(policy: Policy, prompts: list[Prompt]) -> None:
    """In rounds the environment of the first group would wait for ever: its answer comes when the others are over."""
    usual = talk(policy, prompts, Echo())
    Last.over.clear()
    source = EnvironmentRollouts(Last(prompts[0].id, len(prompts) - 1), deadline_s=20.0)
    source.on_group = lambda group: Last.over.append(group[0].prompt.id)
    with closing(source):
        found = flat(source.generate(policy, prompts, group_size=GROUP, sampling=SAMPLING, draws=DRAWS, version=4))
    assert Last.over[-1] == prompts[0].id
    for a, b in zip(usual, found, strict=True):
        assert (a.token_ids.tolist(), a.turn_rewards, a.lost) == (b.token_ids.tolist(), b.turn_rewards, b.lost)


class NotingTurns(GroupedSampler):
    """Remembers how every piece ended, and calls each of its batches other weights."""

    def __init__(self, changes: bool = False) -> None:
        super().__init__()
        self.ends: list[FinishReason] = []
        self.changes, self.batches = changes, 0

    def extend(self, policy: Policy, beginnings: Sequence[ResponsePrefix], **options: Any) -> list[Rollout]:
        options["version"] += self.batches * self.changes
        self.batches += 1
        pieces = super().extend(policy, beginnings, **options)
        self.ends += [piece.finish_reason for piece in pieces]
        return pieces


@pytest.mark.thorough
def test_a_long_turn_is_cut_for_the_others_and_keeps_its_tokens(policy: Policy, prompts: list[Prompt]) -> None:
    source, rare = NotingTurns(changes=True), SamplingParams(60, stop_token_ids=(1, 5))
    together = talk(policy, prompts, Echo(), rare, source=source)
    assert FinishReason.CUT in source.ends
    assert FinishReason.CUT not in {r.finish_reason for r in together}
    alone = [r for p in prompts for r in talk(policy, [p], Echo(), rare, source=GroupedSampler(max_rows=1))]
    for a, b in zip(together, alone, strict=True):
        assert (a.token_ids.tolist(), a.text, a.turn_ends) == (b.token_ids.tolist(), b.text, b.turn_ends)
        assert a.versions is not None or len(a.turn_ends) == 1
        if a.versions is not None:
            ages = a.versions.tolist()
            assert len(ages) == len(a.token_ids)
            assert ages == sorted(ages)


def test_groups_are_announced_when_they_are_over(policy: Policy, prompts: list[Prompt]) -> None:
    source, seen, counts = EnvironmentRollouts(Echo()), [], []
    source.on_group = seen.append
    groups = source.generate(
        policy, prompts, group_size=GROUP, sampling=SAMPLING, draws=DRAWS, progress=lambda *p: counts.append(p)
    )
    assert sorted(id(g) for g in seen) == sorted(id(g) for g in groups)
    assert counts[-1] == (len(prompts) * GROUP, len(prompts) * GROUP)
    source.close()


def test_an_opening_takes_the_place_of_the_prompt(policy: Policy, prompts: list[Prompt]) -> None:
    rollouts = talk(policy, prompts[:1], Echo(opens="1+1"))
    assert {r.prompt.token_ids for r in rollouts} == {tuple(policy.tokenizer("7+5*3-4:1+1")["input_ids"])}
    assert {r.prompt.text for r in rollouts} == {"7+5*3-4:"}
    assert max(len(r.token_ids) for r in rollouts) <= SAMPLING.max_response_tokens - 3
    with pytest.raises(UserError, match="leaves no room"):
        talk(policy, prompts[:1], Echo(opens="1" * 24))


def test_limits_end_a_conversation_and_say_which(policy: Policy, prompts: list[Prompt]) -> None:
    rollouts = talk(policy, prompts, Echo(99), SamplingParams(200, stop_token_ids=tuple(range(1, 20))), max_turns=2)
    assert {r.finish_reason for r in rollouts} == {FinishReason.TURNS}
    assert all(r.truncated and len(r.turn_ends) == 2 for r in rollouts)
    assert all(r.turn_rewards[1] == len(r.messages[2]["content"]) / 4 for r in rollouts)  # it was told all the same
    cut = talk(policy, prompts, Echo(99), SamplingParams(1, stop_token_ids=(1,)))
    assert all(r.length == 1 and r.turn_ends == (1,) for r in cut)
    stopped = talk(policy, prompts, Echo(99), SamplingParams(6, stop_token_ids=tuple(range(40))))  # no room to go on
    assert all(r.finish_reason is FinishReason.LENGTH and len(r.token_ids) <= 6 for r in stopped)
    assert {len(r.turn_ends) for r in stopped} == {2}


def test_environment_tokens_never_reach_the_loss(policy: Policy, prompts: list[Prompt]) -> None:
    """Loss and gradient are those of the policy's own tokens alone, whatever stands at the others."""
    rollouts = talk(policy, prompts, Echo())
    for i, r in enumerate(rollouts):
        r.reward, r.advantage = 0.0, (-1.0) ** i * (i + 1)
    batch = make_micro_batch(rollouts)
    assert (~batch.response_mask & (torch.arange(batch.response_mask.shape[1]) < batch.response_lengths[:, None])).any()
    old = batch.behaviour_logprobs
    assert old is not None
    new = policy(batch)[0].detach().requires_grad_()
    for objective in (GSPO(), DrGRPO(max_response_tokens=64)):
        out = objective(new, old, batch.advantages, batch.response_mask)
        (gradient,) = torch.autograd.grad(out.loss, new)
        assert not gradient[~batch.response_mask].any()
        foreign = torch.where(batch.response_mask, new.detach(), 1e9 * torch.randn_like(new)).requires_grad_()
        again = objective(foreign, torch.where(batch.response_mask, old, -7.0), batch.advantages, batch.response_mask)
        assert torch.equal(again.loss, out.loss)
    # GSPO by hand: the mean log-ratio is over the policy's tokens
    shifted = torch.where(batch.response_mask, old + 0.01 * torch.arange(old.shape[1]), old)
    ratio = GSPO()(shifted, old, batch.advantages, batch.response_mask).ratio
    means = torch.stack([0.01 * r.response_mask.nonzero().float().mean() for r in rollouts])
    torch.testing.assert_close(ratio, means.exp(), rtol=1e-5, atol=0)


# failures ----------------------------------------------------------------------------------------------------------


class Fragile(Echo):
    """Fails in its second turn where a conversation is about ``prompt``, ``times`` times."""

    def __init__(self, prompt: int, times: int, failure: str = "raise") -> None:
        super().__init__()
        self.prompt, self.failure, self.left = prompt, failure, [times]

    def fresh(self) -> Fragile:
        other = Fragile(self.prompt, 0, self.failure)
        other.left = self.left
        return other

    async def reset(self, prompt: Prompt) -> list[dict[str, str]]:
        self.breaks = prompt.id == self.prompt
        return await super().reset(prompt)

    async def step(self, completion: str) -> Any:
        answer = await super().step(completion)
        if self.breaks and self.heard == 2 and self.left[0] > 0:
            self.left[0] -= 1
            if self.failure == "hang":
                await asyncio.sleep(3600)
            raise ConnectionError("the server has gone")
        return answer


@pytest.mark.parametrize("failure", ["raise", "hang"])
def test_a_failure_that_passes_changes_nothing(failure: str, policy: Policy, prompts: list[Prompt]) -> None:
    usual = talk(policy, prompts, Echo())
    disturbed = talk(policy, prompts, Fragile(prompts[1].id, 2, failure), deadline_s=0.3)
    for a, b in zip(usual, disturbed, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert (a.turn_rewards, a.messages, a.lost) == (b.turn_rewards, b.messages, "")


@pytest.mark.parametrize("failure", ["raise", "hang"])
def test_a_failure_that_stays_makes_its_conversation_missing(
    failure: str, policy: Policy, prompts: list[Prompt]
) -> None:
    usual = talk(policy, prompts, Echo())
    rollouts = talk(policy, prompts, Fragile(prompts[1].id, 99, failure), deadline_s=0.3)
    for a, b in zip(usual, rollouts, strict=True):
        broken = b.prompt.id == prompts[1].id and len(a.turn_ends) > 1 and not (len(a.turn_ends) == 2 and a.truncated)
        assert bool(b.lost) is broken
        if not broken:
            assert a.token_ids.tolist() == b.token_ids.tolist()
        else:
            assert b.finish_reason is FinishReason.LOST
    assert any(r.lost for r in rollouts)
    for r in rollouts:
        r.reward = None if r.lost else 0.0
    mask = make_micro_batch(rollouts).response_mask
    assert [bool(row.any()) for row in mask] == [not r.lost for r in rollouts]


class Nonsense(Echo):
    """Counts how often it was asked for what it does not know."""

    asked: list[str] = []  # noqa: RUF012 (shared on purpose)

    async def step(self, completion: str) -> Any:
        self.asked.append(completion)
        return "?"


def test_an_answer_of_a_wrong_type_stops_at_once(policy: Policy, prompts: list[Prompt]) -> None:
    with pytest.raises(UserError, match=r"in Nonsense\.step: returned '\?'; it must be \(messages, reward, done\)"):
        talk(policy, prompts[:1], Nonsense())
    assert len(Nonsense.asked) <= GROUP  # once in each conversation


class Refusing(Echo):
    async def reset(self, prompt: Prompt) -> list[dict[str, str]]:
        raise ConnectionError("nobody is there")


def test_more_failures_than_allowed_stop_the_run(policy: Policy, prompts: list[Prompt]) -> None:
    with pytest.raises(
        InfrastructureError, match=r"5 of 12 conversations were lost; Refusing\.reset raised Connection"
    ):
        talk(policy, prompts, Refusing())
    few = talk(policy, prompts[:1], Refusing())
    assert all(r.lost and len(r.token_ids) == 1 and not r.response_mask.any() for r in few)
    assert all(r.logprobs is not None for r in few)  # one that is missing does not take the others' away


def test_environments_are_let_go_also_after_a_failure(policy: Policy, prompts: list[Prompt]) -> None:
    class Held(Fragile):
        held: list[int] = []  # noqa: RUF012 (shared on purpose)

        def fresh(self) -> Held:
            other = Held(self.prompt, 0)
            other.left = self.left
            Held.held.append(id(other))
            return other

        def close(self) -> None:
            Held.held.remove(id(self))

    talk(policy, prompts, Held(prompts[0].id, 1))
    assert Held.held == []


def test_openings_that_differ_within_a_group_are_refused(policy: Policy, prompts: list[Prompt]) -> None:
    class Random(Echo):
        async def reset(self, prompt: Prompt) -> list[dict[str, str]]:
            await super().reset(prompt)
            return [{"role": "user", "content": str(self.seed % 10)}]

    with pytest.raises(UserError, match="opened the conversations about prompt 10 differently"):
        talk(policy, prompts, Random())


def test_words_that_the_policy_cannot_read_are_refused(policy: Policy, prompts: list[Prompt]) -> None:
    with pytest.raises(UserError, match="does not know every character"):
        talk(policy, prompts, Echo(opens="Hello"))


@pytest.mark.parametrize(
    "settings", [{"max_turns": 0}, {"deadline_s": 0.0}, {"retries": -1}, {"max_missing_rate": 1.5}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        EnvironmentRollouts(Echo(), **settings)
