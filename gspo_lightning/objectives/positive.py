"""Negative log-likelihood of correct responses: VAPO's positive-example language-model loss.

``L_NLL = - sum_{i in T} sum_t log pi(y_it) / sum_{i in T} n_i`` over the set T of correct responses: arXiv 2504.05118.
The loss has no ratio, no clip range and no advantage: in every update it is the supervised loss of the policy's own
correct responses, token by token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.objectives.aggregate import count_positive, count_tokens
from gspo_lightning.objectives.inputs import Rows
from gspo_lightning.objectives.measure import Sums


@dataclass(frozen=True, slots=True)
class PositiveNLL:
    """``total`` nats, a scalar with gradient; its number of ``tokens``, a float64 scalar; ``sums`` that report it."""

    total: Tensor
    tokens: Tensor
    sums: Sums


def positive_nll(rows: Rows) -> PositiveNLL:
    """Return the summed negative log-probabilities of all response tokens of correct responses, not yet divided.

    Args:
        rows: with ``positive``.
    """
    assert rows.positive is not None
    total = -torch.where(rows.positive.unsqueeze(-1), rows.logprobs, 0.0).sum()  # 0 at masked positions already
    tokens = count_positive(rows.mask, rows.positive)
    sums = {
        "positive_nll": (total.detach().double(), tokens),
        "positive_tokens": (tokens, count_tokens(rows.mask)),
    }
    return PositiveNLL(total, tokens, sums)
