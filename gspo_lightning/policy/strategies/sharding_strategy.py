"""Strategy interface: who shards weights, which ranks hold whole weights, and when gradients are reduced.

Lightning's own strategies have no such interface; their answers are here, and no other module tests a strategy's class
or name.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gspo_lightning.core.distributed import fail_together
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import without_sync
from gspo_lightning.resume import check_finite, save_folder, write_shards


class Sharding(Strategy):
    """A strategy that shards the policy over ranks: no rank has all weights, and all ranks compute in step."""

    reduces_each = True
    """True if every backward pass reduces gradients: a rank then never holds more than its shard of them."""

    loads_on_first_rank = False
    """True if only rank 0 needs the whole weights before sharding. With FSDP1, every rank does."""

    saves_async = False
    """True if shards can be copied, and written in a thread."""

    weights_key = "model"
    """Name of the weights among the shards of a checkpoint, where Lightning looks for them."""

    @property
    def mesh_sizes(self) -> dict[str, int]:
        """Number of ranks along each dimension, by the name in its metric."""
        return {"cp": 1, "ep": 1, "replicate": 1, "shard": self.world_size}

    def on_train_start(self) -> None:
        """Log the sizes of the mesh, at the start of a run and of its continuation."""
        super().on_train_start()
        module = self.lightning_module
        assert module is not None
        for logger in module.loggers:
            sizes = {f"parallel/{name}": float(size) for name, size in self.mesh_sizes.items()}
            logger.log_metrics(sizes, step=module.global_step)

    @property
    def module(self) -> nn.Module:
        """The trained module whose parameters are sharded."""
        assert self.model is not None
        return self.model

    @contextmanager
    def no_optimizers(self) -> Iterator[list[Optimizer]]:
        """Yield the optimizers; inside, Lightning loads weights only."""
        optimizers: list[Optimizer] = self.optimizers  # type: ignore[has-type]
        self.optimizers = []
        try:
            yield optimizers
        finally:
            self.optimizers = optimizers

    @abstractmethod
    def shard(self, policy: Policy, offload: bool = False) -> Policy:
        """Shard a policy; the result is called and read like the policy.

        Args:
            policy: whole, on every rank, or only on rank 0 with :attr:`loads_on_first_rank`.
            offload: keep its shards in CPU memory, whatever the strategy does with others: they are moved to the device
                layer by layer, while they compute.
        """

    @abstractmethod
    def spread(self, module: nn.Module, layers: Sequence[nn.Module], offload: bool = False) -> nn.Module:
        """Shard a module that is never gathered whole again: without what :meth:`shard` adds for rollouts.

        Args:
            module: whole, on every rank; gathering starts at its forward pass.
            layers: its layers, gathered one at a time.
            offload: see :meth:`shard`.
        """

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """Write to a temporary folder, swap it in for the target, and write its manifest last.

        Args:
            checkpoint: tensors and primitives; sharded tensors give this rank's part.
            filepath: the folder, on storage that all ranks share.
            storage_options: ``{"score": float, "ranks": int}`` for the manifest, ``{"async_save": AsyncSave}`` to write
                it in a thread; or None.

        Raises:
            NonFiniteError: a weight or an optimizer state is not finite.
            InfrastructureError: it cannot be written.
        """
        path = Path(self.broadcast(filepath))
        options = storage_options or {}
        with fail_together():
            check_finite(checkpoint)
            path.parent.mkdir(parents=True, exist_ok=True)  # not in the thread: the run may be deleted meanwhile

        def write(checkpoint: dict[str, Any]) -> None:
            save = functools.partial(write_shards, checkpoint, weights=self.weights_key)
            save_folder(path, checkpoint, save, options)

        writer = options.get("async_save")
        if writer is None:
            write(checkpoint)
        else:
            writer.start(checkpoint, write)


def sharding_of(strategy: object) -> Sharding | None:
    """Return the strategy itself if it shards the policy over ranks, else None."""
    return strategy if isinstance(strategy, Sharding) else None


def has_whole_weights(strategy: object) -> bool:
    """True if every rank has all weights, so it can copy them without a collective. False for an unknown strategy."""
    return isinstance(strategy, SingleDeviceStrategy | DDPStrategy)


def ddp_of(strategy: Strategy) -> DistributedDataParallel | None:
    """Return the DDP wrapper of the module, or None: it reduces gradients in the backward pass after its forward."""
    return strategy.model if isinstance(strategy.model, DistributedDataParallel) else None


def no_backward_sync(strategy: Strategy, policy: Policy) -> AbstractContextManager[None]:
    """Keep gradients of a backward pass in this context on this rank, if possible.

    The next backward pass outside reduces them, too. The context changes nothing for a strategy with
    :attr:`~Sharding.reduces_each`, which has no room for whole gradients, or for a single process.
    """
    ddp = ddp_of(strategy)
    if ddp is not None:
        no_sync: AbstractContextManager[None] = ddp.no_sync()
        return no_sync
    sharding = sharding_of(strategy)
    if sharding is None or sharding.reduces_each:
        return nullcontext()
    return without_sync(policy)
