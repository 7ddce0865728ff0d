"""What a strategy answers: who spreads weights, who has them whole, and who reduces gradients when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.strategies import FSDPStrategy as LightningFSDP
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from gspo_lightning.policy.strategies import (
    FSDP2Strategy,
    FSDPStrategy,
    Sharding,
    ddp_of,
    has_whole_weights,
    no_backward_sync,
    sharding_of,
)
from gspo_lightning.policy.strategies.sharding import unwrapped


@pytest.fixture
def rank_of_two() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def single() -> Strategy:
    return SingleDeviceStrategy(torch.device("cpu"))


def policy() -> Any:
    """Anything with a weight."""
    return nn.Linear(4, 4)


@pytest.mark.parametrize("make", [FSDPStrategy, FSDP2Strategy])
def test_a_strategy_that_shards_is_its_own_sharding(make: type[Sharding]) -> None:
    strategy = make()
    assert sharding_of(strategy) is strategy
    assert not has_whole_weights(strategy)
    assert ddp_of(strategy) is None
    assert callable(strategy.shard)


@pytest.mark.parametrize("make", [single, DDPStrategy, type("MyDDP", (DDPStrategy,), {})])
def test_replicas_have_whole_weights_and_nothing_to_shard_with(make: Any) -> None:
    assert sharding_of(make()) is None
    assert has_whole_weights(make())


@pytest.mark.parametrize("make", [LightningFSDP, ModelParallelStrategy])
def test_of_other_strategies_neither_is_said(make: Any) -> None:
    assert sharding_of(make()) is None
    assert not has_whole_weights(make())


@pytest.mark.usefixtures("rank_of_two")
def test_ddp_reduces_outside_only() -> None:
    strategy = DDPStrategy()
    strategy.model = model = DistributedDataParallel(policy())
    assert ddp_of(strategy) is model
    with no_backward_sync(strategy, policy()):
        assert not model.require_backward_grad_sync
    assert model.require_backward_grad_sync


def test_a_single_process_has_nobody_to_reduce_with() -> None:
    layer = policy()
    with no_backward_sync(single(), layer):
        layer(torch.ones(1, 4)).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.usefixtures("rank_of_two")
def test_shards_reduce_every_time_unless_they_are_offloaded() -> None:
    """With offloading FSDP1 would put a new gradient in the place of the one before."""
    wrapped: Any = FullyShardedDataParallel(policy(), device_id=torch.device("cpu"), use_orig_params=True)
    with no_backward_sync(FSDPStrategy(), wrapped):
        assert wrapped._sync_gradients
    with no_backward_sync(FSDPStrategy(cpu_offload=True), wrapped):
        assert not wrapped._sync_gradients
    assert wrapped._sync_gradients
    sharded: Any = fully_shard(policy(), mesh=init_device_mesh("cpu", (2,)))
    group = sharded._get_fsdp_state()._fsdp_param_group
    with no_backward_sync(FSDP2Strategy(cpu_offload=True), sharded):
        assert group.reduce_grads


@pytest.mark.usefixtures("rank_of_two")
def test_the_policy_inside_a_wrapper_is_found() -> None:
    layer = policy()
    sharded: Any = fully_shard(policy(), mesh=init_device_mesh("cpu", (2,)))
    assert unwrapped(layer) is layer
    assert unwrapped(sharded) is sharded
    wrapped: Any = FullyShardedDataParallel(layer, device_id=torch.device("cpu"), use_orig_params=True)
    assert unwrapped(wrapped) is layer
