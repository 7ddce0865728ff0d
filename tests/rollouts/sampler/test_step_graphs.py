"""Decode steps that are recorded and replayed: the same logits, whatever rows do; here a recording of PyTorch's calls.

The recording stands for a CUDA graph: a replay repeats the recorded calls on the same memory and nothing of Python.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.attention import cache as group_cache
from gspo_lightning.rollouts import Draws, GroupedSampler
from gspo_lightning.rollouts.sampler import recording, step_graphs
from gspo_lightning.rollouts.sampler.decoding import SharedDecoder
from gspo_lightning.rollouts.sampler.recording import GraphMemory
from tests.rollouts.sampler.test_fast_decoder import FAMILIES, answers, build


class Recorded(TorchDispatchMode):
    """Every call of PyTorch, in order; a replay writes the results to where they were."""

    replays = 0

    def __init__(self, function: Callable[[], Tensor], memory: GraphMemory) -> None:
        assert memory.device.type == "cpu"
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        with self:
            self.result = function()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default):
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        type(self).replays += 1
        for func, args, kwargs, out in self.calls:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(recording.CAPTURES, "cpu", Recorded)
    monkeypatch.setattr(step_graphs, "GRAPH_PAGE", 8)
    monkeypatch.setattr(Recorded, "replays", 0)
    return


def build_without(monkeypatch: pytest.MonkeyPatch, family: str) -> Any:
    """A policy whose steps are never recorded."""
    policy = build(FAMILIES[family]())
    policy.decoding.graphs = False
    return policy


@pytest.mark.thorough("qwen3-modules-several parts")
@pytest.mark.parametrize("apart", [False, True], ids=["one part", "several parts"])
@pytest.mark.parametrize("modules", [False, True], ids=["fast", "modules"])
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama with biases"])
def test_a_replayed_step_gives_the_logits_of_an_ordinary_one(
    family: str, modules: bool, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if apart:
        monkeypatch.setattr(group_cache, "PADDING", 0)
        monkeypatch.setattr(group_cache, "SHARE", 0.0)
    if modules:
        monkeypatch.setattr("gspo_lightning.rollouts.sampler.decoding._fast_layers", lambda policy: None)
    expected = [x.clone() for x in answers(SharedDecoder(build_without(monkeypatch, family)))]
    assert Recorded.replays == 0
    policy = build(FAMILIES[family]())

    class Cloning(SharedDecoder):
        def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
            return super().step(tokens, positions).clone()  # valid until the next one

    found = answers(Cloning(policy))
    assert policy.decoding.graphs is True
    assert Recorded.replays > 30
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough("5")
@pytest.mark.parametrize("max_rows", [5, 32])
def test_responses_are_the_same(max_rows: int) -> None:
    prompts = [Prompt(i, "", [3 + i, 5, 7][: 1 + i % 3]) for i in range(6)]

    def sampled(graphs: bool | None) -> list[tuple[list[int], list[float]]]:
        policy = build(FAMILIES["qwen3"]())
        policy.decoding.graphs = graphs
        groups = GroupedSampler(max_rows).generate(
            policy, prompts, group_size=4, sampling=SamplingParams(40, stop_token_ids=frozenset({9, 10, 11})),
            draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 1),
        )  # fmt: skip
        assert policy.decoding.graphs is (graphs is None)
        return [(r.token_ids.tolist(), r.logprobs.tolist()) for g in groups for r in g if r.logprobs is not None]

    plain, replayed = sampled(False), sampled(None)
    assert Recorded.replays > 20
    assert len({len(ids) for ids, _ in plain}) > 4  # rows that leave
    for (ids, logprobs), (own, own_logprobs) in zip(plain, replayed, strict=True):
        assert ids == own
        assert logprobs == pytest.approx(own_logprobs, abs=1e-5)


def test_a_step_that_replays_otherwise_is_not_replayed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The place of a token is read from Python, so that it stays in the recording."""
    expected = [x.clone() for x in answers(SharedDecoder(build_without(monkeypatch, "llama")))]
    original = step_graphs.GroupCache.write_static

    def off(self: Any) -> None:
        original(self)
        for part in self.parts:
            part.padded._own_mask[..., 0] = -torch.inf

    monkeypatch.setattr(step_graphs.GroupCache, "write_static", off)
    policy = build(FAMILIES["llama"]())
    with caplog.at_level(logging.WARNING):
        found = answers(SharedDecoder(policy))
    assert policy.decoding.graphs is False
    assert "without CUDA graphs: log-probabilities of a replayed step are off by" in caplog.text
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_step_that_asks_the_host_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build(FAMILIES["llama"]())
    monkeypatch.setattr(policy, "finish_logits", lambda x: x * float(x.abs().max() > -1))
    answers(SharedDecoder(policy))
    assert (policy.decoding.graphs, policy.decoding.failed_graphs) == (None, 1)
    monkeypatch.undo()
    monkeypatch.setitem(recording.CAPTURES, "cpu", Recorded)
    answers(SharedDecoder(policy))  # the next rollout tries again
    assert policy.decoding.graphs is True


