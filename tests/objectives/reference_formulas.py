"""Every objective once more, straight from its equation: Python loops over rows and tokens, no shared code.

Stop-gradients are written as ``.detach()`` where the paper has them, so that autograd of these loops is the gradient
that the package must have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gspo_lightning.core.registry import components
from gspo_lightning.objectives import (
    CISPO,
    DAPO,
    DPPOTV,
    GMPO,
    GRPO,
    GSPO,
    LUSPO,
    PPO,
    REINFORCE,
    SAPO,
    VESPO,
    DrGRPO,
    GSPOToken,
    MultiScale,
    Objective,
    Segment,
)

OLD = [[-1, -2, -0.5, -0.25], [-0.7, -1.3], [-0.2, -0.4, -0.6]]
NEW = [[-0.9, -2.1, -0.3, -0.25], [-0.9, -1.5], [-0.2, -0.1, -0.6]]
ADVANTAGES = [1.0, -2.0, 0.5]


def pad(rows: Sequence[Sequence[float]], width: int = 4, value: float = 0.0) -> Tensor:
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=torch.float64)


def example() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mask = torch.arange(4) < torch.tensor([[len(r)] for r in OLD])
    return pad(NEW).requires_grad_(), pad(OLD), torch.tensor(ADVANTAGES, dtype=torch.float64), mask


def run(objective: Objective, logprobs: Tensor, *args: Tensor, **kwargs: Tensor | float | None):  # noqa: ANN201
    """The output and the gradient of the loss with respect to ``logprobs``."""
    leaf = logprobs.detach().clone().requires_grad_()
    out = objective(leaf, *args, **kwargs)
    (grad,) = torch.autograd.grad(out.loss, leaf)
    return out, grad


Row = tuple[list[Tensor], list[Tensor], list[Tensor]]


def rows_of(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> list[Row]:
    found = []
    for i in range(len(mask)):
        at = [t for t in range(mask.shape[1]) if mask[i, t]]
        a = [advantages[i] if advantages.ndim == 1 else advantages[i, t] for t in at]
        found.append(([new[i, t] for t in at], [old[i, t] for t in at], a))
    return [r for r in found if r[0]]


def clip_loss(ratio: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    """-min(r A, clip(r) A)."""
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def _total(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).sum()


def _d(row: Row) -> list[Tensor]:
    return [n - o for n, o in zip(row[0], row[1], strict=True)]


def sequence_ratio(row: Row) -> Tensor:
    return torch.exp(_total(_d(row)) / len(row[0]))


def gspo(low: float, high: float, rows: list[Row]) -> Tensor:
    return _total([clip_loss(sequence_ratio(r), r[2][0], low, high) for r in rows]) / len(rows)


def gspo_token(low: float, high: float, rows: list[Row]) -> Tensor:
    per_row = []
    for r in rows:
        s = sequence_ratio(r).detach()
        tokens = [
            clip_loss(s * torch.exp(n) / torch.exp(n).detach(), a, low, high) for n, a in zip(r[0], r[2], strict=True)
        ]
        per_row.append(_total(tokens) / len(tokens))
    return _total(per_row) / len(rows)


def token_clip(low: float, high: float, rows: list[Row], dual: float | None = None) -> list[list[Tensor]]:
    losses = []
    for r in rows:
        row = [clip_loss(torch.exp(d), a, low, high) for d, a in zip(_d(r), r[2], strict=True)]
        if dual is not None:
            row = [torch.minimum(x, -dual * a) if a < 0 else x for x, a in zip(row, r[2], strict=True)]
        losses.append(row)
    return losses


def sequence_mean(losses: list[list[Tensor]]) -> Tensor:
    return _total([_total(row) / len(row) for row in losses]) / len(losses)


def token_mean(losses: list[list[Tensor]]) -> Tensor:
    flat = [x for row in losses for x in row]
    return _total(flat) / len(flat)


def cispo(low: float, high: float, rows: list[Row]) -> Tensor:
    return token_mean(
        [
            [-torch.exp(d).clamp(1 - low, 1 + high).detach() * a * n for d, a, n in zip(_d(r), r[2], r[0], strict=True)]
            for r in rows
        ]
    )


def sapo(tau_pos: float, tau_neg: float, rows: list[Row]) -> Tensor:
    def one(d: Tensor, a: Tensor) -> Tensor:
        tau = tau_pos if a > 0 else tau_neg
        return -4 / tau / (1 + torch.exp(-tau * (torch.exp(d) - 1))) * a

    return sequence_mean([[one(d, a) for d, a in zip(_d(r), r[2], strict=True)] for r in rows])


def gmpo(low: float, high: float, rows: list[Row]) -> Tensor:
    losses = []
    for r in rows:
        a = r[2][0]
        pick = torch.minimum if a > 0 else torch.maximum
        parts = [pick(d, d.clamp(-low, high)) if a != 0 else d for d in _d(r)]
        losses.append(-torch.exp(_total(parts) / len(parts)) * a)
    return _total(losses) / len(rows)


def luspo(low: float, high: float, rows: list[Row]) -> Tensor:
    return _total([len(r[0]) * clip_loss(sequence_ratio(r), r[2][0], low, high) for r in rows]) / len(rows)


def vespo(rows: list[Row]) -> Tensor:
    losses = []
    for r in rows:
        log_w = _total(_d(r)).detach()
        k, lam = (2, 3) if r[2][0] >= 0 else (3, 2)
        phi = torch.exp(log_w) ** k * torch.exp(lam * (1 - torch.exp(log_w)))
        losses.append([-phi * r[2][0] * n for n in r[0]])
    return token_mean(losses)


def dppo_tv(low: float, high: float, rows: list[Row]) -> Tensor:
    losses = []
    for r in rows:
        row = []
        for n, o, a in zip(*r, strict=True):
            moved = (torch.exp(n) - torch.exp(o)).detach()
            drop = (a > 0 and moved > high) or (a < 0 and moved < -low)
            row.append(0 * n if drop else -torch.exp(n - o) * a)
        losses.append(row)
    return token_mean(losses)


def dr_grpo(limit: int, low: float, high: float, rows: list[Row]) -> Tensor:
    losses = token_clip(low, high, rows)
    return _total([x for row in losses for x in row]) / (len(rows) * limit)


def multi_scale(alpha: float, low: float, high: float, rows: list[Row]) -> Tensor:
    losses = []
    for r in rows:
        mean = _total(_d(r)) / len(r[0])
        losses.append(
            [
                clip_loss(torch.exp(alpha * mean + (1 - alpha) * d).detach() * torch.exp(n - n.detach()), a, low, high)
                for d, a, n in zip(_d(r), r[2], r[0], strict=True)
            ]
        )
    return sequence_mean(losses)


def segment(length: int, low: float, high: float, rows: list[Row]) -> Tensor:
    losses = []
    for r in rows:
        row = []
        for start in range(0, len(r[0]), length):
            part = _d(r)[start : start + length]
            ratio = torch.exp(_total(part) / len(part)).detach()
            for n, a in list(zip(r[0], r[2], strict=True))[start : start + length]:
                row.append(clip_loss(ratio * torch.exp(n - n.detach()), a, low, high))
        losses.append(row)
    return sequence_mean(losses)


def reinforce(rows: list[Row]) -> Tensor:
    return _total([-a * n for r in rows for n, a in zip(r[0], r[2], strict=True)]) / len(rows)


Reference = Callable[[list[Row]], Tensor]


class Case(NamedTuple):
    """An objective with a range that clips on small random data, and all that the tests know of it without its code."""

    objective: Objective
    equation: Reference
    stop_gradient: bool = False
    """True if its gradient is not that of finite differences of its loss."""
    zero_on_policy: bool = True
    """True if the loss of the old policy itself is 0 where advantages add up to 0."""
    weight: float | None = None
    """Weight of a token in the old policy's own gradient, for 3, 1, 3 and 1 tokens; None: that of the aggregation."""
    count: float | None = None
    """Denominator of responses of 3, 0 and 2 tokens; None: that of the aggregation."""


