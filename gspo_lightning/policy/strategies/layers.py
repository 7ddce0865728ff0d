"""Shared parts of both FSDP strategies: decoder layers, compute dtype, and precision under sharding."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from lightning.pytorch.plugins.precision import FSDPPrecision
from torch import nn
from torch.distributed.fsdp import (
    MixedPrecision,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.policy import Policy


def decoder_layers(policy: Policy) -> list[nn.Module]:
    """Return the layers that are sharded separately: gathered just before they compute and dropped right after.

    Raises:
        UserError: the model has none that transformers marks, or an expert of a mixture is a module of its own.
    """
    name = type(policy.model).__name__
    layers = [m for m in policy.model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            "trainer.strategy",
            f"cannot shard {name}: it has no layers that transformers marks",
            fix="use strategy: ddp",
        )
    for path, module in policy.model.named_modules():
        if path.endswith("experts") and isinstance(module, nn.ModuleList):
            raise UserError(
                "trainer.strategy",
                f"cannot shard {name}: the {len(module)} experts of {path} are separate modules, and ranks whose "
                "tokens choose other experts would wait for each other for ever",
                fix="use a model class with fused experts (transformers 5: Qwen3-MoE, Mixtral ...), or strategy: ddp",
            )
    return layers


def compute_dtype(precision: str) -> torch.dtype | None:
    """Return the dtype of parameters in forward passes; None keeps each parameter's own."""
    return torch.bfloat16 if precision == "bf16-mixed" else None


class ShardedPrecision(FSDPPrecision):
    """Lightning's plugin with gradient reduction in float32, autocast on the training device, and inputs unchanged.

    Lightning's plugin rounds every float of a batch, including advantages and old log-probabilities.
    """

    device = "cuda"

    @property
    def mixed_precision_config(self) -> MixedPrecision:
        """Mixed precision of every wrapped module."""
        return MixedPrecision(
            param_dtype=compute_dtype(self.precision),
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
            cast_root_forward_inputs=False,
        )

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Return the module unchanged: ``model.dtype`` decides."""
        return module

    def convert_input(self, data: Any) -> Any:
        """Return the data unchanged."""
        return data

    def convert_output(self, data: Any) -> Any:
        """Return the data unchanged."""
        return data

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        """Return autocast with bf16-mixed, else a null context."""
        if self.precision != "bf16-mixed":
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16, cache_enabled=False)
