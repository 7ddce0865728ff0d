"""The decoder of an accelerator, on a CPU: attention by its definition, and a recording of calls for CUDA graphs."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import MicroBatch, Prompt, SamplingParams
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.attention import reserved
from gspo_lightning.policy.attention.span_cache import SpanCache
from gspo_lightning.policy.attention.spans import attend_by_definition
from gspo_lightning.policy.packing.memory import ALLOCATING, MemoryLimit
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, GroupedSampler
from gspo_lightning.rollouts.sampler import device_batch, device_decoder, recording
from gspo_lightning.rollouts.sampler.admission_queue import Prefill
from gspo_lightning.rollouts.sampler.fast_decoder import twin
from gspo_lightning.rollouts.sampler.fast_decoder.pieces import Pieces, added, turned, turned_apart
from gspo_lightning.rollouts.sampler.memory import Costs, Growth
from gspo_lightning.rollouts.sampler.recording import CudaCapture, GraphMemory, memory_for, record
from tests.rollouts.sampler.test_fast_decoder import FAMILIES, build
from tests.rollouts.sampler.test_step_graphs import Recorded

PROMPTS = [Prompt(i, "", [3 + i, 5, 7, 2, 4, 6, 8][: 1 + i % 7]) for i in range(7)]
PART = (
    torch.zeros(1, 4, dtype=torch.int64), torch.tensor([1]), torch.tensor([3]), torch.ones(1, 3).bool(), torch.zeros(1),
)  # fmt: skip
STOPS = SamplingParams(90, stop_token_ids=(9, 10))


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU that decodes as an accelerator does, without recordings."""
    monkeypatch.setattr(twin, "HOST", "nowhere")
    monkeypatch.setitem(device_decoder.ATTENDS, "cpu", (attend_by_definition, lambda *_: None))
    for module in (device_decoder, device_batch):
        monkeypatch.setattr(module, "WINDOW", 16)
    return


@pytest.fixture
def recorded_steps(accelerator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recording.CAPTURES, "cpu", Recorded)
    monkeypatch.setattr(Recorded, "replays", 0)


def policy_of(family: str = "qwen3", adapters: bool = False) -> Policy:
    model = FAMILIES[family]()
    if adapters:
        add_adapters(model, LoRA(r=2), 0)
    return build(model)


def sampled(
    policy: Policy, sampling: SamplingParams = STOPS, *, iteration: int = 1, sampler: GroupedSampler | None = None
) -> list[tuple[list[int], list[float]]]:
    groups = (sampler or GroupedSampler()).generate(
        policy, PROMPTS, group_size=4, sampling=sampling, draws=Draws.of(0, Purpose.TRAIN_SAMPLING, iteration)
    )
    return [(r.token_ids.tolist(), r.logprobs.tolist()) for g in groups for r in g if r.logprobs is not None]


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len({len(ids) for ids, _ in one}) > 4
    for (ids, logprobs), (others, other_logprobs) in zip(one, other, strict=True):
        assert ids == others
        assert logprobs == pytest.approx(other_logprobs, abs=1e-4)


@pytest.mark.thorough(
    "adapters-32-ordinary steps",
    "adapters-32-recorded",
    "adapters-5-ordinary steps",
    "adapters-5-recorded",
    "qwen3-32-ordinary steps",
    "qwen3-32-recorded",
    "qwen3-5-ordinary steps",
    "qwen3-5-recorded",
)
@pytest.mark.parametrize("graphs", [False, True], ids=["ordinary steps", "recorded"])
@pytest.mark.parametrize("max_rows", [5, 32])
@pytest.mark.parametrize("case", ["qwen3", "llama with biases", "adapters"])
def test_responses_are_those_of_the_modules(
    case: str, max_rows: int, graphs: bool, request: pytest.FixtureRequest
) -> None:
    """Rows of seven prompt lengths, which join and leave at different times, in more than one window of draws."""
    adapters = case == "adapters"
    family = "qwen3" if adapters else case
    expected = sampled(policy_of(family, adapters), sampler=GroupedSampler(decode="model"))
    request.getfixturevalue("recorded_steps" if graphs else "accelerator")
    policy, sampler = policy_of(family, adapters), GroupedSampler(max_rows)
    assert_same(sampled(policy, sampler=sampler), expected)
    assert policy.decoding.device_decoder is True
    assert max(len(ids) for ids, _ in expected) > device_decoder.WINDOW
    assert policy.decoding.graphs is (True if graphs else None)
    assert sampler.measured() == {"sampler/graph_steps": float(graphs)}
    assert sampler.measured() == {}


