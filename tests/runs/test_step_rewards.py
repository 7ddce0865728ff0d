"""A reward that scores steps, in real runs: each step has its advantage; objectives without room for it are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.core.types import MicroBatch, Rollout
from gspo_lightning.loop.advantages import assign
from gspo_lightning.loop.experience.generate_and_score import Groups
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rewards.steps import split_steps
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_invariance import SGD

REWARD = {"steps": {"class_path": "BriefSteps", "init_args": {"marker": "x"}}}
STEPS = [
    "--model.cold_start=null", f"--plugins={Path(__file__).with_name('stepwise.py')}",
    f"--data.rewards={json.dumps(REWARD)}", "--data.advantages=GroupMean", "--trainer.max_epochs=1",
    "--trainer.num_sanity_val_steps=0", "--data.val=null",
]  # fmt: skip
GIVEN = ["--model.objective=Segment", "--model.objective.by=given"]


def by_hand(part: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and segments from the tokens alone: a token is a character, an end token belongs to the last step."""
    tokenizer = character_tokenizer()
    ends, scores = [], []
    for ids, length in zip(part.response_ids, part.response_lengths.tolist(), strict=True):
        places = [*split_steps(tokenizer.decode(ids[:length], skip_special_tokens=True), "x")]
        scores.append([1 - (b - a) / 10 for a, b in zip([0, *places], places, strict=False)])
        ends.append([*places[:-1], length] if places else [])
    advantages = torch.zeros(part.response_mask.shape)
    segments = torch.zeros(part.response_mask.shape, dtype=torch.int64)
    assert part.prompt_index is not None
    for row, prompt in enumerate(part.prompt_index.tolist()):
        group = [scores[i] for i, other in enumerate(part.prompt_index.tolist()) if other == prompt]
        pooled = [score for own in group for score in own]
        mean = sum(pooled) / max(1, len(pooled))
        start = 0
        for number, end in enumerate(ends[row]):
            advantages[row, start:end] = sum(score - mean for score in scores[row][number:])
            segments[row, start:end] = number
            start = end
    return advantages * part.response_mask, segments


@pytest.mark.thorough
@pytest.mark.parametrize("objective", [GIVEN, ["--model.objective=GSPOToken"]])
def test_every_step_has_the_advantage_that_its_scores_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: list[str]
) -> None:
    seen = runs.handed_out(monkeypatch)
    run = runs.fit(tmp_path, *STEPS, *objective, "--data.max_tokens_per_micro_batch=4096", "--data.deal=groups")
    assert runs.summary(run)["updates"] == len(seen) == 2
    several = 0
    for batch in seen:
        for part in batch.micro_batches:
            advantages, segments = by_hand(part)
            assert part.segments is not None
            torch.testing.assert_close(part.advantages, advantages, atol=1e-5, rtol=1e-5)
            assert bool((part.segments == segments)[part.response_mask].all())
            several += int((segments.amax(dim=1) > 0).sum())
    assert several > 2  # responses of more than one step
    norms = [value for _, value in runs.scalars(run)["optim/gradient_norm"]]
    assert all(0 < value < float("inf") for value in norms)


