"""Tensors that travel to a device in one buffer, and back in one copy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gspo_lightning.core import transfer
from gspo_lightning.core.transfer import to_device, to_host

TENSORS = [
    torch.arange(5),
    torch.tensor([[True, False, True]]),
    torch.tensor(2.5),
    torch.zeros(0, 4, dtype=torch.int64),
    torch.linspace(0, 1, 7, dtype=torch.float64)[::2],
    torch.tensor([1, -3], dtype=torch.int16),
    torch.linspace(-1, 1, 6, dtype=torch.bfloat16).view(2, 3).t(),
]
"""Sizes that are no multiple of an element's, none at all, a number, and layouts with gaps."""


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Buffers that were allocated as for a device, on the device of the values."""
    made: list[Tensor] = []

    def allocate(size: int) -> Tensor:
        made.append(torch.empty(size, dtype=torch.uint8))
        return made[-1]

    monkeypatch.setitem(transfer.PINNED, "cpu", allocate)
    return made


def test_tensors_of_any_kind_arrive_as_they_were_in_one_buffer(buffers: list[Tensor]) -> None:
    found = to_device(TENSORS, "cpu")
    assert len(buffers) == 1
    for got, sent in zip(found, TENSORS, strict=True):
        assert (got.shape, got.dtype) == (sent.shape, sent.dtype)
        assert torch.equal(got, sent)
    arrived = [x for x in found if x.numel()]
    assert len({x.untyped_storage().data_ptr() for x in arrived}) == 1
    ends = [x.data_ptr() + x.numel() * x.element_size() for x in arrived]
    assert all(end <= x.data_ptr() for end, x in zip(ends, arrived[1:], strict=False))


def test_nothing_is_allocated_for_a_device_that_reads_no_memory_of_the_host() -> None:
    assert all(got is sent for got, sent in zip(to_device(TENSORS, "cpu"), TENSORS, strict=True))
    assert to_device([torch.ones(2)], "meta")[0].device.type == "meta"


def test_results_come_back_in_their_shapes() -> None:
    sent = [torch.ones(2, 3), torch.zeros(0), torch.full((4,), 2.0)]
    assert all(torch.equal(a, b) for a, b in zip(to_host(sent), sent, strict=True))
