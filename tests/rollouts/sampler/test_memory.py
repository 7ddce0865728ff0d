"""The memory of rows: what they take, how many fit, and what happens when it runs out nevertheless."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.policy.attention import GroupCache, cache, closed_up
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import routers_of
from gspo_lightning.rollouts import Draws, GroupedSampler, ResponsePrefix
from gspo_lightning.rollouts.sampler import admission_queue, memory
from gspo_lightning.rollouts.sampler import sampler as samplers
from gspo_lightning.rollouts.sampler.admission_queue import Prefill
from gspo_lightning.rollouts.sampler.decode_batch import DecodeBatch
from gspo_lightning.rollouts.sampler.decoding import Decoder, PaddedDecoder, SharedDecoder
from gspo_lightning.rollouts.sampler.memory import Costs
from tests.support import model_families

DRAWS = Draws.of(3, Purpose.TRAIN_SAMPLING, 1)
SAMPLING = SamplingParams(40, stop_token_ids=(1, 5, 9))
GROUP = 4


def build(family: str) -> Policy:
    name, _, layout = family.partition(" ")
    policy = model_families.build_policy(name, 0, 3.0)
    policy.packed = name not in ("gemma2", "qwen3-next") and layout != "padded"
    return policy


def prompts_of(policy: Policy, count: int = 6) -> list[Prompt]:
    texts = [f"{'1+' * (i % 3)}{i}+5:" for i in range(count)]
    return [Prompt(i, text, tuple(policy.tokenizer(text)["input_ids"])) for i, text in enumerate(texts)]


def answers(policy: Policy, sampler: GroupedSampler) -> list[Rollout]:
    groups = sampler.generate(policy, prompts_of(policy), group_size=GROUP, sampling=SAMPLING, draws=DRAWS)
    assert [[(r.prompt.id, r.sample) for r in group] for group in groups] == [
        [(i, k) for k in range(GROUP)] for i in range(6)
    ]
    return [rollout for group in groups for rollout in group]


def assert_equal(found: Sequence[Rollout], wanted: Sequence[Rollout], rounding: float = 1e-5) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.token_ids.tolist() == theirs.token_ids.tolist()
        assert mine.finish_reason is theirs.finish_reason
        assert mine.logprobs is not None
        assert theirs.logprobs is not None
        torch.testing.assert_close(mine.logprobs, theirs.logprobs, rtol=0, atol=rounding)
        assert (mine.routes is None) == (theirs.routes is None)
        if mine.routes is not None:
            assert torch.equal(mine.routes, theirs.routes)


def failing(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, fails: Callable[[int, int], bool]) -> list[int]:
    """Have an allocation of an exabyte fail in a method's call number n, for so many rows; returns what each had."""
    original, seen = getattr(kind, method), list[int]()

    def limited(self: Decoder, first: Tensor | Prefill, *rest: object) -> Tensor:
        rows = sum(first.rows) if isinstance(first, Prefill) else len(first)
        seen.append(rows)
        if fails(len(seen), rows):
            torch.empty(1 << 60)
        result: Tensor = original(self, first, *rest)
        return result

    monkeypatch.setattr(kind, method, limited)
    return seen


# running out ---------------------------------------------------------------------------------------------------------

WHERE = {
    "a step": ("step", lambda n, rows: n == 7),
    "steps of many rows": ("step", lambda n, rows: rows > 3),
    "a prefill": ("add", lambda n, rows: rows > 9),
    "compaction": ("keep", lambda n, rows: n in (1, 4)),
}


CASES = [
    *(("llama", where) for where in WHERE), ("qwen3 padded", "steps of many rows"), ("qwen3-next", "compaction"),
    *(pytest.param(f, w, marks=pytest.mark.long) for f in ("qwen3 padded", "qwen3-next") for w in WHERE),
]  # fmt: skip


