"""Copies from the host to a device: several tensors in one pinned buffer, for which the host does not wait.

CUDA copies pageable memory itself: with ``non_blocking=True`` the host still waits for the stream beyond 64 KiB. A
pinned buffer is read by the device, and one copy of it costs one launch whatever the number of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

PINNED: dict[str, Callable[[int], Tensor]] = {
    "cuda": lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True),
}
"""Type of a device -> allocate bytes of host memory that it reads by itself."""
ALIGNMENT = 16
"""Bytes to whose multiple the start of a tensor in the buffer is rounded: enough for every dtype."""


def to_device(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Return tensors on a device; those of the CPU travel together, as views of one buffer there.

    PyTorch keeps pinned memory until the device has read it, so the buffer may be dropped at once.

    Args:
        tensors: on any device, of any shapes and dtypes.
        device: where they go; other types than those of :data:`PINNED` get ordinary copies.
    """
    device = torch.device(device)
    allocate = PINNED.get(device.type)
    leaving = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.numel()]
    if allocate is None or not leaving:
        return [tensor.to(device, non_blocking=tensor.device.type == "cpu") for tensor in tensors]
    sizes = [-(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT for tensor in leaving]
    buffer = allocate(sum(sizes))
    for tensor, piece in zip(leaving, buffer.split(sizes), strict=True):
        _viewed(piece, tensor).copy_(tensor)
    pieces = iter(buffer.to(device, non_blocking=True).split(sizes))
    travelled = (tensor.device.type == "cpu" and tensor.numel() > 0 for tensor in tensors)
    return [
        _viewed(next(pieces), tensor) if moved else tensor.to(device)
        for tensor, moved in zip(tensors, travelled, strict=True)
    ]


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of one dtype on the CPU; those of a device come in one copy, for which the host waits once."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def _viewed(piece: Tensor, like: Tensor) -> Tensor:
    """Return the first bytes of a piece as a tensor of the shape and dtype of another."""
    return piece[: like.numel() * like.element_size()].view(like.dtype).view(like.shape)
