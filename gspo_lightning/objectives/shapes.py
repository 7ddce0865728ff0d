"""Check the shapes that an objective returns: broadcasting turns a mistake into another loss.

Shapes are known on the host, so every call can be checked. If N equals T, a transposed tensor cannot be detected, so an
objective is also tried before a run on an example where they differ (:mod:`gspo_lightning.objectives.trial`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.objectives.inputs import Rows
from gspo_lightning.objectives.measure import Term


def check_term(objective: object, term: object, rows: Rows) -> None:
    """Check that the result of ``term`` fits the rows.

    Raises:
        UserError: no :class:`Term`, a tensor of a wrong shape or dtype, or a loss without a gradient.
    """
    where = f"{type(objective).__name__}.term"
    if not isinstance(term, Term):
        raise UserError(
            where, f"returned {_shown(term)}, but must return a Term", fix="return Term(loss=..., ratio=...)"
        )
    check_level(objective, "term", "loss", term.loss, rows)
    check_level(objective, "term", "ratio", term.ratio, rows)
    for name in ("low", "high", "dual", "outside", "clamped", "flat"):
        flags = getattr(term, name)
        if flags is None:
            continue
        check_level(objective, "term", name, flags, rows, torch.bool)
        if name in ("low", "high", "dual") and flags.shape != term.ratio.shape:
            shape = tuple(term.ratio.shape)
            raise UserError(where, f"returned {name} of shape {tuple(flags.shape)}, but ratio has {shape}")
    if rows.logprobs.requires_grad and torch.is_grad_enabled() and not term.loss.requires_grad:
        fix = "compute it from rows.logprobs or rows.log_ratio, and detach only what is constant"
        raise UserError(where, "returned a loss without a gradient: nothing would be trained", fix=fix)


def check_level(
    objective: object, method: str, name: str, value: object, rows: Rows, dtype: torch.dtype | None = None
) -> None:
    """Check that a value has one entry per response or one per token.

    Args:
        objective: the objective whose ``method`` returned ``value``.
        method: name of the method.
        name: name of the value.
        value: the returned value.
        rows: N responses of up to T tokens.
        dtype: the required dtype; None allows any floating-point one.

    Raises:
        UserError: the value is something else.
    """
    count, width = rows.mask.shape
    right = isinstance(value, Tensor) and (value.is_floating_point() if dtype is None else value.dtype == dtype)
    if right and isinstance(value, Tensor) and tuple(value.shape) in ((count,), (count, width)):
        return
    kind = "floating-point" if dtype is None else str(dtype).removeprefix("torch.")
    raise UserError(
        f"{type(objective).__name__}.{method}",
        f"returned as {name} {_shown(value)}, but with {count} responses of up to {width} tokens it must be a {kind} "
        f"tensor [N] = ({count},) or [N, T] = ({count}, {width})",
        fix="return one value per response or one per token; the denominator and the mean are not the term's business",
    )


def check_count(objective: object, count: object) -> Tensor:
    """Return the result of ``count``, if it is one number.

    Raises:
        UserError: the result is something else.
    """
    if isinstance(count, Tensor) and count.ndim == 0:
        return count
    where = f"{type(objective).__name__}.count"
    raise UserError(where, f"returned {_shown(count)}, but must return one number, a tensor of shape ()")


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return f"an object of type {type(value).__name__}"
