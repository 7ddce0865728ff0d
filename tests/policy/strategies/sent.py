"""What leaves the first rank for servers (``transfer: nccl``): of shards the same bytes as of whole weights."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist

from gspo_lightning.core.types import WeightsOn
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.gathering import leading
from gspo_lightning.policy.strategies.sharding import gathered
from gspo_lightning.rollouts.serving.pool import Server
from gspo_lightning.rollouts.vllm import transfer
from gspo_lightning.rollouts.vllm.transfer import CheckpointWeights, Sender

Sent = list[tuple[str, torch.dtype, tuple[int, ...], bytes]]


class ParamMeta(NamedTuple):
    """vLLM's, by its fields."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def sent(policy: Policy, dtype: torch.dtype, *, adapters: bool) -> Sent:
    """What vLLM's engine would read from the source, in order; only the engine and the server have stand-ins."""
    found: Sent = []

    def opened(way: str, calls: object, source: CheckpointWeights, address: str, workers: int) -> Any:
        assert (way, address, workers) == ("nccl", "127.0.0.1", 3)

        def send_weights() -> None:
            said = [tuple(meta) for meta in source.metadata()]
            for name, value in source:
                assert value.is_contiguous()
                data = value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
                found.append((name, value.dtype, tuple(value.shape), data))
            assert said == [one[:3] for one in found], "what is announced is what comes"
            assert source.buffer >= max(len(data) for *_, data in found)

        return SimpleNamespace(send_weights=send_weights)

    async def world_size() -> int:
        return 3

    client: Any = SimpleNamespace(url="http://127.0.0.1:1", world_size=world_size)
    module: Any = ModuleType("vllm.distributed.weight_transfer")
    module.ParamMeta = ParamMeta
    modules = {"vllm": ModuleType("vllm"), "vllm.distributed": ModuleType("vllm.distributed"), module.__name__: module}
    with mock.patch.dict(sys.modules, modules), mock.patch.object(transfer, "_open", opened):
        asyncio.run(Sender("nccl", 60.0).send(Server(client), policy, dtype, adapters=adapters, known=True))
    return found


def _name(one: tuple[str, torch.dtype, tuple[int, ...], bytes]) -> str:
    return one[0]


def compare_sent(plain: Policy, sharded: Policy) -> None:
    """Raises AssertionError where rank 0 would send something else than a single process would."""
    first = dist.get_rank() == 0
    for dtype in (torch.float32, torch.bfloat16):
        for adapters in (True, False):
            with gathered(sharded, WeightsOn.STREAMED) as whole, leading(whole) as leads:
                found = sorted(sent(whole, dtype, adapters=adapters), key=_name) if leads else []
            if not first:
                continue
            expected = sorted(sent(plain, dtype, adapters=adapters), key=_name)
            assert [one[:3] for one in found] == [one[:3] for one in expected], "names, dtypes or shapes"
            assert all(kind is dtype for _, kind, *_ in found)
            for (name, *_, mine), (*_, theirs) in zip(found, expected, strict=True):
                assert mine == theirs, f"bytes of {name}"