def of_gae(ids: list[int], values: list[float], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Advantages and returns of a response from its tokens alone: each of K steps pays the K-th part of its score."""
    tokenizer = character_tokenizer()
    texts = [tokenizer.decode(ids[:count], skip_special_tokens=True) for count in range(len(ids) + 1)]
    places = [*split_steps(texts[-1], "x")]
    paid = [0.0] * len(ids)
    for start, end in zip([0, *places], places, strict=False):
        last = max(count for count, text in enumerate(texts) if len(text) <= end)  # special tokens have no characters
        paid[last - 1] += (1 - (end - start) / 10) / len(places)
    advantages, returns, following = [0.0], [0.0], 0.0
    for earned, value in zip(reversed(paid), reversed(values), strict=True):
        advantages.insert(0, earned + gamma * following - value + gamma * lam * advantages[0])
        returns.insert(0, earned + gamma * returns[0])
        following = value
    return advantages[:-1], returns[:-1]


@pytest.mark.thorough
@pytest.mark.parametrize("objective", [GIVEN, ["--model.objective=GSPOToken"]])
def test_a_critic_is_asked_about_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: list[str]
) -> None:
    seen: list[Rollout] = []
    own = assign.assign_token_advantages

    def noted(groups: Groups, *rest: Any) -> dict[str, float]:
        found = own(groups, *rest)
        seen.extend(r for group in groups for r in group)
        return found

    monkeypatch.setattr(assign, "assign_token_advantages", noted)
    gae = {"class_path": "GAE", "init_args": {"gamma": 0.9, "lam": 0.7, "whiten": False}}
    critic = ["--model.critic=ValueModel", "--model.critic.lr=1e-2", f"--data.advantages={json.dumps(gae)}"]
    runs.fit(tmp_path, *STEPS, *objective, *critic, "--trainer.max_epochs=2")
    several = [r for r in seen if len(r.steps.get("steps", ())) > 1]
    assert len(several) > 4
    assert any(bool(r.values.any()) for r in several if r.values is not None)  # of the second iteration
    for rollout in seen:
        assert rollout.values is not None
        assert rollout.token_advantages is not None
        assert rollout.returns is not None
        hand = of_gae(rollout.token_ids.tolist(), rollout.values.tolist(), 0.9, 0.7)
        assert rollout.token_advantages.tolist() == pytest.approx(hand[0], abs=1e-5)
        assert rollout.returns.tolist() == pytest.approx(hand[1], abs=1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "data.rewards.steps: scores steps, but GSPO takes one advantage per response"),
        (["--model.objective=LUSPO"], "data.rewards.steps: scores steps, but LUSPO takes one advantage per response"),
        (
            [*GIVEN, "--data.combine_rewards=normalised_separately"],
            "data.combine_rewards: is 'normalised_separately', but data.rewards.steps scores steps",
        ),
    ],
)
def test_settings_that_cannot_use_step_rewards_are_refused_at_start(
    tmp_path: Path, more: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *STEPS, *more, code=2)
    assert f"error: {message}" in capfd.readouterr().err


SILENT = json.dumps({"steps": {"class_path": "SomeSteps", "init_args": {"marker": "x"}}})
"""No step of most responses is scored, so that whole micro-batches have none."""


@pytest.mark.thorough
@pytest.mark.parametrize("objective", [GIVEN, pytest.param(["--model.objective=GSPOToken"], marks=pytest.mark.long)])
def test_a_response_without_steps_is_one_segment(tmp_path: Path, objective: list[str]) -> None:
    """Also where no row of a micro-batch has any: the update is that of one micro-batch."""
    options = [*STEPS, *SGD, f"--data.rewards={SILENT}", *objective]
    whole, cut = (
        runs.fit(tmp_path / str(budget), *options, f"--data.max_tokens_per_micro_batch={budget}")
        for budget in (4096, 40)
    )
    assert min(v for _, v in runs.scalars(cut)["data/micro_batches"]) >= 4
    assert runs.scalars(whole)["optim/gradient_norm"][0][1] > 0
    assert runs.largest_difference(runs.weights(whole), runs.weights(cut)) < 3e-6


def assert_two_are_one(root: Path, *options: str) -> None:
    options = (*STEPS, *SGD, "--data.max_tokens_per_micro_batch=60", *options)
    one, two = runs.fit(root / "one", *options), fit_on_ranks(root / "two", *options, overlay="ddp")
    assert runs.largest_difference(runs.weights(one), runs.weights(two)) < 3e-6
    alone, together = runs.scalars(one), runs.scalars(two)
    for tag in ("loss", "reward/mean", "reward/dead_groups", "optim/gradient_norm"):
        for (_, a), (_, b) in zip(alone[tag], together[tag], strict=True):
            assert a == pytest.approx(b, abs=2e-5), tag


@pytest.mark.long
def test_two_ranks_are_one(tmp_path: Path) -> None:
    assert_two_are_one(tmp_path, *GIVEN, f"--data.rewards={SILENT}", "--data.deal=shuffled")


@pytest.mark.long
@pytest.mark.parametrize("deal", ["stratified", "groups"])
def test_two_ranks_are_one_in_any_deal(tmp_path: Path, deal: str) -> None:
    assert_two_are_one(
        tmp_path, "--model.objective=GSPOToken", "--data.advantages=GroupNormalised", f"--data.deal={deal}"
    )
