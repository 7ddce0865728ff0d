"""Bytes are counted as they are: what a collective brings to a rank, and what tensors hold at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.simulated.ranks import Held, Received

KIB = torch.zeros(256)
"""1,024 bytes."""


@pytest.fixture
def rank_1_of_4() -> Iterator[None]:
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("rank_1_of_4")
def test_received_bytes_of_each_collective_are_counted() -> None:
    four = [KIB.clone() for _ in range(4)]
    steps = {
        "all_gather": (lambda: dist.all_gather(four, KIB), 3),
        "all_gather_into_tensor": (lambda: dist.all_gather_into_tensor(torch.zeros(1024), KIB), 3),
        "functional": (lambda: functional.all_gather_tensor(KIB, 0, dist.group.WORLD).sum(), 3),
        "gather here": (lambda: dist.gather(KIB, four, dst=1), 3),
        "gather elsewhere": (lambda: dist.gather(KIB, None, dst=0), 0),
        "broadcast": (lambda: dist.broadcast(KIB.clone(), src=0), 1),
        "broadcast from here": (lambda: dist.broadcast(KIB, src=1), 0),
        "scatter": (lambda: dist.scatter(KIB.clone(), None, src=0), 1),
        "recv": (lambda: dist.recv(KIB.clone(), src=0), 1),
        "sum": (lambda: KIB.sum(), 0),
    }
    found = {}
    for name, (act, _) in steps.items():
        with Received() as received:
            act()
        found[name] = received.bytes
    assert found == {name: 1024 * expected for name, (_, expected) in steps.items()}


def test_peak_bytes_of_new_tensors_are_counted() -> None:
    before = torch.zeros(1024)
    with Held() as held:
        first = before + 1  # 4,096 bytes
        second = first[:512].clone()  # 2,048 more
        del first
        third = second * 2  # 2,048: 4,096 at most together with the second
        before.add_(1)
        view = third.view(2, -1)
    assert held.most == 4096 + 2048
    assert view.shape == (2, 256)
