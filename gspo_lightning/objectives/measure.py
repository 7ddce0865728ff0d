"""Measurements of every objective, as (sum, count) pairs that add up over micro-batches and ranks.

No value is copied to the host (no GPU synchronisation). A mean is ``sum / count`` after all pairs were added; the
effective sample size of a mini-batch is ``ratio.sum ** 2 / ratio_squared.sum``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.objectives.inputs import Rows, clamp_log_ratio

Sums = dict[str, tuple[Tensor, Tensor]]


@dataclass(slots=True)
class Term:
    """Result of an objective before options and aggregation, at level [N] or [N, T].

    ``loss`` to minimise (finite everywhere), at its own level. ``ratio`` detached, before clipping. ``low``, ``high``
    and ``dual`` mark, at the level of ``ratio``, where that bound removed the gradient; None if there is no such
    bound. The objective decides by which rule; all metrics of clipping count these marks. ``outside`` marks ratios
    outside the band, clipped or not; ``clamped`` marks log-ratios that were limited for numerical safety, ``flat``
    those among them that lost their gradient.
    """

    loss: Tensor
    ratio: Tensor
    low: Tensor | None = None
    high: Tensor | None = None
    dual: Tensor | None = None
    outside: Tensor | None = None
    clamped: Tensor | None = None
    flat: Tensor | None = None

    @property
    def clipped(self) -> Tensor:
        """Mask of removed gradients: True where clipping took the gradient away, at the level of ``ratio``."""
        clipped = torch.zeros_like(self.ratio, dtype=torch.bool)
        for side in (self.low, self.high, self.dual):
            if side is not None:
                clipped = clipped | side
        return clipped


def measure(rows: Rows, term: Term, *, level: str, dropped: Tensor | None = None) -> Sums:
    """Return the sums of one call.

    Args:
        rows: the inputs.
        term: the result of the objective.
        level: level of the ratio, "sequence" or "token"; metrics of the ratio count these.
        dropped: [N, 1] or [N, T] bool, tokens whose weight an option set to zero.
    """
    sums: Sums = {}
    with torch.no_grad():
        _measure_clipping(sums, rows, term, level, dropped)
        _measure_ratio(sums, rows, term, level)
        _measure_drift(sums, rows)
    return sums


def _measure_clipping(sums: Sums, rows: Rows, term: Term, level: str, dropped: Tensor | None) -> None:
    mask = rows.mask
    advantages = rows.token_advantages  # neither positive nor negative at masked positions
    clipped = _tokens(term.clipped)
    sums["clip_fraction_tokens"] = _pair(clipped, mask)
    for name, side in (("low", term.low), ("high", term.high), ("dual", term.dual)):
        if side is not None:
            sums[f"clip_fraction_{name}"] = _pair(_tokens(side), mask)
    for name, sign in (("positive", advantages > 0), ("negative", advantages < 0)):
        sums[f"clip_fraction_tokens_{name}"] = _pair(clipped, sign)
    if level == "sequence":
        sums["clip_fraction_sequences"] = _pair(_rows(term.clipped, rows), rows.nonempty)
    if term.outside is not None:
        outside = _rows(term.outside, rows) if level == "sequence" else term.outside
        sums["outside_band"] = _pair(outside, rows.valid(outside))
    zero = clipped | (advantages == 0)
    if term.flat is not None:
        zero = zero | _tokens(term.flat)
    if dropped is not None:
        zero = zero | dropped
    sums["zero_gradient_tokens"] = _pair(zero, mask)


def _measure_ratio(sums: Sums, rows: Rows, term: Term, level: str) -> None:
    ratio = _rows(term.ratio, rows) if level == "sequence" else term.ratio
    sums["ratio"] = _pair(ratio, rows.valid(ratio))
    squared = _rows(term.ratio.double().square(), rows) if level == "sequence" else ratio.double().square()
    sums["ratio_squared"] = _pair(squared, rows.valid(ratio))
    if term.clamped is not None:
        sums["clamped_ratios"] = _pair(term.clamped, rows.valid(term.clamped))


def _measure_drift(sums: Sums, rows: Rows) -> None:
    log_ratio = rows.log_ratio.double()
    per_row = rows.mean(log_ratio)
    sums["log_ratio_sequence"] = _pair(per_row, rows.nonempty)
    sums["log_ratio_sequence_squared"] = _pair(per_row.square(), rows.nonempty)
    sums["kl_old_new_k1"] = _pair(-log_ratio, rows.mask)
    sums["kl_old_new_k3"] = _pair(torch.expm1(clamp_log_ratio(log_ratio)) - log_ratio, rows.mask)
    if rows.entropy is not None:
        sums["entropy"] = _pair(rows.entropy, rows.mask)
    for name, other in (("behaviour_old", rows.behaviour_logprobs), ("new_ref", rows.ref_logprobs)):
        if other is not None:  # samples come from the first policy of each name; x = log first - log second
            x = (other - rows.old_logprobs if name == "behaviour_old" else rows.logprobs - other).double()
            sums[f"kl_{name}_k1"] = _pair(x, rows.mask)
            sums[f"kl_{name}_k3"] = _pair(torch.expm1(clamp_log_ratio(-x)) + x, rows.mask)


def _tokens(values: Tensor) -> Tensor:
    """Return [N] as [N, 1]; leave [N, T] unchanged."""
    return values.unsqueeze(-1) if values.ndim == 1 else values


def _rows(values: Tensor, rows: Rows) -> Tensor:
    """Return [N] unchanged; average [N, T] over the tokens of a row."""
    return values if values.ndim == 1 else rows.mean(torch.where(rows.mask, values.double(), 0.0))


def _pair(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(valid, values.double(), 0.0).sum(), valid.sum().double()