CASES: dict[str, Case] = {
    "gspo": Case(GSPO(0.05, 0.06), lambda r: gspo(0.05, 0.06, r)),
    "gspo_token": Case(GSPOToken(0.05, 0.06), lambda r: gspo_token(0.05, 0.06, r), stop_gradient=True),
    "grpo": Case(GRPO(0.2, 0.27), lambda r: sequence_mean(token_clip(0.2, 0.27, r))),
    "ppo": Case(PPO(0.2, 0.3), lambda r: token_mean(token_clip(0.2, 0.3, r))),
    "dapo": Case(DAPO(0.2, 0.28), lambda r: token_mean(token_clip(0.2, 0.28, r))),
    "dapo_dual": Case(DAPO(0.2, 0.28, dual_clip=1.4), lambda r: token_mean(token_clip(0.2, 0.28, r, 1.4))),
    "dr_grpo": Case(DrGRPO(7, 0.2, 0.25), lambda r: dr_grpo(7, 0.2, 0.25, r), weight=1 / 28, count=14.0),
    "cispo": Case(CISPO(0.3, 0.4), lambda r: cispo(0.3, 0.4, r), stop_gradient=True, zero_on_policy=False),
    "sapo": Case(SAPO(1.0, 1.05), lambda r: sapo(1.0, 1.05, r), zero_on_policy=False),
    "gmpo": Case(GMPO(0.15, 0.25), lambda r: gmpo(0.15, 0.25, r)),
    # n_i times the mean over n_i tokens
    "luspo": Case(LUSPO(0.05, 0.06), lambda r: luspo(0.05, 0.06, r), weight=1 / 4),
    "vespo": Case(VESPO(), vespo, stop_gradient=True, zero_on_policy=False),
    "dppo_tv": Case(DPPOTV(0.05, 0.07), lambda r: dppo_tv(0.05, 0.07, r)),
    "reinforce": Case(REINFORCE(), reinforce, zero_on_policy=False),
    "multi_scale": Case(MultiScale(0.3, 0.1, 0.15), lambda r: multi_scale(0.3, 0.1, 0.15, r), stop_gradient=True),
    "segment": Case(
        Segment(0.05, 0.07, by="length", segment_length=2), lambda r: segment(2, 0.05, 0.07, r), stop_gradient=True
    ),
}
NAMES = sorted(CASES)