@pytest.mark.thorough("qwen3 padded-steps of many rows0", "qwen3-next-compaction0")
@pytest.mark.parametrize(("family", "where"), CASES)
def test_rows_go_on_from_their_tokens(
    family: str, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = build(family)
    wanted = answers(policy, GroupedSampler())
    method, fails = WHERE[where]
    failing(monkeypatch, SharedDecoder if family == "llama" else PaddedDecoder, method, fails)
    sampler = GroupedSampler()
    rounding = 1e-4 if family == "qwen3-next" else 1e-5  # its states come in chunks in a prefill, then token by token
    with caplog.at_level(logging.WARNING):
        assert_equal(answers(policy, sampler), wanted, rounding)
    said = [r.message for r in caplog.records if "out of memory" in r.message]
    assert said
    assert "responses go on from their tokens" in said[0]
    if where == "steps of many rows":
        caplog.clear()
        assert_equal(answers(policy, sampler), wanted, rounding)
        assert not caplog.records  # remembered


@pytest.mark.thorough
def test_the_limit_recovers_by_an_eighth_with_every_call_that_it_has_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 rows with a prompt each: at first 8 are too many for a step, from the third call on no number is."""
    policy, sampling = build("llama"), SamplingParams(8, stop_token_ids=())
    policy.model.generation_config.eos_token_id = None
    rows = [ResponsePrefix(p, 0, p.token_ids, 0, 8) for p in prompts_of(policy, 24)]

    def ask(sampler: GroupedSampler, count: int) -> list[Rollout]:
        return sampler.extend(policy, rows[:count], sampling=sampling, draws=DRAWS)

    wanted, sampler, call = ask(GroupedSampler(), 24), GroupedSampler(decode="model"), 0
    seen = failing(monkeypatch, SharedDecoder, "step", lambda n, rows: call < 2 and rows > 7)
    most = []
    for call in range(13):
        seen.clear()
        assert_equal(ask(sampler, 24), wanted)
        most.append(max(seen))
        if call == 4:
            ask(sampler, 5)  # fewer than the limit: they do not show that more would fit
    assert most == [24, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18]  # of the first call 24 fail, then 12


def test_nothing_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 rows of 40 tokens; memory runs out at token 30: what is decoded after that is what was missing."""
    policy = build("llama")
    sampling = SamplingParams(40, stop_token_ids=())
    policy.model.generation_config.eos_token_id = None
    options = {"group_size": GROUP, "sampling": sampling, "draws": DRAWS}
    wanted = GroupedSampler().generate(policy, prompts_of(policy), **options)
    seen = failing(monkeypatch, SharedDecoder, "step", lambda n, rows: n == 30)
    found = GroupedSampler().generate(policy, prompts_of(policy), **options)
    assert_equal([r for g in found for r in g], [r for g in wanted for r in g])
    assert all(len(r.token_ids) == 40 for g in found for r in g)
    assert seen == [24] * 30 + [12] * 9 * 2  # 30 drawn before it, one by each prefill, and nine more


@pytest.mark.parametrize("at", [3, 8])
def test_a_token_whose_end_was_not_seen_is_drawn_again(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out between the note of a token and the look at its end."""
    policy = build("llama")
    wanted = answers(policy, GroupedSampler())
    original, calls = samplers.ResponseBuffer.end, [0]

    def end(rows: object, stopped: Tensor) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        original(rows, stopped)  # type: ignore[arg-type]

    monkeypatch.setattr(samplers.ResponseBuffer, "end", staticmethod(end))
    assert_equal(answers(policy, GroupedSampler()), wanted)


def test_partial_responses_go_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build("qwen3")
    beginnings = [
        ResponsePrefix(p, k, (*p.token_ids, *range(3, 3 + k)), k, 20 + k, tuple(range(3, 3 + k)))
        for p in prompts_of(policy) for k in range(3)
    ]  # fmt: skip
    wanted = GroupedSampler().extend(policy, beginnings, sampling=SAMPLING, draws=DRAWS)
    failing(monkeypatch, SharedDecoder, "step", lambda n, rows: n in (4, 9))
    assert_equal(GroupedSampler().extend(policy, beginnings, sampling=SAMPLING, draws=DRAWS), wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["", " padded"])
def test_routes_are_those_of_an_undisturbed_run(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build(f"qwen3-moe{layout}")
    policy.routing = routers_of(policy.backbone, "R3", True)
    wanted = answers(policy, GroupedSampler())
    assert wanted[0].routes is not None
    kind = PaddedDecoder if layout else SharedDecoder
    failing(monkeypatch, kind, "step", lambda n, rows: n == 3 or rows > 10)
    assert_equal(answers(policy, GroupedSampler()), wanted)


def test_one_row_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build("llama")
    seen = failing(monkeypatch, SharedDecoder, "step", lambda n, rows: True)
    with pytest.raises(torch.OutOfMemoryError):
        answers(policy, sampler := GroupedSampler(decode="model"))
    assert seen[0] == 24
    assert all(more >= 2 * fewer for more, fewer in itertools.pairwise(seen))
    assert seen[-1] == 1
    assert sampler.reduce_batch() == 0


def test_groups_are_handed_out_once_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build("llama")
    seen: list[int] = []
    sampler = GroupedSampler(compact_at=1e-9)
    sampler.on_group = lambda group: seen.append(group[0].prompt.id)
    progress: list[tuple[int, int]] = []
    failing(monkeypatch, SharedDecoder, "step", lambda n, rows: n in (2, 5, 9, 20))
    sampler.generate(
        policy, prompts_of(policy), group_size=GROUP, sampling=SAMPLING, draws=DRAWS,
        progress=lambda *p: progress.append(p),
    )  # fmt: skip
    assert sorted(seen) == list(range(6))
    assert progress[-1] == (24, 24)
    assert [a for a, _ in progress] == sorted(a for a, _ in progress)


# free memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough("1-qwen3 padded")
@pytest.mark.parametrize("family", ["llama", "qwen3 padded"])
@pytest.mark.parametrize("rows", [1, 3, 10])
def test_waves_are_chosen_from_free_memory_and_change_nothing(
    family: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = build(family)
    wanted = answers(policy, GroupedSampler())
    costs = Costs.of(policy, policy.packed, max(len(p.token_ids) for p in prompts_of(policy)))
    size = rows * (costs.row(40) + costs.context(8))
    monkeypatch.setattr(memory, "free_memory", lambda device: int(size / memory.SHARES["cpu"]) + 1)
    most: list[int] = []
    join = DecodeBatch.join

    def joining(self: DecodeBatch, blocks: Sequence[admission_queue.Block]) -> None:
        join(self, blocks)
        most.append(len(self))

    monkeypatch.setattr(DecodeBatch, "join", joining)
    assert_equal(answers(policy, GroupedSampler()), wanted)
    assert (rows if rows < GROUP else rows - GROUP) < max(most) + 1 <= rows + 3  # whole groups, which share a context
    assert len(most) > 1


def test_costs_by_hand() -> None:
    """Two layers with 2 heads of 8 numbers: 2 * 2 * 8 * 4 bytes of a token in each."""
    policy = build("llama")
    config = policy.model.config
    layer = 2 * config.num_key_value_heads * config.head_dim * 4
    token = layer * (config.num_hidden_layers + 1)  # and a copy of one layer that grows
    logits = 4 * 4 * config.vocab_size
    shared = Costs.of(policy, True, 30)
    assert (shared.context(30), shared.row(100)) == (30 * token, 128 * token + logits)  # pages of 32 tokens
    padded = Costs.of(policy, False, 30)
    assert (padded.context(30), padded.row(64)) == (0, (30 + 72) * layer * config.num_hidden_layers + logits)


def test_free_memory_of_a_cpu_is_what_the_machine_says() -> None:
    free = memory.free_memory(torch.device("cpu"))
    assert free is not None
    assert 1 << 20 < free < 1 << 50
    assert memory.budget(torch.device("meta")) is None


# places --------------------------------------------------------------------------------------------------------------

HEADS, KEYS, SIZE = 4, 2, 8


class Reference:
    """Every row for itself: keys and values in lists, attention by the formula."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.rows: list[tuple[Tensor, Tensor]] = []

    def draw(self, count: int, heads: int) -> Tensor:
        return torch.randn(count, heads, SIZE, generator=self.generator)

    def attend(self, row: int, query: Tensor) -> Tensor:
        keys, values = (x.repeat_interleave(HEADS // KEYS, dim=1) for x in self.rows[row])
        weights = torch.einsum("hd,nhd->hn", query, keys).softmax(-1)
        return torch.einsum("hn,nhd->hd", weights, values)


@pytest.mark.parametrize("token_bytes", [0, 1 << 30])
def test_rows_that_come_and_go_see_what_they_wrote(token_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PADDING", 0)
    held, reference = GroupCache(torch.device("cpu"), token_bytes), Reference(0)
    most = 0
    for step in range(120):
        if step in (0, 7, 40, 41, 90):  # others join
            widths, rows = ([3, 50, 4], [2, 1, 3]) if step % 2 == 0 else ([9], [2])
            held.enter(widths, rows)
            key, value = reference.draw(sum(widths), KEYS), reference.draw(sum(widths), KEYS)
            held.attend(0, reference.draw(sum(widths), HEADS), key, value, 1.0)
            start = 0
            for width, count in zip(widths, rows, strict=True):
                part = slice(start, start + width)
                reference.rows += [(key[part], value[part])] * count
                start += width
        if step in (20, 40, 70, 95, 110):  # some end
            alive = torch.tensor([(i + step) % 3 != 0 for i in range(len(reference.rows))])
            order = closed_up(alive) if step != 70 else alive.nonzero().squeeze(1).flip(0)
            held.keep(order)
            reference.rows = [reference.rows[i] for i in order.tolist()]
        held.write()
        count = len(reference.rows)
        assert len(held) == count
        query, key, value = reference.draw(count, HEADS), reference.draw(count, KEYS), reference.draw(count, KEYS)
        found = held.attend(0, query, key, value, 1.0)
        for i in range(count):
            before = reference.rows[i]
            reference.rows[i] = torch.cat([before[0], key[i : i + 1]]), torch.cat([before[1], value[i : i + 1]])
            torch.testing.assert_close(found[i], reference.attend(i, query[i]), rtol=1e-5, atol=1e-5)
        held.advance()
        most = max(most, len(held.parts))
    assert (most > 1) == (token_bytes > 0)


def test_many_short_rows_beside_a_long_one_cost_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of 600 tokens, and beside it 15 places for rows of 50 that follow each other."""
    monkeypatch.setattr(cache, "PADDING", 1 << 16)
    token = 2 * KEYS * SIZE * 4
    held, reference = GroupCache(torch.device("cpu"), token), Reference(1)
    peak, ages = 0, []
    for step in range(600):
        if step % 50 == 0:
            if step:
                held.keep(torch.tensor([0]))
            count = 15 if step else 16
            held.enter([4] * count, [1] * count)
            held.attend(0, *(reference.draw(4 * count, heads) for heads in (HEADS, KEYS, KEYS)), 1.0)
            ages = [step, *[0] * 15]
        held.write()
        held.attend(0, *(reference.draw(16, heads) for heads in (HEADS, KEYS, KEYS)), 1.0)
        held.advance()
        ages = [age + 1 for age in ages]
        peak = max(peak, held.nbytes / token)
    assert peak < 1.3 * (600 + 16 * 4 + 15 * 64)  # a rectangle has 16 * 600
    held.keep(torch.tensor([0]))
    assert held.nbytes / token < 700
