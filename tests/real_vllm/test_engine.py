"""vLLM in this process: the trainer's weights by reference, its probabilities, no trace of an engine that started."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, Prompt, SamplingParams
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import ResponsePrefix, VLLMEngine
from tests.real_vllm import served
from tests.runs import runs
from tests.runs.test_padded_vocabulary import TOKENS, padded

pytestmark = served.VLLM


@pytest.fixture
def engine(policy: Policy) -> Iterator[VLLMEngine]:
    with closing(VLLMEngine(options={"block_size": served.BLOCK}, exact_seeds=True)) as source:
        source.open(128)
        yield source


def test_the_engine_keeps_the_contract_and_leaves_no_trace(
    engine: VLLMEngine, policy: Policy, prompts: list[Prompt]
) -> None:
    before = surroundings()
    served.check_contract(engine, policy, prompts)
    served.check_that_weights_arrive(engine, policy, prompts)
    check_draws(engine, policy, prompts)
    check_draws_of_a_call(engine, policy, prompts)
    check_pieces(engine, policy, prompts)
    after = surroundings()
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == set()
    engine.close()
    assert not torch.distributed.is_initialized()


def surroundings() -> dict[str, Any]:
    """What everybody in this process shares, but for variables that torch and vLLM keep for themselves."""
    own = ("VLLM_", "_TORCH")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    threads = {"function": torch.set_num_threads, "threads": torch.get_num_threads()}
    return {**variables, **threads, "gradients": torch.is_grad_enabled(), **generators()}


def generators() -> dict[str, Any]:
    """Where the generators that everybody shares stand."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": random.getstate(),
    }


def check_draws(engine: VLLMEngine, policy: Policy, prompts: list[Prompt]) -> None:
    """A response has a seed of its own: neither the others nor their order matter."""
    forward = served.sample(engine, policy, prompts, 2)
    assert served.tokens(forward) == served.tokens(served.sample(engine, policy, prompts[::-1], 2)[::-1])
    assert served.tokens(served.sample(engine, policy, prompts[1:2], 6))[:2] == served.tokens(forward[1:2])


def check_draws_of_a_call(engine: VLLMEngine, policy: Policy, prompts: list[Prompt]) -> None:
    """Without seeds of their own: the same call draws the same, whatever others drew; no two responses are alike."""
    engine.exact_seeds = False
    long = SamplingParams(14, temperature=1.3)
    first = served.tokens(served.sample(engine, policy, prompts, 4, long))
    assert len(set(map(tuple, first))) == len(first)
    with torch.random.fork_rng():
        torch.rand(3)
    assert served.tokens(served.sample(engine, policy, prompts, 4, long)) == first
    assert served.tokens(served.sample(engine, policy, prompts[::-1], 4, long)) != first
    other = engine.generate(policy, prompts, group_size=4, sampling=long, draws=served.Draws(7), version=served.VERSION)
    assert served.tokens(other) != first
    engine.exact_seeds = True


def check_pieces(engine: VLLMEngine, policy: Policy, prompts: list[Prompt]) -> None:
    """Greedy: the pieces of a response are the whole; what was cut keeps its tokens."""
    greedy = SamplingParams(20, temperature=0.0)
    whole = served.sample(engine, policy, prompts, 1, greedy)
    rooms = [3, 20, 20, 20]
    rows = [ResponsePrefix(p, 0, p.token_ids, 0, token_budget) for p, token_budget in zip(prompts, rooms, strict=True)]

    def first(ended: Collection[int]) -> bool:
        return len(ended) > 0

    pieces = engine.extend(policy, rows, sampling=greedy, draws=served.DRAWS, version=served.VERSION, enough=first)
    assert [r.finish_reason for r in pieces] == [FinishReason.LENGTH, *[FinishReason.CUT] * 3]
    for piece, (response,) in zip(pieces, whole, strict=True):
        assert len(piece.token_ids) == 3
        assert piece.token_ids.tolist() == response.token_ids.tolist()[:3]
        assert piece.logprobs is not None
        assert response.logprobs is not None
        torch.testing.assert_close(piece.logprobs, response.logprobs[:3], rtol=0, atol=1e-5)
    again = served.sample(engine, policy, prompts, 1, greedy)  # what was cut is not under way any more
    assert served.tokens(again) == served.tokens(whole)


def test_weights_arrive_in_the_engines_precision_without_a_warning(
    policy: Policy, prompts: list[Prompt], capfd: pytest.CaptureFixture[str]
) -> None:
    with closing(VLLMEngine(dtype="bfloat16", options={"block_size": served.BLOCK})) as source:
        source.open(128)
        for version in range(2):
            source.sync_weights(policy, version)
            groups = served.sample(source, policy, prompts, 4, version=version)
            assert 1e-5 < served.largest_gap(policy, groups) < 0.1
    assert "Attempted to load weight" not in "".join(capfd.readouterr())  # of every weight, at every copy


def test_a_model_that_vllm_does_not_take_is_one_message() -> None:
    refused = load_policy(ModelSettings()).eval()  # heads of 16
    with closing(VLLMEngine()) as source, pytest.raises(UserError, match="vLLM cannot serve this model"):
        source.sync_weights(refused, 0)


def test_the_quickstart_learns_through_the_engine(taught: Callable[[Path], None], tmp_path: Path) -> None:
    taught(tmp_path)
    run = runs.fit(tmp_path, served.HEADS, "--data.rollouts=VLLMEngine", small=False)
    served.check_learnt(run)


def test_rows_of_a_padded_vocabulary_are_never_sampled(policy: Policy, prompts: list[Prompt]) -> None:
    """The engine's distribution is that of training, which leaves these rows out."""
    wide = padded(policy)
    with closing(VLLMEngine(options={"block_size": served.BLOCK}, exact_seeds=True)) as source:
        source.open(128)
        source.sync_weights(wide, served.VERSION)
        groups = served.sample(source, wide, prompts, 8, SamplingParams(14, temperature=1.3))
        rollouts = [rollout for group in groups for rollout in group]
    assert all(int(rollout.token_ids.max()) < TOKENS for rollout in rollouts)
    for rollout in rollouts:
        rollout.reward = 0.0
    with torch.no_grad():
        logprobs = wide(make_micro_batch(rollouts), 1.3)[0]
    for row, rollout in zip(logprobs, rollouts, strict=True):
        assert rollout.logprobs is not None
        torch.testing.assert_close(row[: rollout.length], rollout.logprobs, rtol=0, atol=1e-4)
