"""Check that the precision of a run can hold its log-probabilities and updates."""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer

from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.update.loss_scale import scaler_of
from gspo_lightning.policy.strategies.sharding_strategy import sharding_of


def check_precision(precision: str, *, cpu: bool = False) -> None:
    """Refuse precisions that round log-probabilities, and float16 on a CPU, which Lightning would silently replace.

    float64 is refused, too: samplers draw, and rollouts keep log-probabilities, in float32.

    Args:
        precision: ``trainer.precision``.
        cpu: True if the run is on a CPU.

    Raises:
        UserError: such a precision.
    """
    if precision == "bf16-true":
        raise UserError(
            "trainer.precision",
            "'bf16-true' would round old log-probabilities and advantages to bfloat16 on their way to the model",
            fix="use bf16-mixed (float32 masters)",
        )
    if precision in ("64", "64-true"):
        raise UserError(
            "trainer.precision",
            f"{precision!r} is more than rollouts keep: their log-probabilities are float32",
            fix="use 32-true; sums, norms and the reductions of statistics are float64 already",
        )
    if precision.startswith("transformer-engine"):
        raise UserError(
            "trainer.precision",
            f"{precision!r} computes in 8 bits, whose rounding is larger than any clip range of sequences",
            fix="use bf16-mixed or 32-true",
        )
    if precision == "16-true":
        raise UserError(
            "trainer.precision",
            "'16-true' cannot hold the updates of its weights, nor log-ratios of the size of the clip range",
            fix="use 16-mixed (float32 masters), bf16-mixed or 32-true",
        )
    if precision in ("16", "16-mixed") and cpu:
        raise UserError(
            "trainer.precision",
            f"{precision!r} needs a GPU: on a CPU Lightning trains in bf16-mixed instead",
            fix="use bf16-mixed or 32-true",
        )


def check_loss_scale(critic: ValueModel | None, trainer: Trainer) -> None:
    """Refuse float16 with a critic or sharding: its loss scale covers the policy's loss on whole gradients only.

    Raises:
        UserError: the run has one of these.
    """
    if scaler_of(trainer) is None and str(trainer.precision) != "16-mixed":
        return
    if sharding_of(trainer.strategy) is not None:
        raise UserError(
            "trainer.precision",
            f"is '16-mixed', but {type(trainer.strategy).__name__} has no loss scale that all ranks share",
            fix="use bf16-mixed, or trainer.strategy: ddp",
        )
    if critic is not None:
        raise UserError(
            "trainer.precision",
            "is '16-mixed', but the loss of model.critic has no loss scale: its gradients would round to 0",
            fix="use bf16-mixed, or advantages without a critic",
        )


def check_device(precision: str, dtype: str, device: torch.device) -> None:
    """Refuse bfloat16 on a GPU without it.

    Raises:
        UserError: the hardware emulates it or cannot do it at all.
    """
    if "bf16" not in precision and dtype != "bfloat16":
        return
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise UserError(
            "trainer.precision",
            f"is {precision!r}, model.dtype {dtype!r}, but {torch.cuda.get_device_name(device)} has no bfloat16",
            fix="use 32-true with model.dtype: float32, or a GPU of the Ampere generation or later",
        )
