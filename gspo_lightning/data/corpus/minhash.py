"""MinHash of character 5-grams (Broder 1997), vectorised: signatures, band keys, exact similarity.

A text is the set of its 5-grams of characters; one of fewer than five characters is filled up with NUL. A gram becomes
32 mixed bits, and each of 128 permutations is ``(a * gram + b) mod 2**32`` with an odd ``a``. The signature holds the
smallest value of each permutation over the set. The probability that two texts agree at a place is their Jaccard
similarity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

GRAM = 5
"""Characters of a gram."""
PERMUTATIONS = 128
_RECALL = 0.999
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)


def grams(text: str) -> set[str]:
    """Return the set of 5-grams of a text.

    >>> sorted(grams("abcdef"))
    ['abcde', 'bcdef']
    """
    return {text[i : i + GRAM] for i in range(max(1, len(text) - GRAM + 1))}


def jaccard(a: set[str], b: set[str]) -> float:
    """Return the Jaccard similarity of two sets: size of the intersection over size of the union.

    >>> jaccard(grams("abcdef"), grams("abcdex"))
    0.3333333333333333
    """
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)


def banding(threshold: float) -> tuple[int, int]:
    """Return (bands, rows) with which two texts of this similarity meet in one band with probability >= 0.999.

    >>> banding(0.7), banding(0.9), banding(0.5)
    ((32, 4), (16, 8), (64, 2))
    """
    for rows in (16, 8, 4, 2):
        bands = PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= _RECALL:
            return bands, rows
    return PERMUTATIONS, 1


def signatures(texts: Sequence[str]) -> np.ndarray:
    """Return signatures of texts, uint32 ``[len(texts), 128]``; fastest for about 60,000 characters at a time."""
    filled = [text if len(text) >= GRAM else text.ljust(GRAM, "\0") for text in texts]
    lengths = np.fromiter(map(len, filled), dtype=np.int64, count=len(filled))
    codes = np.frombuffer("".join(filled).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    hashes = _hashed(codes)
    # start of each text's grams, and of the grams that run into the next text
    borders = np.empty(2 * len(filled), dtype=np.int64)
    borders[1::2] = np.cumsum(lengths) - GRAM + 1
    borders[0] = 0
    borders[2::2] = borders[1:-1:2] + GRAM - 1
    borders = borders[:-1]
    smallest = np.empty((PERMUTATIONS, len(filled)), dtype=np.uint32)
    scratch = np.empty_like(hashes)
    for k in range(PERMUTATIONS):
        np.multiply(hashes, _A[k], out=scratch)
        np.add(scratch, _B[k], out=scratch)
        smallest[k] = np.minimum.reduceat(scratch, borders)[::2]
    return np.ascontiguousarray(smallest.T)


def band_keys(signature: np.ndarray, rows: int) -> np.ndarray:
    """Return a 64-bit key for each band of ``rows`` places: uint64 ``[bands, texts]``."""
    places = signature.reshape(len(signature), -1, rows).astype(np.uint64)
    keys = np.zeros(places.shape[:2], dtype=np.uint64)
    for row in range(rows):
        keys = _mixed((keys + places[:, :, row] + np.uint64(1)) * _MULTIPLIER)
    return np.ascontiguousarray(keys.T)


def estimates(low: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Estimate the similarity of a signature's lowest bytes ``[128]`` to others' ``[n, 128]``.

    Different values agree in their lowest byte with probability 1/256 (b-bit MinHash, arXiv 0910.3349).
    """
    same = np.count_nonzero(others == low, axis=1) / PERMUTATIONS
    return (same - 1 / 256) / (1 - 1 / 256)


def _hashed(codes: np.ndarray) -> np.ndarray:
    """Return 32 bits for the gram that begins at each character but the last four."""
    count = len(codes) - GRAM + 1
    hashes = codes[:count].astype(np.uint64)
    for k in range(1, GRAM):
        hashes *= _MULTIPLIER
        hashes += codes[k : count + k]
    return (_mixed(hashes) >> np.uint64(32)).astype(np.uint32)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Apply a round of splitmix64's finaliser, in place."""
    values ^= values >> np.uint64(30)
    values *= _MIXER
    values ^= values >> np.uint64(27)
    return values


def _constants() -> tuple[np.ndarray, np.ndarray]:
    """Return 128 odd multipliers and 128 summands, the same on every machine."""
    with np.errstate(over="ignore"):
        numbers = _mixed(_mixed(np.arange(1, 2 * PERMUTATIONS + 1, dtype=np.uint64) * _MULTIPLIER))
    words = (numbers >> np.uint64(32)).astype(np.uint32)
    return words[:PERMUTATIONS] | np.uint32(1), words[PERMUTATIONS:]


_A, _B = _constants()
