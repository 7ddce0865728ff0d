"""Inputs of an objective, and Rows: the same, checked and cleaned.

Every value at a masked position is replaced before any arithmetic, so none of them enters a computation: a ``where``
after an ``exp`` gives NaN gradients with a finite loss.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError

LOG_RATIO_LIMIT = 20.0
"""Nats. Log-ratios are clamped to +-20 before ``exp`` (a factor of 4.9e8 either way); a metric counts how often."""


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Clamp ``log_ratio`` to +-:data:`LOG_RATIO_LIMIT`; the gradient is zero where that changes the value."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


_DETACHED = {"gradient": False}
_TRAINED = {"gradient": True}
"""Marks of inputs [N, T] of floating-point numbers; the others are checked one by one."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs of a loss: N rows of up to T tokens, as a caller has them.

    The only list of them: an objective is called with these names, and a new one is a field here, which
    :meth:`Rows.of` checks and clears at masked positions.
    """

    logprobs: Tensor = field(metadata=_TRAINED)
    """[N, T] log-probabilities of the policy, nats, with gradient."""
    old_logprobs: Tensor = field(metadata=_DETACHED)
    """[N, T] log-probabilities of the old policy, by which the ratio divides."""
    advantages: Tensor
    """[N], or [N, T] if the objective allows it."""
    response_mask: Tensor
    """[N, T] bool, True on tokens that the policy chose. Values elsewhere are never read."""
    _: KW_ONLY
    ref_logprobs: Tensor | None = field(default=None, metadata=_DETACHED)
    """[N, T] of the reference policy; needed with ``kl_coef``."""
    behaviour_logprobs: Tensor | None = field(default=None, metadata=_DETACHED)
    """[N, T] of the policy that drew the samples; needed with ``correction``, ``trm_delta``."""
    entropy: Tensor | None = field(default=None, metadata=_TRAINED)
    """[N, T] nats; needed with ``entropy_coef``."""
    segments: Tensor | None = None
    """[N, T] int64 in [0, T), for objectives over segments."""
    teacher_logprobs: Tensor | None = field(default=None, metadata=_DETACHED)
    """[N, T] of the teacher; needed with ``distill_coef``."""
    teacher_kl: Tensor | None = field(default=None, metadata=_TRAINED)
    """[N, T] nats with gradient, KL(policy || teacher) over the vocabulary at each token; needed with ``distill_coef``
    if ``distill_exact`` is set, instead of ``teacher_logprobs``."""
    positive: Tensor | None = None
    """[N] bool, True for correct responses; needed with ``positive_nll_coef``."""
    row_weights: Tensor | None = None
    """[N] >= 0, weights of rows that share a rollout; None: 1 each."""
    denominator: Tensor | float | None = None
    """:meth:`Objective.counted` summed over all micro-batches and ranks of the mini-batch; None if this call is the
    whole mini-batch."""
    positive_tokens: Tensor | float | None = None
    """Response tokens of correct responses, counted over the same mini-batch; with ``positive_nll_coef``, give it if
    and only if ``denominator`` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(LossInputs):
    """Inputs ready for arithmetic: checked, float32 or wider, zero at masked positions.

    ``logprobs``, ``entropy`` and ``teacher_kl`` carry a gradient; everything else is detached.
    """

    lengths: Tensor
    """[N] response tokens, in the dtype of the loss."""
    nonempty: Tensor
    """[N] bool, True for rows with at least one response token."""
    log_ratio: Tensor
    """[N, T] new minus old log-probabilities, nats."""

    @classmethod
    def of(cls, inputs: LossInputs, *, per_token_advantages: bool = True) -> Rows:
        """Check shapes and dtypes, detach, upcast, and clear masked positions.

        Raises:
            UserError: naming the argument, its shape or dtype, and the rule.
        """
        mask = inputs.response_mask
        shape = _checked_shape(inputs.logprobs, mask)
        old_dtype = inputs.old_logprobs.dtype
        dtype = torch.promote_types(torch.promote_types(inputs.logprobs.dtype, old_dtype), torch.float32)
        values = {declared.name: getattr(inputs, declared.name) for declared in fields(LossInputs)}
        for declared in fields(LossInputs):
            value = values[declared.name]
            if value is not None and "gradient" in declared.metadata:
                _check_float(declared.name, value)
                _check_shape(declared.name, value, shape)
                trained = value if declared.metadata["gradient"] else value.detach()
                values[declared.name] = torch.where(mask, trained.to(dtype), 0.0)
        nonempty = mask.any(dim=-1)
        values["advantages"] = _clean_advantages(inputs.advantages, mask, nonempty, dtype, per_token_advantages)
        values["segments"] = _clean_segments(inputs.segments, mask)
        values["positive"] = _checked_positive(inputs.positive, shape[0])
        values["row_weights"] = _clean_weights(inputs.row_weights, shape[0], dtype)
        return cls(
            **values,
            lengths=mask.sum(dim=-1).to(dtype),
            nonempty=nonempty,
            log_ratio=values["logprobs"] - values["old_logprobs"],
        )

    @property
    def mask(self) -> Tensor:
        """``response_mask``: [N, T] bool, True on tokens that the policy chose."""
        return self.response_mask

    def mean(self, values: Tensor) -> Tensor:
        """Average ``values`` [N, T] (zero at masked positions) over the response tokens: [N], 0 for an empty row."""
        return values.sum(dim=-1) / self.lengths.clamp(min=1)

    def with_own_gradient(self, log_ratio: Tensor) -> Tensor:
        """Return ``log_ratio`` with the gradient of each token's own log-probability, [N, T] (GSPO-token, Eq. 14).

        A clipped token then has no gradient at all, even if its neighbours' advantages have another sign.
        """
        return log_ratio.detach() + (self.logprobs - self.logprobs.detach())  # the bracket is exactly 0

    def valid(self, like: Tensor) -> Tensor:
        """Return the mask for a tensor of this level: ``nonempty`` [N] or ``mask`` [N, T]."""
        return self.nonempty if like.ndim == 1 else self.mask

    def advantages_like(self, values: Tensor) -> Tensor:
        """Return the advantages at the level of ``values``: [N], or [N, T] with zeros at masked positions."""
        if values.ndim == self.advantages.ndim:
            return self.advantages
        return self.token_advantages

    @property
    def token_advantages(self) -> Tensor:
        """Advantages [N, T], zero at masked positions."""
        if self.advantages.ndim == 2:
            return self.advantages
        return torch.where(self.mask, self.advantages.unsqueeze(-1), 0.0)


