"""What the equations alone do not pin down: exact bounds, defaults, and that nothing under the mask is ever used."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.objectives import (
    CISPO,
    DPPOTV,
    GMPO,
    GRPO,
    GSPO,
    LUSPO,
    SAPO,
    VESPO,
    Aggregation,
    DrGRPO,
    LossInputs,
    MultiScale,
    Objective,
    RatioClip,
    Rows,
    Segment,
    Term,
    segments_by_turn,
)
from gspo_lightning.objectives.aggregate import aggregate
from tests.objectives.reference_formulas import CASES, NAMES, example, make_batch, run

BOUNDS: list[tuple[type[Objective], str, list[float], list[float]]] = [
    # class, option, accepted, refused
    (GRPO, "clip_low", [0.0, 0.99], [1.0, 1.5, -0.01]),
    (GRPO, "clip_high", [0.0, 50.0], [-0.01]),
    (GRPO, "dual_clip", [1.01], [1.0, 0.5]),
    (GRPO, "kl_coef", [0.0, 0.5], [-0.01]),
    (GRPO, "entropy_coef", [0.0, 0.5], [-0.01]),
    (GRPO, "distill_coef", [0.0, 0.5], [-0.01]),
    (GRPO, "positive_nll_coef", [0.0, 0.5], [-0.01]),
    (GRPO, "opsm_delta", [0.0, 0.5], [-0.01]),
    (GRPO, "correction_cap", [1.0, 1.5], [0.99, -0.5]),
    (GSPO, "adaptive_length", [0.5], [0.0, -0.5]),
    (GSPO, "length_norm", [0.0, 0.5], [-0.01]),
    (CISPO, "clip_low", [0.0, 1.0], [1.01, -0.01]),
    (CISPO, "clip_high", [0.0], [-0.01]),
    (GMPO, "clip_low", [0.0, 5.0], [-0.01]),
    (GMPO, "clip_high", [0.0, 5.0], [-0.01]),
    (DPPOTV, "clip_low", [0.0, 1.0], [1.01, -0.01]),
    (DPPOTV, "clip_high", [0.0, 1.0], [1.01, -0.01]),
    (SAPO, "tau_pos", [0.5], [0.0, -0.5]),
    (SAPO, "tau_neg", [0.5], [0.0, -0.5]),
    *((VESPO, name, [0.0, 0.5], [-0.01]) for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")),
    (DrGRPO, "max_response_tokens", [1], [0]),
    (MultiScale, "alpha", [0.0, 1.0], [1.01, -0.01]),
    (Segment, "segment_length", [1], [0]),
]


@pytest.mark.parametrize(("cls", "option", "accepted", "refused"), BOUNDS, ids=lambda v: getattr(v, "__name__", None))
def test_bounds_are_exact(cls: type[Objective], option: str, accepted: list[float], refused: list[float]) -> None:
    needed: dict[str, Any] = {"max_response_tokens": 8} if cls is DrGRPO else {}
    for value in accepted:
        assert getattr(cls(**(needed | {option: value})), option) == value
    for value in refused:
        with pytest.raises(UserError, match=option):
            cls(**(needed | {option: value}))


def test_options_of_every_objective_have_these_defaults_and_are_keywords() -> None:
    options = {f.name: f.default for f in fields(Objective)}
    assert options == {
        "kl_coef": 0.0,
        "kl_estimator": "k3",
        "entropy_coef": 0.0,
        "distill_coef": 0.0,
        "distill_exact": False,
        "positive_nll_coef": 0.0,
        "opsm_delta": None,
        "correction": "none",
        "correction_cap": 2.0,
        "correction_floor": None,
        "correction_mode": "truncate",
        "trm_delta": None,
    }
    parameters = inspect.signature(GSPO).parameters
    keywords = {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert keywords == {*options, "dual_clip", "length_norm", "adaptive_length"}
    assert (parameters["length_norm"].default, parameters["adaptive_length"].default) == ("mean", 1024.0)


@pytest.mark.parametrize(
    ("objective", "unusual"),
    [
        (GSPO(0.01, 0.01), False),
        (GSPO(0.01, 0.0101), True),
        (GSPO(0.0101, 0.01), True),
        (GRPO(1e-3, 1e-3), False),
        (GRPO(1e-3, 0.99e-3), True),
        (GRPO(0.99e-3, 1e-3), True),
        (CISPO(1.0, 1e-3), False),
        (CISPO(1.0, 0.99e-3), True),
        (Segment(0.1, 0.1), False),
        (Segment(0.1, 0.101), True),
        (Segment(0.101, 0.1), True),
        (Segment(3e-4, 4e-4), False),
        (Segment(3e-4, 4e-4, by="turn", segment_length=1), False),
        (GSPO(0.2, 0.2, length_norm="adaptive"), True),
        (GSPO(0.2, 0.2, length_norm="sqrt"), False),
        (GSPO(0.2, 0.2, length_norm=1.0), True),
        (GSPO(0.2, 0.2, length_norm=0.0), False),
        (GSPO(0.2, 0.2, length_norm=2.0), False),
    ],
    ids=repr,
)
def test_the_scale_of_a_clip_range_is_judged_at_exact_bounds(objective: Objective, unusual: bool) -> None:
    assert (objective.unusual_clip() is not None) == unusual


def test_aggregation_reads_nothing_under_the_mask() -> None:
    mask = torch.tensor([[True, False, True], [False, False, False]])
    lengths = torch.tensor([2.0, 0.0])
    tokens, rows = torch.tensor([[1.0, 50.0, 3.0], [70.0, 80.0, 90.0]]), torch.tensor([5.0, 60.0])
    for how, of_tokens, of_rows in (
        (Aggregation.SEQUENCE_MEAN, 2.0, 5.0),
        (Aggregation.SEQUENCE_SUM, 4.0, 10.0),
        (Aggregation.TOKEN_MEAN, 4.0, 10.0),
    ):
        assert aggregate(tokens, mask, lengths, how) == of_tokens
        assert aggregate(rows, mask, lengths, how) == of_rows


@dataclass(repr=False)
class Noisy(Objective):
    """An objective that leaves values everywhere, also under the mask."""

    per_row: bool = False

    def term(self, rows: Rows) -> Term:
        like = rows.logprobs[:, 0] if self.per_row else rows.logprobs
        full = torch.full_like(like.detach(), 3.0)
        yes = torch.ones_like(full, dtype=torch.bool)
        return Term(loss=full + 0 * like, ratio=full, low=yes, high=~yes, outside=yes, clamped=yes, flat=yes)


@pytest.mark.parametrize("per_row", [False, True])
def test_whatever_an_objective_leaves_under_the_mask_is_not_used(per_row: bool) -> None:
    new, old, advantages, mask = example()
    mask = mask.clone()
    mask[1] = False
    objective = Noisy(per_row=per_row, correction="sequence" if per_row else "token")
    out, _ = run(objective, new, old, advantages, mask, behaviour_logprobs=old)
    valid = mask.any(-1) if per_row else mask
    assert out.loss == 3.0
    assert torch.equal(out.ratio, torch.where(valid, 3.0, 1.0).double())
    assert torch.equal(out.clipped, valid)
    count = float(valid.sum())
    assert out.sums["ratio"] == (3 * count, count)
    assert out.sums["ratio_squared"] == (9 * count, count)
    assert out.sums["clamped_ratios"] == out.sums["outside_band"] == (count, count)
    assert out.sums["correction_weight"] == out.sums["correction_weight_squared"] == (count, count)
    tokens = float(mask.sum())
    for name in ("clip_fraction_tokens", "clip_fraction_low", "zero_gradient_tokens"):
        assert out.sums[name] == (tokens, tokens)
    assert out.sums["clip_fraction_high"] == (0, tokens)
    assert out.sums["clip_fraction_tokens_positive"] == (tokens, tokens)
    assert out.sums["clip_fraction_tokens_negative"] == (0, 0)


@pytest.mark.parametrize("cls", [GSPO, LUSPO])
def test_sequence_weights_are_summed_over_rows(cls: type[Objective]) -> None:
    new, old, advantages, mask = example()
    behaviour = old - torch.tensor([[0.1], [-0.2], [0.3]])
    out = cls(correction="sequence")(new, old, advantages, mask, behaviour_logprobs=behaviour)
    weights = [math.exp(x) for x in (0.1, -0.2, 0.3)]
    assert [float(x) for x in out.sums["correction_weight"]] == pytest.approx([sum(weights), 3])
    assert [float(x) for x in out.sums["correction_weight_squared"]] == pytest.approx([sum(w * w for w in weights), 3])


def grid(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_rows_with_exactly_zero_or_positive_advantage_are_never_dropped_as_off_policy() -> None:
    old = grid([0.0, 0.0]).repeat(5, 1)
    new = old - grid([0.3], [0.3], [0.3], [0.3], [0.0])
    mask = torch.ones(5, 2, dtype=torch.bool)
    mask[4] = False
    advantages = torch.tensor([-1.0, -0.01, 0.0, 0.5, -1.0], dtype=torch.float64)
    for cls in (GSPO, GRPO):
        out, grad = run(cls(0.9, 9.0, opsm_delta=0.2), new, old, advantages, mask)
        assert out.sums["opsm_dropped_sequences"] == (2, 4)
        assert (grad[:, 0] != 0).tolist() == [False, False, False, True, False]
    per_token = torch.tensor([[1.0, -1.0]] + [[1.0, 1.0]] * 4, dtype=torch.float64)
    out, grad = run(GRPO(0.9, 9.0, opsm_delta=0.2), new, old, per_token, mask)
    assert out.sums["opsm_dropped_sequences"] == (1, 4), "one token with negative advantage is enough to count the row"
    assert (grad[0] != 0).tolist() == [True, False]


def test_a_delta_is_exceeded_and_not_reached() -> None:
    old, mask = grid([0.0, 0.0]), torch.ones(1, 2, dtype=torch.bool)
    out = GRPO(opsm_delta=0.25)(old - 0.25, old, torch.tensor([-1.0]).double(), mask)
    assert out.sums["opsm_dropped_sequences"] == (0, 1)


def test_kl_term_and_entropy_bonus_together() -> None:
    new, old, advantages, mask = example()
    ref, entropy = new.detach() - 0.3, torch.full_like(old, 0.7)
    base, base_grad = run(GRPO(), new, old, advantages, mask)
    out, grad = run(
        GRPO(kl_coef=0.5, kl_estimator="k1", entropy_coef=0.1),
        *(new, old, advantages, mask),
        ref_logprobs=ref,
        entropy=entropy,
    )
    assert float(out.loss - base.loss) == pytest.approx(0.5 * 0.3 - 0.1 * 0.7, abs=1e-12)
    lengths = mask.sum(-1, keepdim=True).double()
    assert torch.allclose(grad - base_grad, torch.where(mask, 0.5 / lengths / 3, 0.0), atol=1e-12, rtol=0)


def test_inputs_of_options_that_are_off_may_be_infinite() -> None:
    """A reference that rules a token out: 0 times infinity must not reach the loss."""
    new, old, advantages, mask = example()
    base, base_grad = run(GSPO(0.2, 0.2), new, old, advantages, mask)
    for name in ("ref_logprobs", "entropy", "behaviour_logprobs"):
        out, grad = run(GSPO(0.2, 0.2), new, old, advantages, mask, **{name: torch.full_like(old, -math.inf)})
        assert torch.equal(out.loss, base.loss)
        assert torch.equal(grad, base_grad)


def test_a_denominator_may_be_below_one_and_gets_no_gradient() -> None:
    new, old, advantages, mask = example()
    one = GRPO()(new, old, advantages, mask, denominator=1.0).loss
    for half in (0.5, torch.tensor(0.5, requires_grad=True)):
        out = GRPO()(new, old, advantages, mask, denominator=half)
        assert torch.allclose(out.loss, 2 * one, atol=1e-15)
        out.loss.backward()
        assert getattr(half, "grad", None) is None


TIES: list[tuple[Objective, list[list[float]], list[list[float]]]] = [
    # exp(log 2) is exactly 2 and exp(log 0.5) exactly 0.5, so that each value is exactly on a bound
    (GRPO(0.5, 1.0), [[math.log(2), math.log(0.5)]], [[0.0, 0.0]]),
    (GSPO(0.5, 1.0), [[math.log(2)], [math.log(0.5)]], [[0.0], [0.0]]),
    (CISPO(0.5, 1.0), [[math.log(2), math.log(0.5)]], [[0.0, 0.0]]),
    (GMPO(0.25, 0.5), [[0.5, -0.25]], [[0.0, 0.0]]),
    (DPPOTV(0.5, 0.5), [[0.0, math.log(0.5)]], [[math.log(0.5), 0.0]]),
]


@pytest.mark.parametrize(("objective", "new", "old"), TIES, ids=lambda v: repr(v) if isinstance(v, Objective) else "")
def test_ratio_exactly_on_a_clip_bound_is_not_clipped(
    objective: Objective, new: list[list[float]], old: list[list[float]]
) -> None:
    for sign in (1.0, -1.0):
        advantages = torch.full((len(new),), sign, dtype=torch.float64)
        mask = torch.ones(len(new), len(new[0]), dtype=torch.bool)
        out, grad = run(objective, grid(*new), grid(*old), advantages, mask)
        assert out.sums["outside_band"][0] == 0
        assert not out.clipped.any()
        assert (grad != 0).all()


def test_a_ratio_exactly_at_the_dual_clip_keeps_its_gradient() -> None:
    mask = torch.ones(1, 1, dtype=torch.bool)
    for cls in (GRPO, GSPO):
        out, grad = run(
            cls(0.2, 0.2, dual_clip=2.0), grid([math.log(2)]), grid([0.0]), torch.tensor([-1.0]).double(), mask
        )
        assert not out.clipped.any()
        assert grad.item() == pytest.approx(2.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_log_ratio_exactly_at_the_limit_is_not_counted_as_limited(name: str) -> None:
    objective, mask = CASES[name].objective, torch.ones(1, 1, dtype=torch.bool)
    for step in (20.0, -20.0):
        for sign in (1.0, -1.0):
            at = objective(grid([step]), grid([0.0]), torch.tensor([sign]).double(), mask)
            assert at.sums["clamped_ratios"] == (0, 1)
            beyond = objective(grid([1.01 * step]), grid([0.0]), torch.tensor([sign]).double(), mask)
            assert beyond.sums["clamped_ratios"] == (1, 1)


def test_a_far_geometric_mean_takes_the_gradient_of_the_whole_row() -> None:
    out, grad = run(GMPO(), grid([50.0, 0.0]), grid([0.0, 0.0]), torch.tensor([-1.0]).double(), grid([1, 1]).bool())
    assert out.sums["clamped_ratios"] == (2, 2)
    assert out.sums["zero_gradient_tokens"] == (2, 2)
    assert not grad.any()


@dataclass(repr=False)
class Hollow(RatioClip):
    """A ratio that is undefined under the mask."""

    clip_low: float = 0.2
    clip_high: float = 0.2

    def log_ratio(self, rows: Rows) -> torch.Tensor:
        return rows.log_ratio + torch.where(rows.mask, 0.0, math.nan)


def test_a_ratio_that_is_undefined_under_the_mask_harms_nothing() -> None:
    expected, expected_grad = run(GRPO(0.2, 0.2), *example())
    with torch.autograd.detect_anomaly():
        out, grad = run(Hollow(), *example())
    assert torch.equal(out.loss, expected.loss)
    assert torch.equal(grad, expected_grad)
    assert all(torch.equal(a, b) for k in out.sums for a, b in zip(out.sums[k], expected.sums[k], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_empty_rows_are_in_no_sum_and_the_ratio_has_no_graph(name: str) -> None:
    new, old, advantages, mask = make_batch(7, [2, 0, 4, 0])
    extras = {"ref_logprobs": old - 0.1, "behaviour_logprobs": old + 0.2, "entropy": -old}
    keep = mask.any(dim=-1)
    objective = CASES[name].objective
    out, _ = run(objective, new, old, advantages, mask, **extras)
    short, _ = run(
        objective, *(x[keep] for x in (new, old, advantages, mask)), **{k: v[keep] for k, v in extras.items()}
    )
    for key, (value, count) in short.sums.items():
        assert torch.allclose(out.sums[key][0], value, atol=1e-13, rtol=1e-13), key
        assert torch.equal(out.sums[key][1], count), key
    leaf = new.clone().requires_grad_()
    assert not objective(leaf, old, advantages, mask).ratio.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_no_nan_arises_anywhere_and_no_sum_has_a_graph(name: str) -> None:
    new, old, advantages, mask = make_batch(7, [2, 0, 4, 0])
    new, entropy = new.requires_grad_(), (-old).requires_grad_()
    with torch.autograd.detect_anomaly():  # which raises at the first NaN, also at one that a mask would hide later
        out = CASES[name].objective(new, old, advantages, mask, entropy=entropy, ref_logprobs=old - 0.1)
        out.loss.backward()
    assert {"entropy", "kl_new_ref_k1", "kl_old_new_k1"} <= set(out.sums)
    assert not any(value.requires_grad or count.requires_grad for value, count in out.sums.values())


def test_small_advantages_have_a_sign_too() -> None:
    new, old, _, mask = example()
    out = GRPO(0.05, 0.05)(new, old, torch.tensor([0.01, -0.01, 0.02]).double(), mask)
    assert out.sums["clip_fraction_tokens_positive"] == (3, 7)
    assert out.sums["clip_fraction_tokens_negative"] == (2, 2)


def test_squares_of_the_segments_ratios_are_averaged_over_the_tokens_of_a_row() -> None:
    out = Segment(0.5, 0.5, by="length", segment_length=2)(
        grid([0.1, 0.1, 0.4, 0.4]), grid([0.0] * 4), torch.ones(1).double(), torch.ones(1, 4, dtype=torch.bool)
    )
    assert float(out.sums["ratio"][0]) == pytest.approx((math.exp(0.1) + math.exp(0.4)) / 2)
    assert float(out.sums["ratio_squared"][0]) == pytest.approx((math.exp(0.2) + math.exp(0.8)) / 2)


def test_everything_under_the_mask_is_zero_before_any_arithmetic() -> None:
    new, old, _, mask = example()
    junk = {
        name: torch.where(mask, old, math.nan) for name in ("ref_logprobs", "behaviour_logprobs", "entropy", "logprobs")
    }
    per_token = torch.where(mask, old, math.nan)
    segments = torch.where(mask, 1, -7)
    rows = Rows.of(
        LossInputs(old_logprobs=per_token, advantages=per_token, response_mask=mask, segments=segments, **junk)
    )
    for name in (*junk, "old_logprobs", "advantages", "log_ratio", "token_advantages"):
        value = getattr(rows, name)
        assert not value[~mask].any(), name
        assert torch.equal(value[mask], torch.zeros(9).double() if name == "log_ratio" else old[mask]), name
    assert rows.segments is not None
    assert rows.segments.tolist() == mask.long().tolist()
    some = torch.tensor([1.0, math.nan, 2.0]).double()
    empty = Rows.of(LossInputs(new, old, some, mask & torch.tensor([[1], [0], [1]]).bool()))
    assert empty.advantages.tolist() == [1.0, 0.0, 2.0]
    assert empty.token_advantages.tolist() == [[1.0] * 4, [0.0] * 4, [2.0] * 3 + [0.0]]


def test_turns_are_told_by_the_gaps_of_the_mask() -> None:
    mask = torch.tensor([[False, True, True, False, False, True, False], [True, False, True, True, True, True, True]])
    assert segments_by_turn(mask).tolist() == [[0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1, 1]]
    new = torch.where(mask, grid([0.0, 0.1, 0.3, 0.0, 0.0, -0.2, 0.0], [0.4, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5]), 9.0)
    out, _ = run(Segment(0.9, 9.0, by="turn"), new, torch.zeros_like(new), torch.ones(2).double(), mask)
    expected = [[0, 0.2, 0.2, 0, 0, -0.2, 0], [0.4, 0, *[0.3] * 5]]
    assert torch.allclose(out.ratio.log(), grid(*expected), atol=1e-15, rtol=0)


def test_all_tokens_may_be_in_one_given_segment() -> None:
    new, old, advantages, mask = example()
    objective = Segment(0.9, 0.9, by="given")
    out = objective(new, old, advantages, mask, segments=torch.zeros_like(mask, dtype=torch.int64))
    assert torch.allclose(out.loss, GSPO(0.9, 0.9)(new, old, advantages, mask).loss, atol=1e-15)


def test_the_mean_of_an_empty_row_is_zero() -> None:
    new, old, advantages, mask = example()
    rows = Rows.of(LossInputs(new, old, advantages, torch.zeros_like(mask)))
    assert rows.mean(rows.log_ratio).tolist() == [0.0, 0.0, 0.0]


def test_a_segment_has_64_tokens_by_default() -> None:
    width = 70
    new = torch.linspace(0, 0.01, width, dtype=torch.float64).unsqueeze(0)
    out = Segment()(new, torch.zeros_like(new), torch.zeros(1).double(), torch.ones(1, width, dtype=torch.bool))
    assert (out.ratio[0, 1:] != out.ratio[0, :-1]).nonzero().flatten().tolist() == [63]


def test_the_level_follows_the_options() -> None:
    assert [MultiScale(a).level for a in (0.0, 0.99, 1.0)] == ["token", "token", "sequence"]
    assert [Segment(segment_length=n).level for n in (1, 2)] == ["token", "sequence"]
