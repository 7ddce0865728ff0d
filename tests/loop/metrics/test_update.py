"""Sums and metrics belong together: what is summed in training is read, and what is read is summed."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch

from gspo_lightning.core.metric_table.spec import METRICS
from gspo_lightning.core.metric_table.table import lookup, tag_pattern
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.metrics.update import update_scalars
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.update.loss import LossTerms, micro_batch_loss, mini_batch_count
from gspo_lightning.loop.update.router_loss import load_balance
from gspo_lightning.objectives import GRPO, GSPO, Objective
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import hook_routers
from tests.objectives.reference_formulas import CASES
from tests.support.model_families import build_policy

OF_ONE_OBJECTIVE = {"clip_fraction_dual"}
"""Sums without a metric of their own: they are logged as objective/<name>."""


def batch(policy: Policy) -> MicroBatch:
    """Three rows with everything that a rollout can come with."""
    ids, lengths = torch.arange(3 * 8).view(3, 8) * 7 % 38, torch.tensor([4, 2, 4])
    mask = torch.arange(4) < lengths.unsqueeze(1)
    bare = MicroBatch(ids, torch.full((3,), 4), lengths, mask, torch.tensor([1.0, -2.0, 0.5]))
    with torch.no_grad():
        logprobs, _ = policy(bare, 1.0)
    routing = policy.routing
    assert routing is not None
    routes = torch.zeros(3, 7, routing.layers, routing.top_k, dtype=torch.uint8)
    routes[..., 1] = 1  # experts 0 and 1 for every token
    noise = torch.linspace(-0.3, 0.3, logprobs.numel()).view_as(logprobs)
    return dataclasses.replace(
        bare,
        old_logprobs=logprobs + noise,
        behaviour_logprobs=logprobs - noise,
        ref_logprobs=logprobs,
        teacher_logprobs=logprobs,
        routes=routes,
        positive=torch.tensor([True, False, True]),
    )


@pytest.fixture(scope="module")
def summed() -> dict[str, tuple[float, float]]:
    """Every sum of a loss of every objective and option, by name."""
    policy = build_policy("qwen3-moe")
    policy.routing = hook_routers(policy.backbone)
    part = batch(policy)
    coefficients = {f"{name}_coef": 0.1 for name in ("kl", "entropy", "distill", "positive_nll")}
    corrected = GSPO(correction="sequence", opsm_delta=0.1, trm_delta=0.1, **coefficients)  # type: ignore[arg-type]
    found: dict[str, tuple[float, float]] = {}
    for objective in (*(case.objective for case in CASES.values()), corrected):
        found |= sums_of(objective, policy, part)
    return found


def sums_of(objective: Objective, policy: Policy, part: MicroBatch) -> dict[str, tuple[float, float]]:
    sums = MetricSums("full")
    micro_batch_loss(
        part, LossTerms(policy, CachedLogProbs(), objective, 1.0), sums=sums,
        denominator=mini_batch_count(objective, [part]), balance=load_balance(0.1, policy, [part], 1.0),
    )  # fmt: skip
    return sums.reduce()[0]


def test_every_sum_is_read_and_every_number_has_one_definition(summed: dict[str, tuple[float, float]]) -> None:
    read = {spec.reading.name for spec in METRICS if spec.reading is not None}
    assert set(summed) - read == OF_ONE_OBJECTIVE
    for tag in update_scalars(summed):
        assert len([spec for spec in METRICS if re.fullmatch(tag_pattern(spec.tag), tag)]) == 1, tag


def test_every_metric_that_is_read_from_a_sum_is_logged(summed: dict[str, tuple[float, float]]) -> None:
    expected = {spec.tag for spec in METRICS if spec.reading is not None}
    assert set(update_scalars(summed)) == expected | {f"objective/{name}" for name in OF_ONE_OBJECTIVE}


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_the_largest_ratio_is_one_of_a_response_where_all_are_below_1(level: str, policy: Policy) -> None:
    """Padding has ratio 1, and so has a row without tokens, as a rank has that fills up: no part of the update."""
    ids, lengths = torch.arange(3 * 8).view(3, 8) * 7 % 37, torch.tensor([4, 2, 0])
    mask = torch.arange(4) < lengths.unsqueeze(1)
    part = MicroBatch(ids, torch.full((3,), 4), lengths, mask, torch.tensor([1.0, -2.0, 0.5]))
    with torch.no_grad():
        logprobs, _ = policy(part, 1.0)
    part = dataclasses.replace(part, old_logprobs=logprobs + torch.tensor([[0.5], [0.4], [0.3]]))
    objective = GSPO() if level == "sequence" else GRPO()
    sums = MetricSums("full")
    terms = LossTerms(policy, CachedLogProbs(), objective, 1.0)
    micro_batch_loss(part, terms, sums=sums, denominator=mini_batch_count(objective, [part]))
    assert sums.reduce()[2]["ratio/max"] == pytest.approx(math.exp(-0.4), rel=1e-5)


def test_readings_by_hand() -> None:
    sums = {
        "loss": (0.25, 0.0),  # shares of a loss, divided already
        "log_ratio_sequence": (0.4, 2.0),  # 0.1 and 0.3
        "log_ratio_sequence_squared": (0.1, 2.0),
        "sampler_logprob_gap_squared": (0.08, 2.0),  # 0.2 and 0.2
        "clip_fraction_tokens_negative": (0.0, 0.0),  # no such tokens
        "clip_fraction_dual": (1.0, 4.0),
    }
    assert update_scalars(sums) == {
        "loss": 0.25,
        "ratio/log_sequence_mean": pytest.approx(0.2),
        "ratio/log_sequence_std": pytest.approx(0.1),
        "noise/sampler_logprob_rms": pytest.approx(0.2),
        "clip/tokens_negative": 0.0,
        "objective/clip_fraction_dual": 0.25,
    }


def test_a_number_of_an_objective_of_your_own_has_the_definition_of_all_such() -> None:
    (tag,) = update_scalars({"surprise": (1.0, 2.0)})
    assert tag == "objective/surprise"
    assert lookup(tag).tag == "objective/<name>"  # type: ignore[union-attr]