def _checked_shape(logprobs: Tensor, mask: Tensor) -> tuple[int, int]:
    """Return N and T; they are those of the log-probabilities, and the mask has them, too."""
    _check_float("logprobs", logprobs)
    shape = tuple(logprobs.shape)
    if len(shape) != 2:
        raise UserError("logprobs", f"has shape {shape}, but must be [N, T]: one row per response")
    if mask.dtype != torch.bool:
        raise UserError("response_mask", f"has dtype {mask.dtype}, but must be bool", fix="mask.bool()")
    _check_shape("response_mask", mask, shape)
    return shape


def _clean_advantages(
    advantages: Tensor, mask: Tensor, nonempty: Tensor, dtype: torch.dtype, per_token: bool
) -> Tensor:
    _check_float("advantages", advantages)
    shape = tuple(advantages.shape)
    rows, width = mask.shape
    if shape == (rows, width) and not per_token:
        raise UserError(
            "advantages",
            f"has shape {shape}, but this objective has one ratio per sequence and needs one advantage per row [N]",
            fix="use GSPOToken or a token-level objective for per-token advantages",
        )
    if shape not in ((rows,), (rows, width)):
        allowed = f"[N] = ({rows},)" + (f" or [N, T] = ({rows}, {width})" if per_token else "")
        raise UserError("advantages", f"has shape {shape}, but must be {allowed}")
    cleaned = torch.where(nonempty if advantages.ndim == 1 else mask, advantages.detach().to(dtype), 0.0)
    # Reading a value would stall a GPU; there, advantages were checked where they were made.
    if cleaned.device.type == "cpu" and not bool(torch.isfinite(cleaned).all()):
        bad = int((~torch.isfinite(cleaned)).sum())
        raise UserError(
            "advantages",
            f"has {bad} NaN or infinite values of shape {shape}, but must be finite where the mask selects",
            fix="give missing samples the advantage 0 and an empty mask",
        )
    return cleaned


def _clean_segments(segments: Tensor | None, mask: Tensor) -> Tensor | None:
    if segments is None:
        return None
    if segments.dtype not in (torch.int64, torch.int32):
        raise UserError("segments", f"has dtype {segments.dtype}, but must be int64 segment numbers")
    _check_shape("segments", segments, tuple(mask.shape))
    cleaned = torch.where(mask, segments.to(torch.int64), 0)
    if (
        cleaned.device.type == "cpu"
        and cleaned.numel()
        and not 0 <= int(cleaned.min()) <= int(cleaned.max()) < mask.shape[1]
    ):
        raise UserError(
            "segments",
            f"holds {int(cleaned.min())} ... {int(cleaned.max())}, but must be in [0, T) with T = {mask.shape[1]}",
        )
    return cleaned


def _checked_positive(positive: Tensor | None, rows: int) -> Tensor | None:
    if positive is not None and (positive.dtype != torch.bool or tuple(positive.shape) != (rows,)):
        given = f"dtype {positive.dtype} and shape {tuple(positive.shape)}"
        raise UserError("positive", f"has {given}, but must be bool [N] = ({rows},): one word per response")
    return positive


def _clean_weights(weights: Tensor | None, rows: int, dtype: torch.dtype) -> Tensor | None:
    if weights is None:
        return None
    _check_float("row_weights", weights)
    if tuple(weights.shape) != (rows,):
        raise UserError("row_weights", f"has shape {tuple(weights.shape)}, but must be [N] = ({rows},): one per row")
    return weights.detach().to(dtype)


def _check_float(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = f"dtype {value.dtype}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
        raise UserError(name, f"has {kind}, but must be a floating-point tensor")


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise UserError(name, f"has shape {tuple(value.shape)}, but must be [N, T] = {shape} like logprobs")
