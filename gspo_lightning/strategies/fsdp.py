"""Lightning's sharding strategies with what reinforcement learning needs of them.

:class:`FSDPStrategy` and :class:`FSDP2Strategy` shard every decoder layer of the policy for itself, reduce gradients in
float32, run on CPU processes (gloo), too, and write checkpoints that are there whole or not at all.
"""

from __future__ import annotations

import contextlib
import functools
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import FSDPPrecision, Precision
from lightning.pytorch.strategies import FSDPStrategy as LightningFSDP
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers.modeling_layers import GradientCheckpointingLayer

from gspo_lightning.distributed import fail_together
from gspo_lightning.errors import UserError
from gspo_lightning.policy.policy import Policy
from gspo_lightning.resume import save_folder
from gspo_lightning.strategies.sharding import Gathering, is_sharded

__all__ = ["FSDP2Strategy", "FSDPStrategy", "check_optimizer", "check_strategy", "decoder_layers"]


_ENGINES = {"DeepSpeedStrategy", "XLAStrategy", "SingleDeviceXLAStrategy", "XLAFSDPStrategy"}
"""By name: importing them would need what they need."""


def check_strategy(strategy: object) -> None:
    """Refuse Lightning's own sharding strategies, which gather weights only inside a forward pass, strategies with an
    engine of their own, and processes that are not started from the command line.

    Raises:
        UserError: it is one of them, or its name.
    """
    name = strategy if isinstance(strategy, str) else f"Lightning's {type(strategy).__name__}"
    named = isinstance(strategy, str) and strategy.startswith("fsdp")
    if named or (isinstance(strategy, LightningFSDP | ModelParallelStrategy) and not isinstance(strategy, _Sharding)):
        raise UserError(
            "trainer.strategy",
            f"{name} cannot sample from sharded weights",
            fix="add --config configs/fsdp2.yaml (class_path: gspo_lightning.strategies.FSDP2Strategy), or fsdp.yaml",
        )
    engine = isinstance(strategy, str) and strategy.startswith(("deepspeed", "xla"))
    if engine or {kind.__name__ for kind in type(strategy).__mro__} & _ENGINES:
        raise UserError(
            "trainer.strategy",
            f"{name} has a backward pass and an optimizer step of its own, which this package does not drive",
            fix="use ddp, or configs/fsdp2.yaml where a rank cannot hold the whole optimizer state",
        )
    start = getattr(strategy, "_start_method", "popen")
    if start != "popen":
        raise UserError(
            "trainer.strategy",
            f"starts its processes by {start!r}: reward workers and prompts are in this process and cannot follow",
            fix="use ddp, which starts every rank from the command line",
        )


def check_optimizer(optimizer: torch.optim.Optimizer, policy: nn.Module) -> None:
    """Refuse on shards: bitsandbytes, whose 8-bit state belongs to blocks of whole tensors, and with FSDP1 an optimizer
    that keeps no state, because torch would not find the state it expects when it resumes.

    Raises:
        UserError: the policy is sharded and the optimizer is one of these.
    """
    stateless = isinstance(optimizer, torch.optim.SGD) and not any(g["momentum"] for g in optimizer.param_groups)
    if stateless and isinstance(policy, FullyShardedDataParallel):
        raise UserError(
            "model.optimizer",
            "SGD without momentum keeps no state, and a checkpoint of FSDPStrategy without any cannot be resumed",
            fix="use torch.optim.AdamW or a momentum above 0, or FSDP2Strategy (configs/fsdp2.yaml)",
        )
    if is_sharded(policy) and type(optimizer).__module__.startswith("bitsandbytes"):
        raise UserError(
            "model.optimizer",
            f"{type(optimizer).__name__} of bitsandbytes cannot step or save sharded weights",
            fix="use torch.optim.AdamW (every rank keeps only its share of the state), or strategy: ddp",
        )


def decoder_layers(policy: Policy) -> list[nn.Module]:
    """The layers that are sharded each for itself: gathered just before they compute and dropped right after.

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
    """Of parameters in forward passes; None keeps each parameter's own."""
    return torch.bfloat16 if precision == "bf16-mixed" else None


