"""An update depends neither on the cut into micro-batches, nor on the number of ranks, nor on the old policy's form."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.packing import rollout_batch
from gspo_lightning.policy.packing.batches import with_no_gradient
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks

SGD = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.5", "--trainer.gradient_clip_val=null"]
"""Plain gradient descent: weights show gradients as they are (AdamW turns a float's rounding into a whole step)."""
OPTIONS = [*runs.UNTAUGHT, *SGD, "--trainer.max_epochs=1", "--trainer.num_sanity_val_steps=0", "--data.val=null"]


@pytest.mark.thorough
@pytest.mark.parametrize("objective", ["GSPO", "GRPO", "DAPO"])
def test_update_does_not_depend_on_the_token_budget(tmp_path: Path, objective: str) -> None:
    def run(budget: int) -> Path:
        return runs.fit(
            tmp_path / str(budget),
            *OPTIONS,
            f"--model.objective={objective}",
            f"--data.max_tokens_per_micro_batch={budget}",
        )

    whole, cut = run(4096), run(40)
    assert {v for _, v in runs.scalars(whole)["data/micro_batches"]} == {1.0}
    assert min(v for _, v in runs.scalars(cut)["data/micro_batches"]) >= 6
    assert runs.largest_difference(runs.weights(whole), runs.weights(cut)) < 2e-6
    assert runs.largest_difference(runs.weights(whole), runs.untrained()) > 1e-3  # something was learnt at all


@pytest.mark.parametrize("old", ["auto", "recompute"])
def test_update_does_not_depend_on_the_graph_of_dead_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    """Rows without an advantage are computed without a graph; another pass over the same rollouts is off-policy."""
    right_or_wrong = [
        *OPTIONS, '--data.rewards={"even": "Even"}', "--data.group_size=2", "--data.epochs_per_rollout=2",
        "--model.optimizer.lr=0.05",
    ]  # fmt: skip
    marked: list[int] = []

    def counted(part: MicroBatch) -> MicroBatch:
        result = with_no_gradient(part)
        marked.append(sum(result.no_gradient or ()))
        return result

    monkeypatch.setattr(rollout_batch, "with_no_gradient", counted)
    spared = runs.fit(tmp_path / "spared", *right_or_wrong, f"--model.old_logprobs={old}")
    dead = dict(runs.scalars(spared)["reward/dead_groups"])[1]
    assert 0 < dead < 1
    assert sum(marked) == dead * 8 * 2  # of 8 groups of 2
    monkeypatch.setattr(rollout_batch, "with_no_gradient", lambda part: part)
    every = runs.fit(tmp_path / "every", *right_or_wrong, f"--model.old_logprobs={old}")
    assert runs.largest_difference(runs.weights(spared), runs.weights(every)) < 2e-6
    one, other = runs.scalars(spared), runs.scalars(every)
    assert one.keys() == other.keys()
    for tag in one:
        for (_, a), (_, b) in zip(one[tag], other[tag], strict=True):
            assert a == pytest.approx(b, abs=2e-5), tag


@pytest.mark.thorough
def test_two_ranks_do_the_update_of_one_with_dead_groups(tmp_path: Path) -> None:
    """Micro-batches of dead groups alone, and ranks with different numbers of them."""
    options = [
        *OPTIONS, '--data.rewards={"even": "Even"}', "--data.group_size=2", "--data.epochs_per_rollout=2",
        "--model.optimizer.lr=0.05", "--data.max_tokens_per_micro_batch=44", "--data.deal=groups",
    ]  # fmt: skip
    one = runs.fit(tmp_path / "one", *options)
    two = fit_on_ranks(tmp_path / "two", *options, overlay="ddp")
    assert 0 < dict(runs.scalars(one)["reward/dead_groups"])[1] < 1
    assert runs.largest_difference(runs.weights(one), runs.weights(two)) < 2e-6


@pytest.mark.thorough
def test_old_policy_forms_train_bit_identically(tmp_path: Path) -> None:
    options = [*runs.UNTAUGHT, "--trainer.max_epochs=2", "--data.max_tokens_per_micro_batch=100"]
    cached = runs.fit(tmp_path / "cached", *options, "--model.old_policy=CachedLogProbs")
    resident = runs.fit(tmp_path / "resident", *options, "--model.old_policy=ResidentSnapshot")
    assert runs.largest_difference(runs.weights(cached), runs.weights(resident)) == 0.0
    assert runs.scalars(cached) == runs.scalars(resident)


def test_resident_snapshot_may_outlive_an_iteration(tmp_path: Path) -> None:
    old = ["--model.old_policy=ResidentSnapshot", "--model.old_policy.refresh_every=2"]
    run = runs.fit(tmp_path, *runs.UNTAUGHT, *old, "--trainer.max_epochs=3")
    spread = dict(runs.scalars(run)["ratio/log_sequence_std"])
    assert spread[1] == 0.0  # a fresh snapshot
    assert spread[3] > 0.0  # the second iteration still divides by the first one's
    assert spread[5] == 0.0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("objective", "budget", "deal", "group_size"),
    [
        ("GSPO", 4096, "stratified", 3),  # a denominator of sequences; groups that two mini-batches cannot halve
        ("DAPO", 44, "shuffled", 4),  # a denominator of tokens, with uneven numbers of micro-batches
        pytest.param("DAPO", 44, "groups", 4, marks=pytest.mark.long),
        pytest.param("GSPO", 44, "shuffled", 2, marks=pytest.mark.long),
    ],
)
def test_two_ranks_do_the_update_of_one(
    tmp_path: Path, objective: str, budget: int, deal: str, group_size: int
) -> None:
    chosen = [f"--model.objective={objective}", f"--data.max_tokens_per_micro_batch={budget}"]
    chosen += [f"--data.deal={deal}", f"--data.group_size={group_size}"]
    one = runs.fit(tmp_path / "one", *OPTIONS, *chosen)
    two = fit_on_ranks(tmp_path / "two", *OPTIONS, *chosen, overlay="ddp")
    assert runs.largest_difference(runs.weights(one), runs.weights(two)) < 2e-6
    alone, together = runs.scalars(one), runs.scalars(two)
    cut = {"data/micro_batches", "update/gradient_noise"}  # what depends on the micro-batches
    assert alone.keys() - cut == together.keys() - cut
    for tag in alone.keys() - cut:
        for (_, a), (_, b) in zip(alone[tag], together[tag], strict=True):
            assert a == pytest.approx(b, abs=2e-5), tag
