"""Memory, speed and bandwidth of accelerators from their data sheets, and of this machine's CPU, measured."""

from __future__ import annotations

import functools
import os
import re
import time
from dataclasses import dataclass

import torch

from gspo_lightning.core.errors import UserError, did_you_mean

GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """Device of one process."""

    name: str
    memory: int
    """Bytes."""
    flops: float = 312e12
    """Dense bfloat16 FLOP per second, of a CPU float32; a multiply-add counts as two."""
    bandwidth: float = 2.0e12
    """Bytes per second."""
    link: float = 25e9
    """Bytes per second to another device of the same machine, one way; PCIe 4 unless there is a faster link."""
    cpu: bool = False
    libraries: int = 0
    """Bytes of a CPU that Python and its libraries take."""

    @property
    def reserved(self) -> int:
        """Bytes unavailable to tensors: driver context, libraries, communication, allocator fragmentation."""
        return self.libraries if self.cpu else round(1.0 * GIB + 0.03 * self.memory)


CARDS: dict[str, Device] = {
    "B200": Device("B200", 179 * GIB, 2250e12, 7.7e12, 900e9),
    "H200": Device("H200", 140 * GIB, 989e12, 4.8e12, 450e9),
    "H100": Device("H100", 79 * GIB, 989e12, 3.35e12, 450e9),
    "A100-80GB": Device("A100-80GB", 79 * GIB, 312e12, 2.0e12, 300e9),
    "A100": Device("A100", 39 * GIB, 312e12, 1.55e12, 300e9),
    "L40S": Device("L40S", 44 * GIB, 362e12, 0.86e12),
    "RTX6000-Ada": Device("RTX6000-Ada", 47 * GIB, 364e12, 0.96e12),
    "RTX4090": Device("RTX4090", 23 * GIB, 165e12, 1.0e12),
    "RTX3090": Device("RTX3090", 23 * GIB, 71e12, 0.94e12),
    "L4": Device("L4", 22 * GIB, 121e12, 0.3e12),
    "A10G": Device("A10G", 22 * GIB, 70e12, 0.6e12),
    "T4": Device("T4", 14 * GIB, 65e12, 0.32e12),
}
"""Name -> card; memory is what a process sees, rounded down."""


def device_of(word: str | None, accelerator: str) -> Device:
    """Return the device to plan for.

    Args:
        word: a size such as ``80GB``, the name of a card, or ``cpu`` for this machine; None is this machine if the
            config trains on a CPU, else an H100 (80 GB).
        accelerator: ``trainer.accelerator``.

    Raises:
        UserError: ``word`` is neither a size nor a card.
    """
    if word is None:
        word = "cpu" if accelerator == "cpu" else "H100"
    if word.lower() == "cpu":
        return _this_cpu()
    for name, card in CARDS.items():
        if word.lower().replace(" ", "").replace("-", "") == name.lower().replace("-", ""):
            return card
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:GB|GIB|G)", word.strip(), re.IGNORECASE)
    if match:
        size = float(match.group(1))
        near = min(CARDS.values(), key=lambda card: abs(card.memory - size * GIB))  # as fast as a card of that size
        memory = round(size * 0.985 * GIB)  # a process sees a little less than a card is sold with
        return Device(word, memory, near.flops, near.bandwidth, near.link, cpu=accelerator == "cpu")
    raise UserError("--device", f"{word!r} is neither cpu, a size such as 80GB nor a card; {did_you_mean(word, CARDS)}")


def _this_cpu() -> Device:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device("this machine's CPU", memory, _matrix_rate(), 20e9, cpu=True, libraries=GIB // 2)


@functools.cache
def _matrix_rate() -> float:
    """Measure the FLOP per second of float32 matrix products: the fastest of 30, because the machine may be busy."""
    rows = 128
    width = 512
    left = torch.ones(rows, width)
    right = torch.ones(width, width)
    seconds = []
    for _ in range(30):
        start = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - start)
    return 2.0 * rows * width * width / min(seconds)