BY_HAND: list[tuple[Objective, float]] = [
    (GSPO(0.04, 0.05), 0.115),
    (GSPO(0.2, 0.2), 0.0112016502),
    (GSPOToken(0.04, 0.05), 0.115),
    (GSPOToken(0.2, 0.2), 0.0112016502),
    (GRPO(0.2, 0.2), 0.0172086963),
    (DAPO(0.2, 0.28), -0.2884986758),
    (DAPO(0.2, 0.2, dual_clip=3.0), -0.2816761471),
    (PPO(0.2, 0.2), -0.2816761471),
    (DrGRPO(max_response_tokens=4, clip_low=0.2, clip_high=0.2), -0.2112571103),
    (CISPO(clip_low=1.0, clip_high=0.1), -0.0005276708),
    (SAPO(), 0.1109106989),
    (GMPO(0.1, 0.1), 0.0891373863),
    (LUSPO(0.04, 0.05), -0.645),
    (VESPO(), 0.0241545348),
    (DPPOTV(), -0.2173875647),
    # by hand: log-ratios .1 -.1 | .2 0 with mean 0 and .1; -.2; 0 .3 | 0 with mean .15 and 0; clipped to [.95, 1.07]
    (Segment(0.05, 0.07, by="length", segment_length=2), -(4.14 / 4 - 2 * 0.95 + 0.5 * 3.14 / 3) / 3),
    # by hand: .3 * mean + .7 * log-ratio is .085 -.055 .155 .015; -.2; .03 .24 .03; clipped to [.9, 1.15]
    (MultiScale(0.3, 0.1, 0.15), -(4.200315279 / 4 - 2 * 0.9 + 0.5 * 3.210909068 / 3) / 3),
    (REINFORCE(), (1 * -3.55 - 2 * -2.4 + 0.5 * -0.9) / -3),
]
"""Losses of :func:`example`, worked out by hand."""

DEFAULTS: dict[str, tuple[str, float | None, float | None]] = {
    "GSPO": ("sequence", 3e-4, 4e-4),
    "GSPOToken": ("sequence", 3e-4, 4e-4),
    "LUSPO": ("sequence", 2e-3, 2.5e-3),
    "GRPO": ("token", 0.2, 0.27),
    "PPO": ("token", 0.2, 0.2),
    "DAPO": ("token", 0.2, 0.28),
    "DrGRPO": ("token", 0.2, 0.2),
    "CISPO": ("token", 1.0, 4.0),
    "GMPO": ("token", 0.4, 0.4),
    "DPPOTV": ("token", 0.2, 0.2),
    "SAPO": ("token", None, None),
    "VESPO": ("sequence", None, None),
    "REINFORCE": ("token", None, None),
    "MultiScale": ("token", 0.1, 0.135),
    "Segment": ("sequence", 2e-3, 2.7e-3),
}
"""Name -> level of the ratio, clip_low and clip_high, as papers and docstrings have them."""

FAMILY: dict[str, type[Objective]] = {
    name: cls for name, cls in components("objectives").items() if cls.__module__.startswith("gspo_lightning.")
}
"""Every objective of the package by its name, from the registry."""


REQUIRED: dict[str, dict[str, int]] = {"DrGRPO": {"max_response_tokens": 12}}
"""Name -> arguments without a default."""


def made(name: str) -> Objective:
    """An objective of the family with its defaults."""
    return FAMILY[name](**REQUIRED.get(name, {}))


def make_batch(
    seed: int, lengths: Sequence[int], *, scale: float = 0.4, per_token: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random float64 inputs, left-aligned, with garbage-free padding; one advantage may be exactly 0."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = len(lengths), max(*lengths, 1) + seed % 3
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(-1)
    old = -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 2
    new = old + scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    shape = (rows, width) if per_token else (rows,)
    advantages = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if seed % 4 == 0:
        advantages[0] = 0.0
    return new, old, advantages, mask
