"""Usual learning rates by the size of a model, and a warning far above them."""

from __future__ import annotations

import logging

import torch
from torch import nn

from gspo_lightning.loop.update.optimizers import adam_rate

log = logging.getLogger(__name__)

FAR = 4.0
"""Multiple of the usual rate above which there is a warning."""
SMALLEST = 50_000_000
"""Parameters of the smallest model that the rule is for; tiny models from scratch take 1e-4 to 1e-3."""


def usual_rate(parameters: int, *, adapters: bool) -> float:
    """Return the usual learning rate of AdamW for reinforcement learning on a pretrained model.

    Between two points it is a straight line in logarithms: 2e-5 for 0.135B parameters (measured with SmolLM2-135M and
    GSPO) and 1e-6 from 7B on (DeepSeekMath, Dr. GRPO, DAPO). Adapters take ten times as much.

    Args:
        parameters: of the whole model.
        adapters: True if only adapters (LoRA) are trained.

    >>> [float(f"{usual_rate(size, adapters=False):.1g}") for size in (135_000_000, 1_500_000_000, 30_000_000_000)]
    [2e-05, 3e-06, 1e-06]
    >>> round(usual_rate(8_000_000_000, adapters=True), 9)
    1e-05
    """
    full = 1e-6 * max(7e9 / parameters, 1.0) ** 0.76
    return 10 * full if adapters else full


def warn_if_rate_is_high(policy: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Warn if the learning rate of Adam is far above the usual one for a model of this size."""
    total = sum(parameter.numel() for parameter in policy.parameters())
    trained = sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
    rate = adam_rate(optimizer)
    if total < SMALLEST or rate is None:
        return
    adapters = trained < 0.2 * total
    usual = usual_rate(total, adapters=adapters)
    if rate > FAR * usual:
        log.warning(
            "model.optimizer.lr is %g; for %s a model of %.2gB parameters %.1g is usual, and far more makes it forget: "
            "watch val/accuracy (docs/first_real_run.md)",
            rate, "adapters on" if adapters else "all weights of", total / 1e9, usual,
        )  # fmt: skip
