"""What the equations alone do not pin down: exact bounds, defaults, and that nothing under the mask is ever used."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from reference_formulas import example, run

from gspo_lightning.errors import UserError
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
    MultiScale,
    Objective,
    Rows,
    Segment,
    Term,
)
from gspo_lightning.objectives.aggregate import aggregate

BOUNDS: list[tuple[type[Objective], str, list[float], list[float]]] = [
    # class, option, accepted, refused
    (GRPO, "clip_low", [0.0, 0.99], [1.0, 1.5, -0.01]),
    (GRPO, "clip_high", [0.0, 50.0], [-0.01]),
    (GRPO, "dual_clip", [1.01], [1.0, 0.5]),
    (GRPO, "kl_coef", [0.0, 0.5], [-0.01]),
    (GRPO, "entropy_coef", [0.0, 0.5], [-0.01]),
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
        "opsm_delta": None,
        "correction": "none",
        "correction_cap": 2.0,
        "correction_mode": "truncate",
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
    objective = Noisy(per_row=per_row, correction="token" if not per_row else "sequence")
    out, _ = run(objective, new, old, advantages, mask, behaviour_logprobs=old)
    rows = 0 if not per_row else None
    valid = mask if rows is not None else mask.any(-1)
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
