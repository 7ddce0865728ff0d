"""AdamW, SGD with momentum, AdamW with 8-bit moments and Muon in float64, from their definitions."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["OPTIMIZERS", "Rule"]


class Rule(Protocol):
    """Keeps the state of one weight."""

    def step(self, gradient: Tensor) -> Tensor:
        """The change of the weight."""


class AdamW:
    """Decoupled weight decay of 0 (arXiv 1711.05101)."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.count = 0
        self.first: Tensor | float = 0.0
        self.second: Tensor | float = 0.0

    def step(self, gradient: Tensor) -> Tensor:
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        size = (self.second / (1 - 0.999**self.count)).sqrt() + 1e-8
        change = -self.rate * self.first / (1 - 0.9**self.count) / size
        self.store()
        return change

    def store(self) -> None:
        """Keep the moments as they are."""


class AdamW8bit(AdamW):
    """Moments in 8 bits between two steps, by bitsandbytes' own code; weights under 4,096 elements keep theirs."""

    def store(self) -> None:
        assert isinstance(self.first, Tensor)
        assert isinstance(self.second, Tensor)
        if self.first.numel() >= 4096:
            self.first = _in_8_bits(self.first, signed=True)
            self.second = _in_8_bits(self.second, signed=False)


def _in_8_bits(values: Tensor, *, signed: bool) -> Tensor:
    from bitsandbytes.functional import create_dynamic_map, dequantize_blockwise, quantize_blockwise

    code = create_dynamic_map(signed=signed)
    packed, state = quantize_blockwise(values.float(), code=code, blocksize=256)
    return dequantize_blockwise(packed, state).double()


class SGD:
    """Momentum .9."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.moment: Tensor | float = 0.0

    def step(self, gradient: Tensor) -> Tensor:
        self.moment = 0.9 * self.moment + gradient
        return -self.rate * self.moment


class Muon:
    """Nesterov momentum .95, five iterations of Newton-Schulz, a larger rate for tall matrices (Jordan, 2024)."""

    dtype = torch.float64

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.moment: Tensor | float = 0.0

    def step(self, gradient: Tensor) -> Tensor:
        # torch keeps an average where the definition keeps a sum: the iteration divides the factor away
        self.moment = 0.95 * self.moment + 0.05 * gradient
        matrix = (0.05 * gradient + 0.95 * self.moment).to(self.dtype)
        tall = matrix.shape[0] > matrix.shape[1]
        matrix = matrix.T if tall else matrix
        matrix = matrix / matrix.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = matrix @ matrix.T
            matrix = 3.4445 * matrix + (-4.775 * gram + 2.0315 * gram @ gram) @ matrix
        matrix = (matrix.T if tall else matrix).double()
        return -self.rate * math.sqrt(max(1.0, gradient.shape[0] / gradient.shape[1])) * matrix


class MuonInBfloat16(Muon):
    """As torch computes it."""

    dtype = torch.bfloat16


OPTIMIZERS: dict[str, type[Rule]] = {"AdamW": AdamW, "SGD": SGD, "8-bit": AdamW8bit, "Muon": Muon}
