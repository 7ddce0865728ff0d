"""``positive_nll_coef`` in whole runs: the gradient by hand, on any cut, deal and number of ranks; refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.core.types import FinishReason, MicroBatch, MiniBatch, Prompt, Rollout
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.update.loss import LossTerms
from gspo_lightning.loop.update.micro_batches import all_but_last_backward
from gspo_lightning.objectives import DAPO
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import filler, make_micro_batch
from gspo_lightning.policy.packing.memory import cut_rows
from gspo_lightning.policy.tiny import character_tokenizer
from tests.runs import runs
from tests.runs.graded import Even
from tests.runs.ranks import fit_on_ranks, two_ranks
from tests.runs.test_invariance import SGD

COEF = "--model.objective.positive_nll_coef"
EVEN = [*runs.UNTAUGHT[:2], '--data.rewards={"even": "Even"}']
OPTIONS = [
    *EVEN, *SGD, "--data.minibatches_per_rollout=1", "--trainer.max_epochs=1", "--trainer.num_sanity_val_steps=0",
    "--data.val=null",
]  # fmt: skip
LR = 0.5


def test_one_update_of_fit_moves_the_weights_as_computed_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row by row through transformers' own forward; what is correct is read from the text."""
    plain = runs.fit(tmp_path / "plain", *OPTIONS)
    seen = runs.handed_out(monkeypatch)
    run = runs.fit(tmp_path / "positive", *OPTIONS, f"{COEF}=0.4", "--data.max_tokens_per_micro_batch=60")
    ((batch,), tokenizer) = seen, character_tokenizer()
    model = load_policy(ModelSettings(seed=1)).model  # seed_everything of the quickstart
    rows = [
        (p.input_ids[i, :a], p.input_ids[i, a : a + b])
        for p in batch.micro_batches
        for i, (a, b) in enumerate(zip(p.prompt_lengths.tolist(), p.response_lengths.tolist(), strict=True))
    ]
    correct = [
        (prompt, ids) for prompt, ids in rows if Even().score(tokenizer.decode(ids, skip_special_tokens=True)) == 1
    ]
    assert 4 < len(correct) < len(rows) - 4 == 28
    total = torch.zeros(())
    for prompt, ids in correct:
        logits = model(torch.cat([prompt, ids])[None, :-1]).logits[0, len(prompt) - 1 :]
        total = total - logits.log_softmax(-1).gather(1, ids[:, None]).sum()
    tokens = sum(len(ids) for _, ids in correct)
    (total / tokens).backward()
    before, after = runs.weights(plain), runs.weights(run)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        moved = after[f"policy.model.{name}"] - before[f"policy.model.{name}"]
        torch.testing.assert_close(moved, -LR * 0.4 * parameter.grad, atol=2e-6, rtol=1e-4)
    found = runs.scalars(run)
    assert found["policy/positive_nll"][0][1] == pytest.approx(float(total) / tokens, rel=1e-5)
    assert found["policy/positive_tokens"][0][1] == pytest.approx(tokens / sum(len(ids) for _, ids in rows))
    assert "policy/positive_nll" not in runs.scalars(plain)


@pytest.mark.thorough
def test_the_update_depends_neither_on_the_cut_nor_on_the_deal_nor_on_padding(tmp_path: Path) -> None:
    cut = "--data.max_tokens_per_micro_batch"
    ways = {
        "whole": [], "padded": ["--model.layout=padded", "--data.deal=groups", f"{cut}=60"],
        "shuffled": ["--data.deal=shuffled", f"{cut}=40"],
    }  # fmt: skip
    made = {name: runs.fit(tmp_path / name, *OPTIONS, f"{COEF}=0.4", *more) for name, more in ways.items()}
    for name, run in made.items():
        assert runs.largest_difference(runs.weights(made["whole"]), runs.weights(run)) < 3e-6, name
        assert runs.scalars(run)["policy/positive_nll"] == [
            (1, pytest.approx(runs.scalars(made["whole"])["policy/positive_nll"][0][1], rel=1e-5))
        ]


