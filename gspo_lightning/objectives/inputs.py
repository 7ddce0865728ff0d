"""Rows: the checked and cleaned inputs of an objective.

Every value at a masked position is replaced before any arithmetic, so none of them enters a computation: a ``where``
after an ``exp`` gives NaN gradients with a finite loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError

LOG_RATIO_LIMIT = 20.0
"""Nats. Log-ratios are clamped to +-20 before ``exp`` (a factor of 4.9e8 either way); a metric counts how often."""


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Clamp ``log_ratio`` to +-:data:`LOG_RATIO_LIMIT`; the gradient is zero where that changes the value."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@dataclass(slots=True)
class Rows:
    """N responses of up to T tokens, ready for arithmetic: float32 or wider, zero at masked positions.

    ``logprobs`` [N, T] carries the gradient; everything else is detached except ``entropy`` and ``teacher_kl``.
    ``advantages`` is [N] or [N, T]. ``lengths`` [N] counts response tokens (same dtype), ``nonempty`` [N] is True for
    rows with at least one.
    ``log_ratio`` [N, T] is new minus old. ``segments`` [N, T] int64 in [0, T). ``positive`` [N] bool marks correct
    responses, ``row_weights`` [N] are the weights of rows that share a rollout.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    mask: Tensor
    lengths: Tensor
    nonempty: Tensor
    log_ratio: Tensor
    ref_logprobs: Tensor | None = None
    behaviour_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    segments: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    teacher_kl: Tensor | None = None
    positive: Tensor | None = None
    row_weights: Tensor | None = None

    @classmethod
    def build(
        cls,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        *,
        ref_logprobs: Tensor | None = None,
        behaviour_logprobs: Tensor | None = None,
        entropy: Tensor | None = None,
        segments: Tensor | None = None,
        teacher_logprobs: Tensor | None = None,
        teacher_kl: Tensor | None = None,
        positive: Tensor | None = None,
        row_weights: Tensor | None = None,
        per_token_advantages: bool = True,
    ) -> Rows:
        """Check shapes and dtypes, detach, upcast, and clear masked positions.

        Raises:
            UserError: naming the argument, its shape or dtype, and the rule.
        """
        _check_float("logprobs", logprobs)
        shape = tuple(logprobs.shape)
        if len(shape) != 2:
            raise UserError("logprobs", f"has shape {shape}, but must be [N, T]: one row per response")
        if response_mask.dtype != torch.bool:
            raise UserError("response_mask", f"has dtype {response_mask.dtype}, but must be bool", fix="mask.bool()")
        _check_shape("response_mask", response_mask, shape)
        dtype = torch.promote_types(torch.promote_types(logprobs.dtype, old_logprobs.dtype), torch.float32)

        def clean(name: str, value: Tensor | None, *, detach: bool = True) -> Tensor | None:
            if value is None:
                return None
            _check_float(name, value)
            _check_shape(name, value, shape)
            return torch.where(response_mask, (value.detach() if detach else value).to(dtype), 0.0)

        new, old = clean("logprobs", logprobs, detach=False), clean("old_logprobs", old_logprobs)
        assert new is not None
        assert old is not None
        nonempty = response_mask.any(dim=-1)
        return cls(
            logprobs=new,
            old_logprobs=old,
            advantages=_clean_advantages(advantages, response_mask, nonempty, dtype, per_token_advantages),
            mask=response_mask,
            lengths=response_mask.sum(dim=-1).to(dtype),
            nonempty=nonempty,
            log_ratio=new - old,
            ref_logprobs=clean("ref_logprobs", ref_logprobs),
            behaviour_logprobs=clean("behaviour_logprobs", behaviour_logprobs),
            entropy=clean("entropy", entropy, detach=False),
            segments=_clean_segments(segments, response_mask),
            teacher_logprobs=clean("teacher_logprobs", teacher_logprobs),
            teacher_kl=clean("teacher_kl", teacher_kl, detach=False),
            positive=_checked_positive(positive, shape[0]),
            row_weights=_clean_weights(row_weights, shape[0], dtype),
        )

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


def _clean_advantages(
    advantages: Tensor, mask: Tensor, nonempty: Tensor, dtype: torch.dtype, per_token: bool
) -> Tensor:
    _check_float("advantages", advantages)
    shape, (rows, width) = tuple(advantages.shape), mask.shape
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
        found = f"dtype {positive.dtype} and shape {tuple(positive.shape)}"
        raise UserError("positive", f"has {found}, but must be bool [N] = ({rows},): one word per response")
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
        found = f"dtype {value.dtype}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
        raise UserError(name, f"has {found}, but must be a floating-point tensor")


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise UserError(name, f"has shape {tuple(value.shape)}, but must be [N, T] = {shape} like logprobs")
