"""Context parallelism in whole runs: ranks that compute the same rows make the updates of one process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.loop.update.dump import Dump
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.load.loading import load_policy
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_strategies import ADAPTERS, BY_NORM, DENSE, OPTIONS, Case, assert_resumes, assert_same_run

GENTLE = "--model.optimizer.lr=0.05"
"""Of a KL term: with ten times as much, gradients of 300 make any difference of rounding large, under DDP as well."""
HEADS = "{num_attention_heads: 6, num_key_value_heads: 2}"
OVERLAY = f"--config={runs.ROOT / 'configs' / 'cp.yaml'}"
CASES = {
    "GSPO": [*DENSE, *BY_NORM],
    "GSPOToken": ["--model.objective=GSPOToken"],
    "GRPO": ["--model.objective=GRPO"],
    "KL": ["--model.objective=GRPO", "--model.objective.kl_coef=0.05", GENTLE],
    "KL in the reward": ["--data.kl_in_reward=0.05", GENTLE],
    "critic": [
        "--model.objective=PPO", "--data.advantages=GAE", "--model.critic=ValueModel", "--model.critic.lr=1e-3",
    ],
    "adapters": [*ADAPTERS, "--model.gradient_checkpointing=true"],
    "snapshot of old weights": ["--model.old_policy=OffloadedSnapshot", "--model.old_policy.refresh_every=2"],
}  # fmt: skip
"""Uneven micro-batches: the ranks of a group have different numbers of turns."""
EVERY = pytest.mark.parametrize("name", CASES)


def poison() -> None:
    """Make a loss of the second update of this rank's process infinite."""
    original, calls = GSPO.__call__, []

    def poisoned(self: GSPO, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        calls.append(out)
        if len(calls) == 4:
            out.loss = out.loss * math.inf
        return out

    GSPO.__call__ = poisoned  # type: ignore[assignment, method-assign]


def mesh(run: Path) -> dict[str, float]:
    events = runs.events(run)
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("parallel/")]
    return {tag: event.value for tag in tags for event in events.Scalars(tag)}


@pytest.mark.thorough
@EVERY
def test_two_ranks_are_one_process(name: str, tmp_path: Path) -> None:
    case = Case("cp", CASES[name])
    two = case.run(tmp_path / "two")
    assert mesh(two) == {"parallel/cp": 2.0, "parallel/ep": 1.0, "parallel/replicate": 1.0, "parallel/shard": 2.0}
    assert_same_run(case, two, tmp_path / "one")


@pytest.mark.thorough
@EVERY
def test_two_groups_of_two_ranks_are_one_process(name: str, tmp_path: Path) -> None:
    case = Case("cp", [*CASES[name], "--data.prompts_per_rollout=8"])
    assert_same_run(case, case.run(tmp_path / "four", ranks=4), tmp_path / "one")


@pytest.mark.thorough
def test_a_run_goes_on_without_a_group(tmp_path: Path) -> None:
    options = CASES["GSPO"]
    two = Case("cp", options).run(tmp_path / "two")
    assert assert_resumes(Case("fsdp2", options), two, tmp_path / "resumed") < 1e-6


@pytest.mark.thorough
def test_an_update_that_is_not_finite_is_written_by_the_rank_that_has_the_rows(tmp_path: Path) -> None:
    run = fit_on_ranks(tmp_path / "two", *OPTIONS, "--model.on_nonfinite=skip", overlay="cp", prepare=poison)
    rewards: list[str] = []
    for file in (run / "dumps" / "update-00000002.pt", run / "dumps" / "update-00000002-rank1.pt"):
        dump = Dump.read(file)
        rewards += dump.rewards
        policy = load_policy(dump.model)
        policy.model.load_state_dict(dump.weights)
        for part, logprobs in zip(dump.mini_batch.micro_batches, dump.logprobs, strict=True):
            with torch.no_grad():
                expected = policy(part, dump.temperature)[0]
            assert torch.allclose(expected, logprobs, atol=2e-6)
    assert len(rewards) == len(set(rewards)) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_group_goes_on_bit_for_bit(ranks: int, tmp_path: Path) -> None:
    case = Case("cp", [*CASES["critic"], "--data.prompts_per_rollout=8"])
    assert assert_resumes(case, case.run(tmp_path / "whole", ranks=ranks), tmp_path / "resumed", ranks=ranks) == 0.0


@pytest.mark.thorough
def test_four_ranks_compute_rows_in_replicas_of_the_weights(tmp_path: Path) -> None:
    """A group of four deals six heads, and crosses the replicas."""
    options = [
        "--data.prompts_per_rollout=8",
        f"--model.config_overrides={HEADS}",
    ]
    case = Case("cp", [*CASES["GSPO"], *options], {"context": "4", "replicas": "2"})
    four = case.run(tmp_path / "four", ranks=4)
    assert mesh(four) == {"parallel/cp": 4.0, "parallel/ep": 1.0, "parallel/replicate": 2.0, "parallel/shard": 2.0}
    assert_same_run(case, four, tmp_path / "one")


@pytest.mark.parametrize(
    ("options", "said"),
    {
        "ranks": ([], "trainer.strategy.context: is 2, but 1 ranks cannot be cut into groups of that size"),
        "lockstep": (
            ["--trainer.strategy.init_args.rollouts=lockstep"],
            "trainer.strategy.context: is 2, but rollouts: lockstep samples from the shards",
        ),
    }.values(),
    ids=["ranks", "lockstep"],
)
def test_context_parallel_refuses_too_few_ranks_and_lockstep(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, OVERLAY, "--trainer.accelerator=cpu", "--trainer.devices=1", *options, code=2)
    assert said in capsys.readouterr().err
