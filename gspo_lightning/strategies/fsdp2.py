"""FSDP2: each parameter is sharded separately (``fully_shard``)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    fully_shard,
)

from gspo_lightning.distributed import fail_together
from gspo_lightning.policy.policy import Policy
from gspo_lightning.strategies.base import Sharding
from gspo_lightning.strategies.layers import compute_dtype, decoder_layers
from gspo_lightning.strategies.loading import receive_weights, whole_state
from gspo_lightning.strategies.sharding import Gathering

__all__ = ["FSDP2Strategy"]


class FSDP2Strategy(Sharding, ModelParallelStrategy):
    """Fully sharded data parallel by ``torch.distributed.fsdp.fully_shard`` (FSDP2).

    Args:
        cpu_offload: keep shards and optimizer state in CPU memory.
        save_distributed_checkpoint: each rank writes its shards, to a folder; false: rank 0 writes one file.
        reshard_after_forward: drop a layer's parameters after its forward pass and gather them again for the backward
            pass; false needs the memory of all parameters and saves a third of the communication.
        rollouts: ``gathered``: sample from a plain copy of all parameters in the compute dtype, every rank at its own
            pace; ``lockstep``: from the shards, layer by layer, if that copy does not fit. All ranks then wait for the
            longest response at every step.
        timeout_minutes: minutes after which a collective that some rank does not join fails; a rollout may take this
            long.
    """

    loads_on_first_rank = True

    def __init__(
        self,
        cpu_offload: bool = False,
        save_distributed_checkpoint: bool = True,
        reshard_after_forward: bool = True,
        rollouts: Literal["gathered", "lockstep"] = "gathered",
        timeout_minutes: float = 30.0,
    ) -> None:
        super().__init__(
            save_distributed_checkpoint=save_distributed_checkpoint, timeout=timedelta(minutes=timeout_minutes)
        )
        self.cpu_offload, self.reshard_after_forward = cpu_offload, reshard_after_forward
        self.rollouts = rollouts

    def _setup_distributed(self) -> None:
        super()._setup_distributed()
        self._data_parallel_size, self._tensor_parallel_size = self.world_size, 1

    def shard(self, policy: Policy, offload: bool = False) -> Policy:
        """See :meth:`Sharding.shard`; in place."""
        dtype = compute_dtype(str(self.precision_plugin.precision))
        policy.gathering = Gathering(policy, self.root_device, dtype, lockstep=self.rollouts == "lockstep")
        state = whole_state(policy)
        self.spread(policy, decoder_layers(policy), offload)
        receive_weights(policy, state, torch.device("cpu") if self._offloads(offload) else self.root_device)
        return policy

    def _offloads(self, offload: bool) -> bool:
        return (self.cpu_offload or offload) and self.root_device.type != "cpu"

    def spread(self, module: nn.Module, layers: Sequence[nn.Module], offload: bool = False) -> nn.Module:
        """See :meth:`Sharding.spread`; in place."""
        dtype = compute_dtype(str(self.precision_plugin.precision))
        options: dict[str, Any] = {
            "mesh": self.device_mesh["data_parallel"],
            "mp_policy": MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False),
        }
        if self._offloads(offload):
            options["offload_policy"] = CPUOffloadPolicy()
        for layer in layers:
            fully_shard(layer, reshard_after_forward=self.reshard_after_forward, **options)
        fully_shard(module, **options)
        return module

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """See :meth:`Sharding.save_checkpoint`; without ``save_distributed_checkpoint``, as the file of one process."""
        if self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        with fail_together():
            if self.is_global_zero:
                self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)