def test_out_of_memory_while_recording_leaves_rows_as_many_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """During a recording PyTorch's allocator cannot use what it has cached, so that the memory may well be there."""
    policy, fails = build(FAMILIES["llama"]()), iter([True])

    class Full(Recorded):
        def __init__(self, function: Callable[[], Tensor], memory: GraphMemory) -> None:
            if next(fails, False):
                raise torch.OutOfMemoryError("CUDA out of memory")
            super().__init__(function, memory)

    monkeypatch.setitem(recording.CAPTURES, "cpu", Full)
    for graphs in (None, True):
        with caplog.at_level(logging.WARNING):
            groups = GroupedSampler().generate(
                policy, [Prompt(0, "", [3, 4])], group_size=4, sampling=SamplingParams(20),
                draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 1),
            )  # fmt: skip
        assert [len(r.token_ids) for r in groups[0]] == [20] * 4
        assert policy.decoding.graphs is graphs
    assert "responses go on from their tokens" not in caplog.text
    assert policy.decoding.failed_graphs == 1


def test_a_recording_that_does_nothing_is_found_by_its_second_replay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on the stream of another device: its result is that of the recording, whatever is fed."""

    class Empty(Recorded):
        def replay(self) -> None:
            type(self).replays += 1

    expected = [x.clone() for x in answers(SharedDecoder(build_without(monkeypatch, "llama")))]
    monkeypatch.setitem(recording.CAPTURES, "cpu", Empty)
    policy = build(FAMILIES["llama"]())
    with caplog.at_level(logging.WARNING):
        found = answers(SharedDecoder(policy))
    assert policy.decoding.graphs is False
    assert "without CUDA graphs: log-probabilities of a replayed step are off by" in caplog.text
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_hooks_and_the_reference_way_are_not_replayed() -> None:
    policy = build(FAMILIES["llama"]())
    assert SharedDecoder(policy, "model").graphs is None
    assert SharedDecoder(policy).graphs is not None
    policy.backbone.register_forward_hook(print)
    assert SharedDecoder(policy).graphs is None


def test_adapters_are_replayed() -> None:
    model = FAMILIES["qwen3"]()
    add_adapters(model, LoRA(r=2), 0)
    policy = build(model)
    answers(SharedDecoder(policy))
    assert policy.decoding.graphs is True


def test_a_decoder_is_freed_with_its_last_name() -> None:
    """Its keys and values may fill the device: the next rollout cannot wait for the garbage collector."""

    class Forgetful(Recorded):
        """As a CUDA graph, it keeps nothing of Python."""

        def __init__(self, function: Callable[[], Tensor], memory: GraphMemory) -> None:
            super().__init__(function, memory)
            self.calls = []

    policy = build(FAMILIES["llama"]())
    policy.decoding.graphs = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recording.CAPTURES, "cpu", Forgetful)
        decoder = SharedDecoder(policy)
        answers(decoder)
    there = weakref.ref(decoder.cache)
    gc.disable()
    try:
        del decoder
        assert there() is None
    finally:
        gc.enable()