class ShardedPrecision(FSDPPrecision):
    """Lightning's, but gradients are reduced in float32, autocast is on the device that trains, and inputs stay.

    Lightning's rounds every float of a batch, advantages and old log-probabilities included.
    """

    device = "cuda"

    @property
    def mixed_precision_config(self) -> MixedPrecision:
        """Of every wrapped module."""
        return MixedPrecision(
            param_dtype=compute_dtype(self.precision),
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
            cast_root_forward_inputs=False,
        )

    def convert_module(self, module: nn.Module) -> nn.Module:
        """As it is: ``model.dtype`` decides."""
        return module

    def convert_input(self, data: Any) -> Any:
        """As it is."""
        return data

    def convert_output(self, data: Any) -> Any:
        """As it is."""
        return data

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast with bf16-mixed."""
        if self.precision != "bf16-mixed":
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16, cache_enabled=False)


class _Sharding:
    """What both strategies share."""

    reduces_each = True
    """Whether every micro-batch reduces its gradients: so a rank never holds more than its shard of them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """Write a folder beside the target, swap it in, and write its manifest last.

        Raises:
            NonFiniteError: a weight or an optimizer state is not finite.
            InfrastructureError: it cannot be written.
        """
        path = Path(self.broadcast(filepath))  # type: ignore[attr-defined]
        write = functools.partial(super().save_checkpoint, checkpoint)  # type: ignore[misc]
        save_folder(path, checkpoint, write, (storage_options or {}).get("score"))


class FSDPStrategy(_Sharding, LightningFSDP):
    """Fully sharded data parallel (FSDP1).

    Args:
        cpu_offload: keep shards and optimizer state in the main memory.
        sharding_strategy: ``FULL_SHARD``, ``SHARD_GRAD_OP`` or ``HYBRID_SHARD`` (within a node).
        timeout_minutes: after which a collective that some rank does not join fails; a rollout may take this long.
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
        """:class:`ShardedPrecision`, whatever Lightning has chosen."""
        return super().precision_plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        self._precision_plugin = ShardedPrecision(plugin.precision) if isinstance(plugin, FSDPPrecision) else plugin

    def setup_environment(self) -> None:
        """Also tell autocast which device it is for."""
        super().setup_environment()
        self.precision_plugin.device = self.root_device.type

    def setup(self, trainer: Trainer) -> None:
        """The policy is wrapped already; the module around it only learns where it is."""
        super().setup(trainer)
        assert isinstance(self.lightning_module, LightningModule)
        self.lightning_module._device = self.root_device

    def shard(self, policy: Policy, offload: bool = False) -> Policy:
        """Wrap a policy; the result is called and read like it.

        Args:
            policy: whole, on every rank.
            offload: keep its shards in the main memory, whatever ``cpu_offload`` says: they visit the device layer by
                layer, while they compute.
        """
        kinds = {type(layer) for layer in decoder_layers(policy)}
        apart = self.root_device.type != "cpu"
        policy.gathering = Gathering(policy, self.root_device, compute_dtype(self.precision_plugin.precision))
        wrapped: Any = FullyShardedDataParallel(
            policy,
            auto_wrap_policy=ModuleWrapPolicy(kinds),
            cpu_offload=CPUOffload((offload or bool(self.cpu_offload and self.cpu_offload.offload_params)) and apart),
            device_id=self.root_device,
            mixed_precision=self.mixed_precision_config,
            sharding_strategy=self.sharding_strategy,
            use_orig_params=True,
        )
        return wrapped


class FSDP2Strategy(_Sharding, ModelParallelStrategy):
    """Fully sharded data parallel by ``torch.distributed.fsdp.fully_shard`` (FSDP2).

    Args:
        cpu_offload: keep shards and optimizer state in the main memory.
        save_distributed_checkpoint: each rank writes its shards, to a folder; false: rank 0 writes one file.
        reshard_after_forward: drop a layer's parameters after its forward pass and gather them again for the backward
            pass; false needs the memory of all parameters and saves a third of the communication.
        rollouts: ``gathered``: sample from a plain copy of all parameters in the dtype that computes, every rank at its
            own pace; ``lockstep``: from the shards, layer by layer, where that copy does not fit. All ranks then wait
            for the longest response at every step.
        timeout_minutes: after which a collective that some rank does not join fails; a rollout may take this long.
    """

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
        """Shard a policy in place; ``offload`` as in :meth:`FSDPStrategy.shard`."""
        dtype = compute_dtype(str(self.precision_plugin.precision))
        policy.gathering = Gathering(policy, self.root_device, dtype, lockstep=self.rollouts == "lockstep")
        options: dict[str, Any] = {
            "mesh": self.device_mesh["data_parallel"],
            "mp_policy": MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False),
        }
        if (self.cpu_offload or offload) and self.root_device.type != "cpu":
            options["offload_policy"] = CPUOffloadPolicy()
        for layer in decoder_layers(policy):
            fully_shard(layer, reshard_after_forward=self.reshard_after_forward, **options)
        fully_shard(policy, **options)
        return policy

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """See :meth:`_Sharding.save_checkpoint`; as one file like that of a single process, if so chosen."""
        if self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        with fail_together():
            if self.is_global_zero:
                self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)