@pytest.mark.parametrize("sampling", [
    SamplingParams(20, temperature=0.0), SamplingParams(20, temperature=0.7, top_p=0.8),
    SamplingParams(20, temperature=1.3, top_k=5), SamplingParams(20, stop_strings=("ab", "ca")),
], ids=["greedy", "nucleus", "top k", "stop strings"])  # fmt: skip
def test_every_way_of_drawing_is_that_of_the_modules(sampling: SamplingParams, request: pytest.FixtureRequest) -> None:
    expected = sampled(policy_of(), sampling, sampler=GroupedSampler(decode="model"))
    request.getfixturevalue("recorded_steps")
    found = sampled(policy_of(), sampling)
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]


@pytest.mark.thorough
def test_steps_are_recorded_once_for_the_run(recorded_steps: None) -> None:
    """Later rollouts replay the steps of earlier ones, with the weights of the moment, and record nothing."""
    policy, sampler = policy_of(), GroupedSampler()
    counts = []
    for iteration in range(3):
        expected = sampled(policy, iteration=iteration, sampler=GroupedSampler(decode="model"))
        assert_same(sampled(policy, iteration=iteration, sampler=sampler), expected)
        kept: Any = policy.decoding.kept
        counts.append(kept.counts["recorded"])
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(1.02).add_(0.004)
    sizes = [size for _, size in kept._graphs]
    assert sorted(set(sizes)) == sorted(sizes)
    assert {*sizes} <= {1, 2, 4, 8, 16, 24, 32}
    assert counts[0] > 3
    assert counts[2] - counts[0] <= 2  # a number of rows that had not occurred
    assert kept.counts["ordinary"] == 2  # the comparison at the start of the run


@pytest.mark.thorough
def test_a_resumed_run_draws_the_same_bits(accelerator: None) -> None:
    policy = policy_of(adapters=True)
    sampled(policy)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.02).add_(0.004)
    resumed = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    resumed.packed = True
    assert sampled(resumed, iteration=2) == sampled(policy, iteration=2)


@pytest.mark.thorough
def test_log_probabilities_do_not_depend_on_idle_rows(recorded_steps: None) -> None:
    """A bucket of 8 rows for 5: what idle rows hold reaches nobody."""
    policy = policy_of()
    one = sampled(policy)
    kept: Any = policy.decoding.kept
    with torch.inference_mode():
        for store in kept.cache.stores.values():
            store[0] = 1e4  # where idle rows write and read
    assert_same(sampled(policy), one)


# faults ------------------------------------------------------------------------------------------------------------


class Empty(Recorded):
    """A recording on another device's stream: nothing is recorded, and the result is that of the recording."""

    def replay(self) -> None:
        type(self).replays += 1


def failing(times: int, error: type[Exception]) -> type[Recorded]:
    left = iter(range(times))

    class Failing(Recorded):
        def __init__(self, function: Callable[[], Tensor], memory: GraphMemory) -> None:
            function()  # a recording that fails in the middle has done something
            if next(left, None) is not None:
                raise error("CUDA error: operation failed due to a previous error during capture")
            super().__init__(function, memory)

    return Failing


