"""FSDP1: Lightning's sharding strategy, adapted to reinforcement learning.

:class:`FSDPStrategy` and :class:`FSDP2Strategy` shard every decoder layer of the policy separately, reduce gradients in
float32, also run on CPU processes (gloo), and write checkpoints that are complete or absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import FSDPPrecision, Precision
from lightning.pytorch.strategies import FSDPStrategy as LightningFSDP
from torch import nn
from torch.distributed.fsdp import (
    CPUOffload,
    FullyShardedDataParallel,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from gspo_lightning.policy.policy import Policy
from gspo_lightning.strategies.base import Sharding
from gspo_lightning.strategies.layers import ShardedPrecision, compute_dtype, decoder_layers
from gspo_lightning.strategies.sharding import Gathering

__all__ = ["FSDPStrategy"]


class FSDPStrategy(Sharding, LightningFSDP):
    """Fully sharded data parallel (FSDP1).

    Args:
        cpu_offload: keep shards and optimizer state in CPU memory.
        sharding_strategy: ``FULL_SHARD``, ``SHARD_GRAD_OP`` or ``HYBRID_SHARD`` (within a node).
        timeout_minutes: minutes after which a collective that some rank does not join fails; a rollout may take this
            long.
    """

    def __init__(
        self, cpu_offload: bool = False, sharding_strategy: str = "FULL_SHARD", timeout_minutes: float = 30.0
    ) -> None:
        super().__init__(
            cpu_offload=cpu_offload,
            sharding_strategy=sharding_strategy,
            state_dict_type="sharded",
            timeout=timedelta(minutes=timeout_minutes),
        )
        self.reduces_each = not cpu_offload  # with offloading a new gradient would replace the old one

    @property
    def precision_plugin(self) -> FSDPPrecision:
        """Precision plugin: :class:`ShardedPrecision` in place of Lightning's own for FSDP."""
        return super().precision_plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        self._precision_plugin = ShardedPrecision(plugin.precision) if isinstance(plugin, FSDPPrecision) else plugin

    def setup_environment(self) -> None:
        """Set up the environment, and set the device of autocast."""
        super().setup_environment()
        self.precision_plugin.device = self.root_device.type

    def setup(self, trainer: Trainer) -> None:
        """Set up without wrapping: the policy is wrapped already, and the module around it only gets its device."""
        super().setup(trainer)
        assert isinstance(self.lightning_module, LightningModule)
        self.lightning_module._device = self.root_device

    def shard(self, policy: Policy, offload: bool = False) -> Policy:
        """See :meth:`Sharding.shard`; returns a wrapper around the policy."""
        layers = decoder_layers(policy)
        policy.gathering = Gathering(policy, self.root_device, compute_dtype(self.precision_plugin.precision))
        wrapped: Any = self.spread(policy, layers, offload)
        return wrapped

    def spread(self, module: nn.Module, layers: Sequence[nn.Module], offload: bool = False) -> nn.Module:
        """See :meth:`Sharding.spread`; returns a wrapper around the module."""
        kinds = {type(layer) for layer in layers}
        apart = self.root_device.type != "cpu"
        return FullyShardedDataParallel(
            module,
            auto_wrap_policy=ModuleWrapPolicy(kinds),
            cpu_offload=CPUOffload((offload or bool(self.cpu_offload and self.cpu_offload.offload_params)) and apart),
            device_id=self.root_device,
            mixed_precision=self.mixed_precision_config,
            sharding_strategy=self.sharding_strategy,
            use_orig_params=True,
        )
