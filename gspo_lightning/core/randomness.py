"""Counter-based randomness: every draw is a pure function of its purpose and position.

A draw is a hash of ``(seed, purpose, iteration, prompt id, sample k, token position)``. Nothing has to be saved for an
exact resume, and neither the batching order, row compaction, the number of ranks nor timing can change a draw. The idea
is from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the mixer is SplitMix64's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from enum import IntEnum, unique
from typing import overload

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


@unique
class Purpose(IntEnum):
    """Purpose of a draw; keeps the streams of different uses apart."""

    TRAIN_SAMPLING = 1
    """Tokens of training rollouts."""
    EVAL_SAMPLING = 2
    """Tokens of evaluation responses."""
    PROMPT_ORDER = 3
    """Prompts of an iteration."""
    ROW_ORDER = 4
    """Order of the mini-batches in later passes over a rollout batch."""
    COLD_START = 5
    """Order of the demonstrations of a cold start."""
    INITIALISATION = 6
    """Weights of a model that is built from a config."""
    RESAMPLING = 7
    """Prompts that replace dead groups."""
    COLD_START_HELD_OUT = 8
    """Demonstrations that a cold start holds out."""
    CURRICULUM = 9
    """Random choices of a curriculum."""
    PAIR_ORDER = 10
    """Order of preference pairs in an epoch of a reward model."""
    PAIRS_HELD_OUT = 11
    """Prompts whose preference pairs are held out from a reward model."""
    MIXTURE = 12
    """Positions in an iteration for the prompts of a source."""
    DEAL = 13
    """Mini-batch of each row of a rollout batch, if rows are shuffled."""


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix_int(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def stream(*keys: int) -> int:
    """Return one 64-bit stream identifier from any number of integers.

    >>> stream(1, 2) == stream(1, 2), stream(1, 2) == stream(2, 1)
    (True, False)
    """
    state = 0
    for key in keys:
        state = _mix_int(state ^ (key & _MASK))
    return state


def stable_hash(text: str) -> int:
    """Return a 64-bit hash of a text that is the same in every process and Python version (``hash`` is not).

    >>> stable_hash("7+5:") % 10 == stable_hash("7+5:") % 10
    True
    """
    state = len(text)
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) & _MASK
    return _mix_int(state)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # logical shift of a signed 64-bit integer


def _mix(z: Tensor) -> Tensor:
    z = z + _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_MIX1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX2)
    return z ^ _shift(z, 31)


def uniforms(base: int, *counters: Tensor | int) -> Tensor:
    """Return one uniform in [0, 1) per element of the broadcast integer ``counters``; float64, 53 random bits.

    Args:
        base: a stream from :func:`stream`.
        counters: int64 tensors (or integers) that broadcast together, for example prompt id, sample and position.

    >>> a = uniforms(stream(0), torch.arange(4), 7)
    >>> bool((a == uniforms(stream(0), torch.arange(4), 7)).all() and (a >= 0).all() and (a < 1).all())
    True
    """
    state: Tensor | int = base & _MASK
    for counter in counters:
        if isinstance(state, Tensor):
            state = _mix(state ^ (counter if isinstance(counter, Tensor) else _signed(counter)))
        elif isinstance(counter, Tensor):
            state = _mix(counter ^ _signed(state))
        else:
            state = _mix_int(state ^ (counter & _MASK))
    bits = state if isinstance(state, Tensor) else torch.tensor(_signed(state))
    return _shift(bits, 11).double() * 2.0**-53


def permutation(base: int, size: int) -> Tensor:
    """Return a permutation of ``range(size)``, int64 on the CPU, from one stream.

    >>> sorted(permutation(stream(5), 4).tolist())
    [0, 1, 2, 3]
    """
    return torch.argsort(uniforms(base, torch.arange(size)), stable=True)


class Shuffle(Sequence[int]):
    """A permutation of ``range(size)`` that computes any element alone, equally fast for every size.

    A Feistel network over the bits that ``size`` needs, its round functions drawn from ``base``. A number that is not
    below ``size`` is sent through it again until it is, which takes less than two passes on average (cycle walking:
    Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Integers only, so the same everywhere.

    Args:
        base: a stream from :func:`stream`.
        size: number of elements.

    >>> order = Shuffle(stream(5), 10)
    >>> sorted(order), order[3] == Shuffle(stream(5), 10)[3]
    ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], True)
    """

    ROUNDS = 12
    """Four are enough for large sets (Luby and Rackoff 1988); sets of a few elements need more to be near uniform."""

    def __init__(self, base: int, size: int) -> None:
        if size < 1:
            raise ValueError(f"nothing to shuffle: size is {size}")
        bits = (size - 1).bit_length()
        self._size = size
        self._halves = (bits // 2, bits - bits // 2)
        """Bits of the right half and of the left one."""
        self._keys = [_mix_int((base ^ turn) & _MASK) for turn in range(self.ROUNDS)]

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        """Return the element at a position, or at several."""
        if isinstance(place, slice):
            return [self._pass(i) for i in range(*place.indices(self._size))]
        if not 0 <= place < self._size:
            raise IndexError(f"place {place} of {self._size}")
        return self._pass(place)

    def _pass(self, number: int) -> int:
        low, high = self._halves
        while True:
            for key in self._keys:  # (left, right) -> (right, left ^ f(right)): the halves change places and widths
                left = number >> low
                right = number & ((1 << low) - 1)
                number = (right << high) | (left ^ (_mix_int(key ^ right) & ((1 << high) - 1)))
                low, high = high, low
            if number < self._size:  # an even number of rounds: low and high are what they were
                return number


@contextmanager
def initial_weights(seed: int) -> Iterator[torch.device]:
    """Inside, weights that are made are drawn on the CPU: the same for a seed on every device.

    Lightning builds models on a GPU, whose generator draws other numbers. Yields the device that modules belong on. On
    the meta device they stay there: only sizes count.
    """
    device = torch.get_default_device()
    here = nullcontext() if device.type == "meta" else torch.device("cpu")
    with torch.random.fork_rng(devices=[]), here:
        torch.manual_seed(stream(seed, Purpose.INITIALISATION) % (1 << 63))
        yield device
