"""What the rest of the package asks a strategy: who spreads weights, who has them whole, who reduces gradients when.

Lightning's own strategies cannot be asked; what they answer stands here, and nowhere else is a strategy told by its
class or name.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gspo_lightning.policy.policy import Policy
from gspo_lightning.resume import save_folder
from gspo_lightning.strategies.sharding import without_sync

__all__ = ["Sharding", "ddp_of", "has_whole_weights", "no_backward_sync", "sharding_of"]


class Sharding(Strategy):
    """A strategy that spreads the policy over ranks: none has all weights, and all compute in step."""

    reduces_each = True
    """Whether every backward pass reduces gradients: so a rank never holds more than its shard of them."""

    loads_on_first_rank = False
    """Whether rank 0 alone needs the whole weights before they are sharded. Of FSDP1 every rank does."""

    @abstractmethod
    def shard(self, policy: Policy, offload: bool = False) -> Policy:
        """Spread a policy; the result is called and read like it.

        Args:
            policy: whole, on every rank, or where :attr:`loads_on_first_rank` says so.
            offload: keep its shards in the main memory, whatever the strategy does with others: they visit the device
                layer by layer, while they compute.
        """

    @abstractmethod
    def spread(self, module: nn.Module, layers: Sequence[nn.Module], offload: bool = False) -> nn.Module:
        """Spread a module that is never put together again: a policy without what :meth:`shard` adds for rollouts.

        Args:
            module: whole, on every rank; its forward pass is where gathering starts.
            layers: of it, gathered one at a time.
            offload: see :meth:`shard`.
        """

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """Write a folder beside the target, swap it in, and write its manifest last.

        Raises:
            NonFiniteError: a weight or an optimizer state is not finite.
            InfrastructureError: it cannot be written.
        """
        path = Path(self.broadcast(filepath))
        write = functools.partial(super().save_checkpoint, checkpoint)
        save_folder(path, checkpoint, write, (storage_options or {}).get("score"))


def sharding_of(strategy: object) -> Sharding | None:
    """The strategy itself if it spreads the policy over ranks."""
    return strategy if isinstance(strategy, Sharding) else None


def has_whole_weights(strategy: object) -> bool:
    """Whether every rank has all weights, so that it can copy them alone. Of an unknown strategy nobody says so."""
    return isinstance(strategy, SingleDeviceStrategy | DDPStrategy)


def ddp_of(strategy: Strategy) -> DistributedDataParallel | None:
    """What is around the module under DDP: it reduces gradients in the backward pass that follows its forward."""
    return strategy.model if isinstance(strategy.model, DistributedDataParallel) else None


def no_backward_sync(strategy: Strategy, policy: Policy) -> AbstractContextManager[None]:
    """Gradients of a backward pass in here stay on this rank, where they can; the next one outside reduces them, too.

    A strategy that :attr:`~Sharding.reduces_each` time has no room for whole gradients, and a single process has nobody
    to reduce with: for them it changes nothing.
    """
    if (ddp := ddp_of(strategy)) is not None:
        found: AbstractContextManager[None] = ddp.no_sync()
        return found
    sharding = sharding_of(strategy)
    return nullcontext() if sharding is None or sharding.reduces_each else without_sync(policy)
