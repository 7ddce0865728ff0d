"""Objective interface: log-probabilities and advantages in, one loss and its measurements out.

Modules with an objective do not postpone annotations: a subclass inherits its dataclass fields, and annotations as
strings could not be resolved in the subclass's module. The command line would then accept any value for them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError, check_choice, check_number
from gspo_lightning.core.signatures import accept_fields, called_with
from gspo_lightning.core.types import ObjectiveOutput
from gspo_lightning.objectives.aggregate import Aggregation, aggregate, count_rows, count_tokens, weighted_count
from gspo_lightning.objectives.corrections import Correction, CorrectionMode, Corrections
from gspo_lightning.objectives.distillation import distillation
from gspo_lightning.objectives.inputs import LossInputs, Rows
from gspo_lightning.objectives.measure import Term, measure
from gspo_lightning.objectives.options import KLEstimator, kl_estimate
from gspo_lightning.objectives.positive import positive_nll
from gspo_lightning.objectives.shapes import check_count, check_term

Level = Literal["sequence", "token"]


class Surface(ABC):  # noqa: B024 - the abstract method is in its only subclass
    """Attributes that start-up checks read; no dataclass fields: an objective without clipping needs no such option."""

    level: Level = "token"
    clip_low: float | None = None
    clip_high: float | None = None
    aggregation: Aggregation = Aggregation.SEQUENCE_MEAN


@dataclass(repr=False)
class Objective(Surface):
    """Base of all objectives: subclass it as a dataclass, implement :meth:`term`, choose ``aggregation``.

    Args:
        kl_coef: weight of a KL(policy || reference) loss term, >= 0, per nat. 0 (the GSPO paper's setting) needs no
            reference policy.
        kl_estimator: k1 | k2 | k3, see ``kl_estimate``; k3 is GRPO's.
        entropy_coef: weight of an entropy bonus, >= 0, per nat.
        distill_coef: weight of on-policy distillation, >= 0, per nat: a reverse KL(policy || teacher) loss term at
            every token that the policy sampled (``distillation``). 0 needs no teacher; above 0 needs ``model.teacher``.
        distill_exact: use the KL over the whole vocabulary instead of the sampled token's estimate: less noise, but it
            needs a teacher in this process.
        positive_nll_coef: weight of the negative log-likelihood of correct responses, >= 0, per nat, averaged over all
            their tokens in the mini-batch (VAPO, arXiv 2504.05118, which uses 0.1). A
            response is correct as in ``val/accuracy``: its accuracy reward is at least 1.
        opsm_delta: off-policy sequence mask: rows with mean(old - new) above this many nats per token are dropped if
            the advantage is negative (DeepSeek-V3.2). None turns it off.
        correction: importance weights old / behaviour for samples that another policy drew (an inference engine, a
            stale snapshot): none, per token, or per sequence (geometric mean).
        correction_cap: largest importance weight, >= 1. 2 is the usual bound of truncated importance sampling.
        correction_floor: smallest importance weight, in (0, 1]; None: no lower bound.
        correction_mode: truncate (cut weights to the bounds) or mask (drop what has a weight outside them).
        trm_delta: trust region mask: rows in which some token's estimated KL(behaviour || old) is above this many nats
            are dropped (arXiv 2512.23075); needs no ``correction``. None turns it off.
    """

    kl_coef: float = field(default=0.0, kw_only=True)
    kl_estimator: KLEstimator = field(default="k3", kw_only=True)
    entropy_coef: float = field(default=0.0, kw_only=True)
    distill_coef: float = field(default=0.0, kw_only=True)
    distill_exact: bool = field(default=False, kw_only=True)
    positive_nll_coef: float = field(default=0.0, kw_only=True)
    opsm_delta: float | None = field(default=None, kw_only=True)
    correction: Correction = field(default="none", kw_only=True)
    correction_cap: float = field(default=2.0, kw_only=True)
    correction_floor: float | None = field(default=None, kw_only=True)
    correction_mode: CorrectionMode = field(default="truncate", kw_only=True)
    trm_delta: float | None = field(default=None, kw_only=True)

    per_token_advantages: ClassVar[bool] = True
    """True if advantages [N, T] are allowed besides [N]."""
    token_correction: ClassVar[bool] = True
    """True if importance weights may differ within a sequence (False if the loss is one number per sequence)."""

    def __post_init__(self) -> None:
        check_number("kl_coef", self.kl_coef, low=0.0)
        check_number("entropy_coef", self.entropy_coef, low=0.0)
        check_number("distill_coef", self.distill_coef, low=0.0)
        check_number("positive_nll_coef", self.positive_nll_coef, low=0.0)
        check_number("correction_cap", self.correction_cap, low=1.0)
        for name in ("opsm_delta", "trm_delta"):
            delta = getattr(self, name)
            if delta is not None:
                check_number(name, delta, low=0.0)
        if self.correction_floor is not None:
            check_number("correction_floor", self.correction_floor, low=0.0, high=1.0, open_low=True)
        check_choice("kl_estimator", self.kl_estimator, get_args(KLEstimator))
        check_choice("correction", self.correction, get_args(Correction))
        check_choice("correction_mode", self.correction_mode, get_args(CorrectionMode))
        if self.correction == "token" and not self.token_correction:
            raise UserError(
                "correction",
                f"is 'token', but the loss of {type(self).__name__} is one number per sequence",
                fix="use correction='sequence', or a token-level objective such as GSPOToken",
            )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let ``__call__(self, inputs)`` be called with the fields of the inputs."""
        super().__init_subclass__(**kwargs)
        accept_fields(cls, "__call__", LossInputs)

    @abstractmethod
    def term(self, rows: Rows) -> Term:
        """Return the loss per sequence or token, the ratio before clipping, and where clipping removed the gradient.

        Shapes ([N] or [N, T]) are checked: a mean, or a transposed tensor, would be broadcast into another loss.
        """

    def count(self, response_mask: Tensor) -> Tensor:
        """Return the contribution of these rows to the denominator: a float64 scalar that sums over rows.

        Args:
            response_mask: [N, T] bool.
        """
        return (count_tokens if self.aggregation is Aggregation.TOKEN_MEAN else count_rows)(response_mask)

    def counted(self, response_mask: Tensor, row_weights: Tensor | None) -> Tensor:
        """Return :meth:`count` of rows with weights [N]; None: 1 each. Where tokens count, weights of rows do not."""
        if row_weights is None or self.aggregation is Aggregation.TOKEN_MEAN:
            return check_count(self, self.count(response_mask))
        return weighted_count(lambda row: check_count(self, self.count(row)), response_mask, row_weights)

    def unusual_clip(self) -> str | None:
        """Explain in one sentence why the clip range has the wrong scale for this objective, or return None."""
        return None

    @called_with(LossInputs)
    def __call__(self, inputs: LossInputs) -> ObjectiveOutput:
        """Return the loss of these rows, to be minimised, with its measurements.

        It is called with the fields of :class:`~gspo_lightning.objectives.inputs.LossInputs`:
        ``objective(logprobs, old_logprobs, advantages, response_mask, entropy=entropy)``.

        Raises:
            UserError: an argument has the wrong shape or dtype, is missing, or selects nothing; :meth:`term` returned
                something that does not fit.
        """
        rows = Rows.of(inputs, per_token_advantages=self.per_token_advantages)
        self._check_needed(rows)
        return self.total(rows)

    def total(self, rows: Rows) -> ObjectiveOutput:
        """Return the sum of the loss terms, each over its own denominator, with their measurements."""
        term = self.term(rows)
        check_term(self, term, rows)
        corrections = self._corrections
        weights, extra = corrections.weights(rows, term.loss)
        loss = term.loss if weights is None else term.loss * weights.reshape_as(term.loss)
        total = aggregate(loss, rows.mask, rows.lengths, self.aggregation, rows.row_weights)
        taught = distillation(rows, corrections)
        penalty = self._penalty(rows, taught.loss)
        if penalty is not None:
            total = total + aggregate(penalty, rows.mask, rows.lengths, self.aggregation, rows.row_weights)
        loss = total / self._denominator(rows)
        sums = extra | taught.sums
        if self.positive_nll_coef > 0:
            nll = positive_nll(rows)
            tokens = nll.tokens if rows.positive_tokens is None else rows.positive_tokens
            loss = loss + self.positive_nll_coef * nll.total / _divisor("positive_tokens", tokens, rows)
            sums |= nll.sums
        dropped = None if weights is None else (weights == 0).reshape(len(weights), -1)
        return ObjectiveOutput(
            loss=loss,
            ratio=torch.where(rows.valid(term.ratio), term.ratio, 1.0),
            clipped=term.clipped & rows.valid(term.ratio),
            sums=measure(rows, term, level=self.level, dropped=dropped) | sums,
        )

    @property
    def _corrections(self) -> Corrections:
        return Corrections(
            self.correction, self.correction_cap, self.correction_floor, self.correction_mode, self.trm_delta,
            self.opsm_delta,
        )  # fmt: skip

    def _check_needed(self, rows: Rows) -> None:
        if self.positive_nll_coef > 0 and (rows.denominator is None) != (rows.positive_tokens is None):
            both = ("denominator", "positive_tokens")
            given, missing = both if rows.positive_tokens is None else reversed(both)
            raise UserError(missing, f"is None, but {given} is given", fix="count both over the same mini-batch")
        exact = self.distill_exact
        coef = self.distill_coef
        for option, needed, argument, value in (
            ("kl_coef", self.kl_coef > 0, "ref_logprobs", rows.ref_logprobs),
            ("distill_coef", coef > 0 and not exact, "teacher_logprobs", rows.teacher_logprobs),
            ("distill_coef", coef > 0 and exact, "teacher_kl", rows.teacher_kl),
            ("entropy_coef", self.entropy_coef > 0, "entropy", rows.entropy),
            ("positive_nll_coef", self.positive_nll_coef > 0, "positive", rows.positive),
            ("correction", self.correction != "none", "behaviour_logprobs", rows.behaviour_logprobs),
            ("trm_delta", self.trm_delta is not None, "behaviour_logprobs", rows.behaviour_logprobs),
        ):
            if needed and value is None:
                shape = "[N]" if argument == "positive" else "[N, T]"
                raise UserError(argument, f"is None, but {option}={getattr(self, option)!r} needs it, shape {shape}")

    def _penalty(self, rows: Rows, taught: Tensor | None) -> Tensor | None:
        """Return the KL and distillation terms minus the entropy bonus, [N, T]."""
        penalty = None if taught is None or self.distill_coef == 0 else self.distill_coef * taught
        if self.kl_coef > 0 and rows.ref_logprobs is not None:
            kl = self.kl_coef * kl_estimate(rows.logprobs, rows.ref_logprobs, self.kl_estimator)
            penalty = kl if penalty is None else penalty + kl
        if self.entropy_coef > 0 and rows.entropy is not None:
            bonus = self.entropy_coef * rows.entropy
            penalty = -bonus if penalty is None else penalty - bonus
        return penalty

    def _denominator(self, rows: Rows) -> Tensor:
        if rows.denominator is None:
            value = self.counted(rows.mask, rows.row_weights)
            if value.device.type == "cpu" and float(value) <= 0:
                raise UserError(
                    "response_mask",
                    f"of shape {tuple(rows.mask.shape)} selects nothing, but a mini-batch needs one response token",
                    fix="pass denominator= for a micro-batch that may be empty",
                )
            return _divisor("denominator", value, rows)
        return _divisor("denominator", rows.denominator, rows)

    def __repr__(self) -> str:
        options = [f for f in fields(self) if not f.kw_only or getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in options)})"


def _divisor(name: str, count: Tensor | float, rows: Rows) -> Tensor:
    """Return a count in the dtype of the loss; 1 if nothing was counted, so a loss is 0 / 1 and not 0 / 0."""
    if isinstance(count, Tensor):
        value = count.detach()
    else:
        check_number(name, count, low=0.0)
        value = torch.tensor(count, dtype=torch.float64, device=rows.logprobs.device)
    if value.ndim != 0:
        raise UserError(name, f"has shape {tuple(value.shape)}, but must be one number")
    value = value.to(device=rows.logprobs.device, dtype=rows.logprobs.dtype)
    return torch.where(value > 0, value, 1.0)
