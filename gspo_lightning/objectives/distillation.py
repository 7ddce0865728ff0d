"""On-policy distillation: the reverse KL(policy || teacher) at the tokens that the policy sampled.

The token is drawn from the policy itself, so the gradient of the KL at one token is a score-function gradient:

    d/dtheta KL(pi || q) = E_{y ~ pi} [(log pi(y) - log q(y)) * d/dtheta log pi(y)]

Differentiating the sampled log pi(y) - log q(y) itself (k1) would give E[d/dtheta log pi(y)] = 0: no gradient at all.
Half its square (k2) has exactly the right gradient, and is a loss that any objective can add at any level, so it is the
term here. On fresh samples its gradient is that of Thinking Machines' On-Policy Distillation (2025), where
log q - log pi is the advantage of a token and nothing is carried back to earlier tokens (discount 0). MiniLLM
(arXiv 2306.08543) also carries it back, with more variance; GKD (arXiv 2306.13649) does not. arXiv 2510.01555 shows
that k2 as a loss and k1 as a reward have the same gradient on fresh samples.

After the first update of an iteration, the samples come from the old policy; each token is then weighted by the
truncated importance weight pi / pi_old, a constant. ``teacher_kl`` is the KL over the whole vocabulary, differentiated
directly (GKD's generalised form at the reverse KL). It needs no weight, because only its prefix was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gspo_lightning.objectives.corrections import Corrections
from gspo_lightning.objectives.inputs import LOG_RATIO_LIMIT, Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Sums


@dataclass(frozen=True, slots=True)
class Distillation:
    """Distillation term: ``loss`` [N, T] to minimise, None without a teacher; ``sums`` that report it."""

    loss: Tensor | None = None
    sums: Sums = field(default_factory=dict)


def distillation(rows: Rows, corrections: Corrections) -> Distillation:
    """Return the distillation term of each token, in nats.

    With ``x = log pi - log q``, sampled: ``w * x**2 / 2``, where ``w`` is min(pi / pi_old, cap), a constant, times the
    weight old / behaviour if the objective corrects for it. Its gradient is ``w * x * d log pi``. Beyond 20 nats ``x``
    counts as 20 (the square continues as a straight line), so one token that the teacher rules out cannot dominate an
    update.

    Args:
        rows: with ``teacher_kl`` or ``teacher_logprobs``; with neither there is no term.
        corrections: of the objective; their cap bounds pi / pi_old, too. Rows that they drop keep this term: a teacher
            is right about every token that was sampled.
    """
    if rows.teacher_kl is not None:
        measured = rows.teacher_kl.detach().double()
        return Distillation(rows.teacher_kl, {"kl_new_teacher": (measured.sum(), rows.mask.sum().double())})
    if rows.teacher_logprobs is None:
        return Distillation()
    x = rows.logprobs - rows.teacher_logprobs
    with torch.no_grad():
        ratio = torch.exp(clamp_log_ratio(rows.log_ratio))
        weight = ratio.clamp(max=corrections.cap)
        if corrections.level != "none" and rows.behaviour_logprobs is not None:
            weight = weight * corrections.importance(rows)
        capped = ratio > corrections.cap  # never at masked positions: the ratio is 1 there, the cap at least 1
        sums = _sums(rows, x.double())
        sums["distill_capped"] = (capped.sum().double(), rows.mask.sum().double())
    return Distillation(weight * _half_square(x), sums)


def _half_square(x: Tensor) -> Tensor:
    """``x**2 / 2``, and a straight line beyond :data:`LOG_RATIO_LIMIT`."""
    return torch.nn.functional.huber_loss(x, torch.zeros_like(x), reduction="none", delta=LOG_RATIO_LIMIT)


def _sums(rows: Rows, x: Tensor) -> Sums:
    """Return estimates of the KL: k1, of either sign, and k3, never negative."""
    count = rows.mask.sum().double()
    k3 = torch.expm1(clamp_log_ratio(-x)) + x  # 0 at masked positions, as x is
    return {"kl_new_teacher": (x.sum(), count), "kl_new_teacher_k3": (k3.sum(), count)}