@pytest.mark.thorough
def test_an_empty_recording_is_found_by_its_second_replay(
    recorded_steps: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = sampled(policy_of(), sampler=GroupedSampler(decode="model"))
    monkeypatch.setitem(recording.CAPTURES, "cpu", Empty)
    policy, sampler = policy_of(), GroupedSampler()
    with caplog.at_level(logging.WARNING):
        assert_same(sampled(policy, sampler=sampler), expected)
    assert caplog.text.count("are not CUDA graphs: log-probabilities of a replayed step are off by") == 1
    assert policy.decoding.graphs is False
    assert sampler.measured() == {"sampler/graph_steps": 0.0}


@pytest.mark.thorough
@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError])
def test_one_failed_graph_capture_disables_only_its_own_rollout(
    error: type[Exception], recorded_steps: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [sampled(policy_of(), iteration=i, sampler=GroupedSampler(decode="model")) for i in (1, 2)]
    monkeypatch.setitem(recording.CAPTURES, "cpu", failing(1, error))
    policy, sampler = policy_of(), GroupedSampler()
    with caplog.at_level(logging.WARNING):
        assert_same(sampled(policy, sampler=sampler), expected[0])
    assert caplog.text.count("in the rest of this rollout") == 1
    assert "responses go on from their tokens" not in caplog.text
    assert sampler.measured() == {"sampler/graph_steps": 0.0}
    assert_same(sampled(policy, iteration=2, sampler=sampler), expected[1])
    assert sampler.measured()["sampler/graph_steps"] == 1.0
    assert policy.decoding.failed_graphs == 1


@pytest.mark.thorough
def test_memory_that_runs_out_in_a_step_costs_no_token(
    accelerator: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = sampled(policy_of(), sampler=GroupedSampler(decode="model"))
    original, left = device_decoder.DeviceDecoder._draw, iter(range(30))

    def full(self: Any, rows: int, sampling: SamplingParams) -> Tensor:
        if next(left, None) == 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, rows, sampling)

    monkeypatch.setattr(device_decoder.DeviceDecoder, "_draw", full)
    with caplog.at_level(logging.WARNING):
        assert_same(sampled(policy_of()), expected)
    assert "is out of memory" in caplog.text


@pytest.mark.thorough
def test_inexact_device_decoder_is_dropped_with_one_warning(
    accelerator: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def off(*arguments: Any) -> tuple[Tensor, Tensor]:
        out, lse = attend_by_definition(*arguments)
        return out * 1.5, lse

    monkeypatch.setitem(device_decoder.ATTENDS, "cpu", (off, lambda *_: None))
    policy = policy_of()
    expected = sampled(policy_of(), sampler=GroupedSampler(decode="model"))
    with caplog.at_level(logging.WARNING):
        found = [sampled(policy), sampled(policy)]
    assert_same(found[0], expected)
    assert policy.decoding.device_decoder is False
    assert policy.decoding.kept is None
    assert policy.decoding.fallback == "its log-probabilities differ from the modules'"
    assert caplog.text.count("is decoded without a copy of its weights: its log-probabilities differ") == 1


def test_concurrent_rollout_has_a_decoder_of_its_own(recorded_steps: None) -> None:
    policy = policy_of()
    with device_decoder.device_decoder(policy, 8) as one, device_decoder.device_decoder(policy, 8) as two:
        assert one is not None
        assert two is not None
        assert one is policy.decoding.kept is not two
        assert one.records
        assert not two.records  # recorded steps share memory
        assert not policy.decoding.release()
    assert policy.decoding.release()
    assert policy.decoding.kept is None


class Guarded(Recorded):
    """Recorded, if no other thread may allocate meanwhile."""

    def __init__(self, function: Callable[[], Tensor], memory: GraphMemory) -> None:
        assert not free_for_others()
        super().__init__(function, memory)


def free_for_others() -> bool:
    """True if another thread may train, or record, at this moment."""
    found = []

    def ask() -> None:
        if ALLOCATING.acquire(blocking=False):
            ALLOCATING.release()
            found.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return bool(found)


@pytest.mark.thorough
def test_training_and_graph_capture_exclude_each_other(recorded_steps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recording.CAPTURES, "cpu", Guarded)
    policy = policy_of()
    sampled(policy)
    assert policy.decoding.graphs is True
    assert free_for_others()
    part = MicroBatch(*PART)
    limit = MemoryLimit(100)
    assert limit.retry_smaller(lambda parts: free_for_others(), [part], "update 1") is False
    assert free_for_others()


@pytest.mark.thorough
def test_an_update_that_is_out_of_memory_frees_the_decoder_before_it_halves_the_budget(recorded_steps: None) -> None:
    policy, limit = policy_of(), MemoryLimit(100)
    sampled(policy)
    limit.release = policy.decoding.release
    part = MicroBatch(*PART)

    def work(parts: list[Any]) -> str:
        if policy.decoding.kept is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "done"

    assert limit.retry_smaller(work, [part], "update 1") == "done"
    assert limit.budget == 100
    assert_same(sampled(policy), sampled(policy_of(), sampler=GroupedSampler(decode="model")))


def test_a_full_card_is_emptied_before_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the decision: what the allocator of a card does afterwards, no CPU can show."""
    free, emptied = [recording.ROOM - 1], []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 80 << 30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    assert recording.make_room(torch.device("cuda", 0))
    free[0] += 1
    assert not recording.make_room(torch.device("cuda", 0))
    assert emptied == [1]


def test_memory_of_recordings_has_one_owner_and_outlives_it() -> None:
    """A graph that ends frees the workspaces of its stream, so that no two decoders may share one."""
    here, owners = torch.device("cuda", 7), [Owner() for _ in range(3)]
    memories = [memory_for(owner, here) for owner in owners]
    assert len({id(memory) for memory in memories}) == 3
    del owners[1]
    assert memory_for(late := Owner(), torch.device("cuda", 6)) not in memories
    assert memory_for(later := Owner(), here) is memories[1]
    assert memory_for(last := Owner(), here) not in memories
    assert late is not later is not last


class Owner:
    """Something that can be collected."""


class Allocator:
    """Rules of PyTorch 2.11's allocator, as its sources have them: who records in which pool."""

    def __init__(self) -> None:
        self.recording: list[int] = []
        self.pools: list[int] = []

    def begin(self, pool: int) -> None:
        if pool in self.recording:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.recording.append(pool)

    def end(self, device: int, pool: int) -> None:
        if pool not in self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording.remove(pool)

    def empty(self) -> None:
        if self.recording:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    """A card without a card: streams do nothing, the allocator has PyTorch's rules."""
    rules = Allocator()

    class Stream:
        device = torch.device("cuda", 0)

        def __init__(self, *_: Any) -> None:
            self.waited: list[Any] = []

        def wait_stream(self, other: Any) -> None:
            self.waited.append(other)

    class Pool:
        def __init__(self) -> None:
            rules.pools.append(len(rules.pools))
            self.id = rules.pools[-1]

        def __del__(self) -> None:
            rules.empty()

    class Graph:
        broken = False

        def capture_begin(self, pool: int, capture_error_mode: str) -> None:
            rules.begin(pool)
            self.pool = pool

        def capture_end(self) -> None:
            if type(self).broken:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            rules.end(0, self.pool)

    here = Stream()
    for name, value in (
        ("current_stream", lambda device: here), ("Stream", Stream), ("MemPool", Pool), ("CUDAGraph", Graph),
        ("stream", lambda stream: contextlib.nullcontext()), ("mem_get_info", lambda device: (80 << 30, 80 << 30)),
        ("current_device", lambda: 0), ("set_device", lambda index: None),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", rules.end, raising=False)
    monkeypatch.setattr(CudaCapture, "_abandoned", [])
    return rules


@pytest.mark.parametrize("broken", [False, True], ids=["out of memory", "an operation that cannot be recorded"])
def test_a_recording_that_fails_leaves_an_allocator_that_works(broken: bool, allocator: Allocator) -> None:
    """Before PyTorch 2.12 it would be said to be recording for good: no cached block freed, no other recording."""
    memory = GraphMemory(torch.device("cuda", 0))

    def fails() -> Tensor:
        if allocator.recording:
            torch.cuda.CUDAGraph.broken = broken  # type: ignore[attr-defined]
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.zeros(1)

    with pytest.raises(RuntimeError, match="not permitted"):
        record(fails, memory)
    assert torch.cuda.current_stream(memory.device).waited == [memory.stream]
    allocator.empty()
    torch.cuda.CUDAGraph.broken = False  # type: ignore[attr-defined]
    assert float(record(lambda: torch.ones(1), memory).result) == 1
    assert float(record(lambda: torch.ones(1), memory).result) == 1
    assert allocator.pools == [0, 1]  # that of the failure is not used again
    assert len(CudaCapture._abandoned) == broken


def test_a_cache_is_emptied_only_while_nobody_records(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alone.append(not free_for_others()))
    limit = MemoryLimit(100)
    limit.release = lambda: True
    assert limit._relieved()
    GroupedSampler()._fit(2, "CUDA out of memory")
    assert alone == [True, True]


@pytest.mark.thorough
def test_recorded_steps_keep_no_logits_but_those_that_were_compared(recorded_steps: None) -> None:
    policy = policy_of()
    sampled(policy)
    kept: Any = policy.decoding.kept
    wide = [graph.result.shape for graph in kept._graphs.values() if graph.result.dim() > 1]
    assert len(kept._graphs) > 3
    assert len(wide) <= 1
    policy.decoding.release()
    assert not kept._graphs
    assert kept._memory.pool is None


@pytest.mark.parametrize("family", ["qwen3", "llama with biases"])
def test_a_decoder_that_is_freed_frees_its_copy_of_the_weights_at_once(
    family: str, recorded_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user is out of memory, and Python's collector of cycles would come too late."""
    monkeypatch.setitem(recording.CAPTURES, "cpu", Forgetful)
    policy = policy_of(family)
    policy.decoding.graphs = True
    with device_decoder.device_decoder(policy, 8) as decoder:
        assert decoder is not None
        decoder.add(Prefill([[3, 4, 5]], [2], room=[4, 4]))
        decoder.step(torch.tensor([6, 7]), torch.tensor([3, 3]))
        copies = [weakref.ref(weight) for weight, _ in decoder.twin._pairs]
        weights = weakref.ref(decoder.twin)
    gc.disable()
    try:
        del decoder
        assert policy.decoding.release()
        assert weights() is None
        assert not any(copy() is not None for copy in copies)
    finally:
        gc.enable()


class Forgetful(Recorded):
    """As a CUDA graph, it keeps nothing of Python."""

    def __init__(self, function: Callable[[], Tensor], memory: GraphMemory) -> None:
        super().__init__(function, memory)
        self.calls = []


def test_there_are_never_two_copies_of_the_weights_for_one_rollout(
    accelerator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when a larger decoder takes the place of one, nor when compiled pieces fail."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = []
    original = twin.DecoderTwin.__init__

    def counted(self: Any, *arguments: Any) -> None:
        alive.add(self)
        most.append(len(alive))
        original(self, *arguments)

    def broken() -> Any:
        def fails(*_: Any) -> Tensor:
            raise RuntimeError("no compiler")

        return dataclasses.replace(Pieces(), gated=fails, compiled=True)

    monkeypatch.setattr(twin.DecoderTwin, "__init__", counted)
    monkeypatch.setattr(device_decoder, "can_compile", lambda device: True)
    monkeypatch.setattr(device_decoder, "compiled_pieces", broken)
    policy = policy_of()
    for rows in (8, 16):
        with device_decoder.device_decoder(policy, rows) as decoder:
            assert decoder is not None
            assert decoder.most == rows
        del decoder
    assert policy.decoding.compiled is False
    assert most == [1, 1, 1]


@pytest.mark.thorough
def test_a_copy_of_the_weights_that_does_not_fit_is_done_without(
    accelerator: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = sampled(policy_of(), sampler=GroupedSampler(decode="model"))
    policy, sampler = policy_of(), GroupedSampler()

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with device_decoder.device_decoder(policy, 8) as one, pytest.MonkeyPatch.context() as patch:
        patch.setattr(twin.DecoderTwin, "__init__", full)
        assert_same(sampled(policy), expected)  # a second rollout at the same time does without
        assert policy.decoding.kept is one
        assert policy.decoding.device_decoder is True
    policy.decoding.release()
    monkeypatch.setattr(twin.DecoderTwin, "__init__", full)
    with caplog.at_level(logging.WARNING):
        assert_same(sampled(policy, sampler=sampler), expected)
        assert_same(sampled(policy, sampler=sampler), expected)
    assert caplog.text.count("is decoded without a copy of its weights: there is no memory for one") == 1


@pytest.mark.parametrize("growth", ["graph pages", "whole"])
def test_rows_are_counted_with_the_places_that_they_take(growth: Growth) -> None:
    """512 rows of 256 tokens were counted at 288 places and took 384."""
    config = FAMILIES["qwen3"]().config
    costs = Costs(config, 4, True, 8, growth=growth)
    for tokens in (1, 14, 32, 100, 127, 128, 129, 256, 300, 400, 1000):
        if growth == "whole":
            cache = SpanCache(torch.device("cpu"), 1, attend_by_definition)
            cache.enter([1], [1], [tokens])
            assert cache._places.size == 2 + costs.places(tokens)  # the idle place and the prompt
        else:
            assert costs.places(tokens) >= max(reserved(held, 128) for held in range(1, tokens + 1))
    assert Costs(config, 4, True, 8, growth="graph pages").places(256) == 384
    assert Costs(config, 4, True, 8).places(256) == 288


def test_compiled_pieces_compute_what_the_plain_ones_do() -> None:
    """Only the functions: a compiler for this machine's processor makes the same of them as they are."""
    torch.manual_seed(0)
    x, more, weight = torch.randn(5, 16), torch.randn(5, 16), torch.randn(16)
    qkv, cos, sin, scale = torch.randn(5, 8, 4), torch.randn(5, 1, 4), torch.randn(5, 1, 4), torch.randn(8, 4)
    for norms in (None, scale):
        apart = turned_apart(qkv, 6, cos, sin, norms, 1e-6)
        torch.testing.assert_close(turned(qkv.clone(), 6, cos, sin, norms, 1e-6), apart)
        torch.testing.assert_close(apart[:, 6:], qkv[:, 6:], rtol=0, atol=0)
    total, normed = added(x, more, weight, 1e-6, torch.float32)
    torch.testing.assert_close(total, x + more)
    expected = total / (total.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(normed, expected)
