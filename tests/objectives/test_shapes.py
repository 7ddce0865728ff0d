"""A tensor of a wrong shape is refused by name and not broadcast into another loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.objectives import (
    GRPO,
    Objective,
    RatioClip,
    Rows,
    Segment,
    Term,
)  # fmt: skip
from gspo_lightning.objectives.trial import try_objective
from tests.objectives.reference_formulas import FAMILY, example, made

TRIED: list[Objective] = [
    *(made(name) for name in FAMILY), *(Segment(by=by) for by in ("turn", "given")), GRPO(dual_clip=3.0),
    GRPO(kl_coef=0.1, entropy_coef=0.1, correction="token", opsm_delta=0.1),
]  # fmt: skip


@dataclass(repr=False)
class Made(Objective):
    """Returns what a test wants it to."""

    make: ClassVar[Callable[[Rows], Any]]

    def term(self, rows: Rows) -> Term:
        found: Term = type(self).make(rows)
        return found


def good(rows: Rows) -> dict[str, Tensor]:
    return {"loss": -rows.log_ratio * rows.token_advantages, "ratio": rows.log_ratio.detach().exp()}


def call(make: Callable[[Rows], Any]) -> None:
    Made.make = staticmethod(make)
    new, old, advantages, mask = example()
    Made()(new.requires_grad_(), old, advantages, mask)


SHAPES: dict[str, tuple[Callable[[Rows], Any], str]] = {
    "a mean": (lambda r: Term(**good(r) | {"loss": good(r)["loss"].mean()}), r"loss a float64 tensor of shape \(\)"),
    "transposed": (lambda r: Term(**good(r) | {"loss": good(r)["loss"].T}), r"loss a float64 tensor of shape"),
    "a column": (lambda r: Term(**good(r) | {"loss": good(r)["loss"][:, :1]}), r"loss a float64 tensor of shape"),
    "one a token place": (lambda r: Term(**good(r) | {"loss": good(r)["loss"][0]}), r"loss a float64 tensor of shape"),
    "a number": (lambda r: Term(**good(r) | {"loss": 1.0}), "loss an object of type float"),
    "flags for a loss": (lambda r: Term(**good(r) | {"loss": r.mask}), "loss a bool tensor"),
    "ratio": (lambda r: Term(**good(r) | {"ratio": good(r)["ratio"].mean()}), r"ratio a float64 tensor of shape \(\)"),
    "clipped": (lambda r: Term(**good(r), low=r.mask[0]), "low a bool tensor of shape"),
    "clipped at another level": (lambda r: Term(**good(r), high=r.nonempty), r"high of shape \(\d,\), but ratio has"),
    "clipped below at another level": (
        lambda r: Term(**good(r), low=r.nonempty),
        r"low of shape \(\d,\), but ratio has",
    ),
    "capped at another level": (lambda r: Term(**good(r), dual=r.nonempty), r"dual of shape \(\d,\), but ratio has"),
    "clipped as numbers": (lambda r: Term(**good(r), low=r.lengths), "low a float64 tensor"),
    "outside": (lambda r: Term(**good(r), outside=r.mask.any()), r"outside a bool tensor of shape \(\)"),
    "no Term": (lambda r: good(r)["loss"], "returned a float64 tensor .* but must return a Term"),
    "nothing": (lambda r: None, "an object of type NoneType, but must return a Term"),
    "detached": (lambda r: Term(**good(r) | {"loss": good(r)["loss"].detach()}), "a loss without a gradient"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_malformed_output_of_a_term_is_refused_by_name(name: str) -> None:
    make, said = SHAPES[name]
    with pytest.raises(UserError, match=said) as error:
        call(make)
    assert error.value.field == "Made.term"
    if "shape" in said and "level" not in name and "but" not in said:
        new = example()[0]
        assert f"[N] = ({len(new)},) or [N, T] = {tuple(new.shape)}" in str(error.value)


def test_a_square_micro_batch_hides_a_transposed_loss_but_the_trial_does_not() -> None:
    Made.make = staticmethod(lambda r: Term(**good(r) | {"loss": good(r)["loss"].T}))
    square = torch.randn(3, 3, requires_grad=True)
    Made()(square, square.detach(), torch.ones(3), torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(UserError, match=r"shape \(3, 2\), but with 2 responses of up to 3 tokens"):
        try_objective(Made())


@pytest.mark.parametrize("objective", TRIED, ids=repr)
def test_the_family_passes_the_trial(objective: Objective) -> None:
    try_objective(objective)


@dataclass(repr=False)
class WholeRatio(RatioClip):
    """One ratio for all responses."""

    clip_low: float = 0.1
    clip_high: float = 0.1

    def log_ratio(self, rows: Rows) -> Tensor:
        return rows.log_ratio.mean()


@dataclass(repr=False)
class RowCount(GRPO):
    """A denominator for each row."""

    def count(self, response_mask: Tensor) -> Tensor:
        return response_mask.sum(-1).double()


def test_other_methods_of_an_objective_are_checked_too() -> None:
    with pytest.raises(UserError, match=r"WholeRatio.log_ratio: returned as log-ratio a float32 tensor of shape \(\)"):
        try_objective(WholeRatio())
    with pytest.raises(UserError, match=r"RowCount.count: returned a float64 tensor of shape \(2,\)"):
        try_objective(RowCount())
    new, old, advantages, mask = example()
    with pytest.raises(UserError, match=r"RowCount.count"):
        RowCount()(new, old, advantages, mask)