def rollouts() -> list[Rollout]:
    """Two prompts; of the second one no response is correct, and one was masked."""
    made = []
    for number, (length, reward) in enumerate([(3, 1.0), (5, 0.0), (2, 1.0), (4, 0.0), (6, 0.5), (3, 1.0)]):
        ids, prompt = torch.arange(3, 3 + length) + number, Prompt(number // 3, "p", (5, 6 + number // 3))
        mask = torch.ones(length, dtype=torch.bool)
        row = Rollout(prompt, number, ids, None, mask, FinishReason.STOP, 0, reward=reward, advantage=reward - 0.5)
        made.append(row)
    made[-1].masked = True
    return made


def averaged_gradient(parts: list[MicroBatch], terms: LossTerms, world: int) -> dict[str, list[float]]:
    """Of a mini-batch that ranks share, as DDP averages it: the first numbers of each weight's."""
    all_but_last_backward(parts, terms, MetricSums(), on_policy=True).backward()
    found = {}
    for name, p in terms.policy.named_parameters():
        if world > 1 and p.grad is not None:
            torch.distributed.all_reduce(p.grad)
            p.grad /= world
        found[name] = [] if p.grad is None else p.grad.flatten()[:64].tolist()
    return found


def gradient(rank: int, rows: list[list[int]], none: bool = False) -> dict[str, list[float]]:
    """Of these rows of each rank, cut smaller on the second one."""
    policy, every = load_policy(ModelSettings()), rollouts()
    policy.train()
    parts = [make_micro_batch([every[i] for i in rows[rank]])]
    parts = [piece for part in parts for piece in cut_rows(part, 9, packed=False)] if rank else parts
    if none:
        parts = [dataclasses.replace(part, positive=torch.zeros_like(part.positive)) for part in parts]  # type: ignore
    terms = LossTerms(policy, CachedLogProbs(), DAPO(positive_nll_coef=0.3), 1.0)
    return averaged_gradient(parts, terms, len(rows))


@pytest.mark.parametrize("rows", [[[0, 1], [2, 3, 4, 5]], [[0, 1, 2], [3, 4, 5]]], ids=["both", "one has none"])
def test_correct_responses_of_two_ranks_count_as_those_of_one(rows: list[list[int]]) -> None:
    alone = gradient(0, [[0, 1, 2, 3, 4, 5]])
    for together in two_ranks(gradient, rows):
        assert together.keys() == alone.keys()
        for name, values in alone.items():
            assert together[name] == pytest.approx(values, abs=2e-6), name
    without = gradient(0, [[0, 1, 2, 3, 4, 5]], none=True)
    assert all(x == x for values in without.values() for x in values)  # no NaN
    assert any(abs(a - b) > 1e-4 for name in alone for a, b in zip(alone[name], without[name], strict=True))


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp2"])
def test_two_ranks_are_one_in_a_whole_run(tmp_path: Path, strategy: str) -> None:
    options = [
        *OPTIONS, f"{COEF}=0.4", "--data.deal=shuffled", "--data.max_tokens_per_micro_batch=60",
        "--model.optimizer.momentum=0.9",
    ]  # fmt: skip
    one = runs.fit(tmp_path / "one", *options)
    two = fit_on_ranks(tmp_path / "two", *options, overlay=strategy)
    assert runs.largest_difference(runs.weights(one), runs.weights(two)) < 3e-6
    for tag in ("policy/positive_nll", "policy/positive_tokens", "loss"):
        (_, a), (_, b) = runs.scalars(one)[tag][0], runs.scalars(two)[tag][0]
        assert a == pytest.approx(b, abs=1e-5), tag


def test_correct_rows_are_marked_and_travel_with_the_batch() -> None:
    rows = rollouts()
    part = make_micro_batch(rows)
    assert part.positive is not None
    assert part.positive.tolist() == [True, False, True, False, False, True]
    pieces = [piece.positive.tolist() for piece in cut_rows(part, 24, packed=False) if piece.positive is not None]
    assert pieces == [[True, False, True], [False, False, True]]
    read = MiniBatch.from_state_dict(MiniBatch([part]).state_dict()).micro_batches[0]
    assert read.positive is not None
    assert torch.equal(read.positive, part.positive)
    assert filler(part).positive is not None
    state: dict[str, Any] = part.state_dict()
    del state["positive"]  # written by older code
    assert MicroBatch.from_state_dict(state).positive is None


@pytest.mark.parametrize(
    ("parts", "statuses", "reward", "correct"),
    [
        ({"correct": 1.0, "format": 0.0}, {}, 0.7, True),
        ({"correct": 0.0, "format": 1.0}, {}, 1.2, False),  # the weighted sum does not count
        ({"correct": None, "math": 1.0}, {"correct": "not_applicable"}, 1.0, True),  # another one judges this record
        ({"correct": None}, {}, None, False),
        ({"recorded": 1.0}, {}, 1.0, True),
        ({}, {}, 1.0, True),
        ({}, {}, 0.99, False),
        ({}, {}, None, False),
    ],
)
def test_a_response_is_correct_by_its_accuracy_reward(
    parts: dict[str, float | None], statuses: dict[str, str], reward: float | None, correct: bool
) -> None:
    row = rollouts()[0]
    row.reward_parts, row.reward_statuses, row.reward = parts, statuses, reward
    assert row.correct("correct") is correct


def test_without_a_reward_it_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    taught = [
        "--data.rewards=null",
        "--data.val=null",
        "--model.teacher=tiny-qwen3",
        "--model.objective.distill_coef=1",
    ]
    runs.fit(tmp_path, "--model.cold_start=null", *taught, f"{COEF}=0.1", code=2)
    said = capfd.readouterr().err
    assert "error: model.objective.positive_nll_coef: is 0.1, but data.rewards is empty" in said
    assert "Traceback" not in said
