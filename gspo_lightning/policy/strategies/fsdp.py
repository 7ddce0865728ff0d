"""FSDP1 and FSDP2 (each parameter is sharded separately): Lightning's strategies, adapted to reinforcement learning.

:class:`FSDPStrategy` and :class:`FSDP2Strategy` shard every decoder layer of the policy separately, reduce gradients in
float32, also run on CPU processes (gloo), and write checkpoints that are complete or absent.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins.precision import FSDPPrecision, Precision
from lightning.pytorch.strategies import FSDPStrategy as LightningFSDP
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from gspo_lightning.core.distributed import fail_together
from gspo_lightning.core.errors import UserError, check_number
from gspo_lightning.policy.parallel.context_parallel import ContextGroup
from gspo_lightning.policy.parallel.expert_parallel import expert_modules, keep_experts
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.checks import check_context, check_experts
from gspo_lightning.policy.strategies.gathering import Gathering
from gspo_lightning.policy.strategies.layers import ShardedPrecision, compute_dtype, decoder_layers
from gspo_lightning.policy.strategies.loading import receive_weights, whole_state
from gspo_lightning.policy.strategies.optimizer_state import empty_state, has_state, load_shards, load_whole
from gspo_lightning.policy.strategies.sharding_strategy import Sharding
from gspo_lightning.resume import is_folder


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

    @property
    def mesh_sizes(self) -> dict[str, int]:
        """Number of ranks along each dimension; ``HYBRID_SHARD`` shards within a node."""
        nodes = self.num_nodes if "HYBRID" in str(self.sharding_strategy) else 1
        return super().mesh_sizes | {"replicate": nodes, "shard": self.world_size // nodes}

    def setup_environment(self) -> None:
        """Set up the environment, and set the device of autocast."""
        super().setup_environment()
        self.precision_plugin.device = self.root_device.type

    def setup(self, trainer: Trainer) -> None:
        """Set up without wrapping: the policy is wrapped already, and the module around it only gets its device."""
        super().setup(trainer)
        assert isinstance(self.lightning_module, LightningModule)
        self.lightning_module._device = self.root_device

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Load weights, and the state of optimizers that had some: torch cannot read a checkpoint without any."""
        path = Path(self.broadcast(checkpoint_path))
        if not is_folder(path) or all(has_state(path, f"optimizer_{i}") for i in range(len(self.optimizers))):
            return super().load_checkpoint(path, weights_only)
        with self.no_optimizers() as optimizers:
            checkpoint = super().load_checkpoint(path, weights_only)
        for number, optimizer in enumerate(optimizers):
            load_shards(path, f"optimizer_{number}", self.module, optimizer)
        return checkpoint

    def shard(self, policy: Policy, offload: bool = False) -> Policy:
        """Shard the policy layer by layer; returns a wrapper around it."""
        layers = decoder_layers(policy)
        policy.gathering = Gathering(policy, self.root_device, compute_dtype(self.precision_plugin.precision))
        wrapped: Any = self.spread(policy, layers, offload)
        return wrapped

    def spread(self, module: nn.Module, layers: Sequence[nn.Module], offload: bool = False) -> nn.Module:
        """Shard a module; returns a wrapper around it.

        Raises:
            UserError: its weights have several dtypes.
        """
        if len(dtypes := {str(p.dtype).removeprefix("torch.") for p in module.parameters()}) > 1:
            raise UserError(
                "trainer.strategy",
                "FSDPStrategy flattens the weights of a layer into one tensor, but this model's are "
                f"{' and '.join(sorted(dtypes))}",
                fix="use FSDP2Strategy (--config fsdp2), or model.dtype: float32 with trainer.precision: bf16-mixed",
            )
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
        replicas: copies of the weights (HSDP): ranks are cut into so many groups of neighbours, each of which shards
            the weights among its own and only adds up gradients with the others. As many as nodes keep the gathering
            of layers inside a node.
        context: ranks that compute the same rows, each a part of their tokens (context parallelism), for rows whose
            activations one rank cannot hold. Neighbours, no more than query heads, best a divisor of their number.
            They take turns: as many times more forward passes, each with a part of the tokens of one rank's rows.
        expert_parallel: experts of a mixture stay on the ranks that hold their shards, and tokens travel to them,
            instead of the weights of all experts to every rank.
    """

    loads_on_first_rank = saves_async = True
    weights_key = "state_dict"

    def __init__(
        self,
        cpu_offload: bool = False,
        save_distributed_checkpoint: bool = True,
        reshard_after_forward: bool = True,
        rollouts: Literal["gathered", "lockstep"] = "gathered",
        timeout_minutes: float = 30.0,
        replicas: int = 1,
        context: int = 1,
        expert_parallel: bool = False,
    ) -> None:
        super().__init__(
            save_distributed_checkpoint=save_distributed_checkpoint, timeout=timedelta(minutes=timeout_minutes)
        )
        check_number("trainer.strategy.replicas", replicas, low=1)
        check_number("trainer.strategy.context", context, low=1)
        if context > 1 and rollouts == "lockstep":
            raise UserError(
                "trainer.strategy.context",
                f"is {context}, but rollouts: lockstep samples from the shards that a group computes with",
                fix="use rollouts: gathered, or sample on inference servers",
            )
        self.cpu_offload = cpu_offload
        self.reshard_after_forward = reshard_after_forward
        self.rollouts = rollouts
        self.replicas = replicas
        self.context = context
        self.expert_parallel = expert_parallel
        others = {"cpu_offload": cpu_offload, "replicas": replicas > 1, "context": context > 1}
        others["rollouts: lockstep"] = rollouts == "lockstep"
        if expert_parallel and any(others.values()):
            also = next(name for name, value in others.items() if value)
            fix = f"leave out one of the two: experts are kept by all ranks together, without {also}"
            raise UserError("trainer.strategy.expert_parallel", f"cannot be used with {also}", fix=fix)

    def _setup_distributed(self) -> None:
        if self.world_size % self.replicas:
            raise UserError(
                "trainer.strategy.replicas",
                f"is {self.replicas}, but {self.world_size} ranks cannot be cut into so many equal groups",
                fix="use a divisor of the number of ranks, such as the number of nodes",
            )
        if self.world_size % self.context:
            raise UserError(
                "trainer.strategy.context",
                f"is {self.context}, but {self.world_size} ranks cannot be cut into groups of that size",
                fix="use a divisor of the number of ranks",
            )
        super()._setup_distributed()
        self._data_parallel_size = self.world_size
        self._tensor_parallel_size = 1

    @functools.cached_property
    def sharding_mesh(self) -> DeviceMesh:
        """Ranks over which weights are sharded: all of them, or [replicas, shards]."""
        if self.replicas == 1:
            return self.device_mesh["data_parallel"]
        shape = self.replicas, self.world_size // self.replicas
        return init_device_mesh(self.root_device.type, shape, mesh_dim_names=("replicate", "shard"))

    @functools.cached_property
    def context_group(self) -> ContextGroup | None:
        """Neighbouring ranks that compute the same rows; None without context parallelism."""
        return ContextGroup(dist.new_subgroups(self.context, timeout=self._timeout)[0]) if self.context > 1 else None

    @property
    def mesh_sizes(self) -> dict[str, int]:
        """Number of ranks along each dimension."""
        experts = self.world_size if self.expert_parallel else 1
        sizes = {
            "cp": self.context,
            "ep": experts,
            "replicate": self.replicas,
            "shard": self.world_size // self.replicas,
        }
        return super().mesh_sizes | sizes

    def check_model(self, policy: Policy) -> None:
        """Refuse a model that these settings cannot shard; it may be on the meta device.

        Raises:
            UserError: experts are to stay on their ranks, and it has none.
        """
        if self.expert_parallel and not expert_modules(policy):
            problem = f"is true, but {type(policy.model).__name__} has no experts whose weights are one tensor a layer"
            raise UserError("trainer.strategy.expert_parallel", problem, fix="leave it out")

    def shard(self, policy: Policy, offload: bool = False) -> Policy:
        """Shard the policy in place."""
        self.check_model(policy)
        dtype = compute_dtype(str(self.precision_plugin.precision))
        policy.gathering = Gathering(policy, self.root_device, dtype, lockstep=self.rollouts == "lockstep")
        state = whole_state(policy)
        self.spread(policy, decoder_layers(policy), offload)
        receive_weights(policy, state, torch.device("cpu") if self._offloads(offload) else self.root_device)
        return policy

    def _offloads(self, offload: bool) -> bool:
        return (self.cpu_offload or offload) and self.root_device.type != "cpu"

    def spread(self, module: nn.Module, layers: Sequence[nn.Module], offload: bool = False) -> nn.Module:
        """Shard a module in place; the policies in it compute with the ranks of :attr:`context_group`."""
        for policy in (m for m in module.modules() if isinstance(m, Policy)):
            check_context(policy, self.context)
            policy.context = self.context_group
        dtype = compute_dtype(str(self.precision_plugin.precision))
        options: dict[str, Any] = {
            "mesh": self.sharding_mesh,
            "mp_policy": MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False),
        }
        if self._offloads(offload):
            options["offload_policy"] = CPUOffloadPolicy()
        elif self.expert_parallel:
            check_experts(module, self.world_size)
            ignored: set[nn.Parameter] = set()
            for experts in expert_modules(module).values():
                ignored |= keep_experts(experts, self.sharding_mesh)
            options["ignored_params"] = ignored
        for layer in layers:
            fully_shard(layer, reshard_after_forward=self.reshard_after_forward, **options)
        fully_shard(module, **options)
        return module

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """Save a folder of shards, or the file of one process without ``save_distributed_checkpoint``."""
        if self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        with fail_together():
            if self.is_global_zero:
                self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return this rank's part of an optimizer's state; torch would make a missing one by a step, which counts."""
        inner = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        if inner.state:
            return super().optimizer_state(inner)
        if self._save_distributed_checkpoint:
            return empty_state(self.module, inner)
        return inner.state_dict() if self.is_global_zero else {}

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Load weights and optimizers from shards, or from the file of one process, without a step."""
        path = Path(self.broadcast(checkpoint_path))
        with self.no_optimizers() as optimizers:
            checkpoint = super().load_checkpoint(path, weights_only)
        if is_folder(path):
            for number, optimizer in enumerate(optimizers):
                load_shards(path, f"optimizer_{number}", self.module, optimizer)
        elif saved := checkpoint.get("optimizer_states"):  # none with LastCheckpoint.save_optimizer: false
            for state, optimizer in zip(saved, optimizers, strict=True):
                load_whole(state, optimizer)
        return checkpoint
