"""Find prompts that repeat an earlier one: exactly, up to case and white space, or nearly.

Equal texts are found by sorting hashes. For near-duplicates, the band keys of MinHash signatures are written to a file
and sorted band by band. Records that share a key are compared in order: by the lowest bytes of the signatures first,
then exactly. Memory grows by some 200 bytes a prompt. No step is quadratic: a key remembers its last few records only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path

import numpy as np

from gspo_lightning.data.corpus.minhash import band_keys, banding, estimates, grams, jaccard, signatures
from gspo_lightning.data.corpus.text import TextStore

_RING = 4
"""Records that a key remembers."""
_COMPARED = 8
"""Most exact comparisons per record, likeliest first."""
_MARGIN = 0.16
"""Tolerance below the threshold for an estimate from 128 places: four standard deviations."""
_CROWD = 32
"""Number of candidates from which estimates must reach the threshold: problems of one template are alike."""
_BLOCK = 8192
_CACHED_CHARACTERS = 2000
Progress = Callable[[int], object]


class Kind(IntEnum):
    """Relation of a record to the one it repeats."""

    KEPT = 0
    EXACT = 1
    NORMALISED = 2
    NEAR = 3


@dataclass(slots=True)
class Repeats:
    """Result for every record: index of the kept record it repeats (-1: none), kind, and similarity."""

    of: np.ndarray
    kind: np.ndarray
    similarity: np.ndarray

    @classmethod
    def none(cls, count: int) -> Repeats:
        """Return a result without repeats."""
        ones = np.ones(count, dtype=np.float32)
        return cls(np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int8), ones)


def equal_texts(texts: TextStore, raw: np.ndarray, normal: np.ndarray) -> Repeats:
    """Find records whose normalised text equals an earlier one.

    Args:
        texts: normalised.
        raw: 64-bit hashes of the original prompts.
        normal: hashes of the normalised texts; texts with equal hashes are compared.
    """
    repeats = Repeats.none(len(normal))
    order = np.argsort(normal, kind="stable")  # stable: the head of each run of equal hashes is the earliest record
    heads = np.flatnonzero(np.r_[True, normal[order][1:] != normal[order][:-1]])
    head_of = order[heads][np.cumsum(np.isin(np.arange(len(order)), heads)) - 1] if len(order) else order
    for record, head in zip(order.tolist(), head_of.tolist(), strict=True):
        if record != head and texts.at(record) == texts.at(head):
            repeats.of[record] = head
            repeats.kind[record] = Kind.EXACT if raw[record] == raw[head] else Kind.NORMALISED
    return repeats


class NearDuplicates:
    """Near-duplicates among some of the texts.

    Args:
        texts: normalised.
        places: indices of the texts to compare, ascending.
        threshold: Jaccard similarity of 5-grams from which two texts are near-duplicates.
        folder: for temporary files.
        progress: called with the number of texts hashed or compared since the last call.
    """

    def __init__(
        self, texts: TextStore, places: np.ndarray, threshold: float, folder: Path, progress: Progress
    ) -> None:
        self._texts = texts
        self._places = places
        self._threshold = threshold
        self._progress = progress
        self._bands, self._rows = banding(threshold)
        self._low = np.empty((len(places), 128), dtype=np.uint8)
        keys = folder / "keys"
        self._file = folder / "buckets"
        self._grams = lru_cache(maxsize=4096)(lambda place: grams(texts.at(place)))
        self._write_keys(keys)
        buckets = self._sort_bands(keys)
        keys.unlink()
        self._ring = np.full((buckets + 1, _RING), -1, dtype=np.int32)
        self._turn = np.zeros(buckets + 1, dtype=np.int8)

    def repeats(self, found: Repeats) -> None:
        """Find each text that nearly repeats an earlier kept one, and write it into ``found``."""
        for record, buckets in self._shared():
            other, similarity = next(self._similar(record, buckets), (-1, 0.0))
            if other < 0:
                self._remember(record, buckets)
                continue
            place = self._places[record]
            found.of[place] = self._places[other]
            found.kind[place] = Kind.NEAR
            found.similarity[place] = similarity

    def clusters(self) -> np.ndarray:
        """Return a cluster number for each text; texts connected by a chain of near-duplicates share one."""
        parents = np.arange(len(self._places))

        def root(record: int) -> int:
            while parents[record] != record:
                parents[record] = parents[parents[record]]  # path halving: later searches are shorter
                record = int(parents[record])
            return record

        for record, buckets in self._shared():
            for other, _ in self._similar(record, buckets):
                a, b = sorted((root(record), root(other)))
                parents[b] = a
            self._remember(record, buckets)
        return np.array([root(record) for record in range(len(parents))], dtype=np.int64)

    def _write_keys(self, path: Path) -> None:
        """Write the keys band by band to one file, ``[bands, texts]``."""
        count = len(self._places)
        start = 0
        with open(path, "wb") as file:
            waiting: list[np.ndarray] = []

            def write() -> None:
                nonlocal start
                together = np.concatenate(waiting, axis=1)
                for band, keys in enumerate(together):
                    os.pwrite(file.fileno(), keys.tobytes(), (band * count + start) * 8)
                start += together.shape[1]
                waiting.clear()

            done = 0
            for places, texts in self._texts.blocks(self._places):
                signature = signatures(texts)
                self._low[done : done + len(places)] = signature.astype(np.uint8)
                done += len(places)
                waiting.append(band_keys(signature, self._rows))
                self._progress(len(places))
                if sum(keys.shape[1] for keys in waiting) >= _BLOCK:
                    write()
            if waiting:
                write()

    def _sort_bands(self, path: Path) -> int:
        """Write each text's bucket in each band, 0 if its key is unique; return the number of buckets."""
        count = len(self._places)
        buckets = 0
        with open(self._file, "wb") as file:
            for band in range(self._bands):
                keys = np.fromfile(path, dtype=np.uint64, count=count, offset=band * count * 8)
                order = np.argsort(keys, kind="stable")
                keys = keys[order]
                new = np.r_[True, keys[1:] != keys[:-1]]
                alone = new & np.r_[new[1:], True]
                numbers = np.zeros(count, dtype=np.int32)
                numbers[order] = np.where(alone, 0, buckets + np.cumsum(new & ~alone))
                buckets += int(np.count_nonzero(new & ~alone))
                file.write(numbers.tobytes())
        return buckets

    def _shared(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the texts that share a bucket with another one, in order, with their buckets."""
        count = len(self._places)
        for start in range(0, count, _BLOCK):
            size = min(_BLOCK, count - start)
            columns = [
                np.fromfile(self._file, dtype=np.int32, count=size, offset=(band * count + start) * 4)
                for band in range(self._bands)
            ]
            block = np.stack(columns, axis=1)
            for inside in np.flatnonzero(block.any(axis=1)).tolist():
                buckets = block[inside]
                yield start + inside, buckets[buckets > 0]
            self._progress(size)

    def _similar(self, record: int, buckets: np.ndarray) -> Iterator[tuple[int, float]]:
        """Yield earlier near-duplicates in these buckets, likeliest first, with their similarity."""
        remembered = self._ring[buckets].ravel()
        others = np.unique(remembered[remembered >= 0])
        if not len(others):
            return
        estimated = estimates(self._low[record], self._low[others])
        likely = np.argsort(-estimated, kind="stable")[:_COMPARED]
        least = self._threshold - (_MARGIN if len(others) < _CROWD else 0.0)
        for place in likely.tolist():
            if estimated[place] < least:
                return
            other = int(others[place])
            similarity = jaccard(self._set(record), self._set(other))
            if similarity >= self._threshold:
                yield other, similarity

    def _set(self, record: int) -> set[str]:
        place = int(self._places[record])
        if self._texts.length(place) <= _CACHED_CHARACTERS:
            return self._grams(place)
        return grams(self._texts.at(place))

    def _remember(self, record: int, buckets: np.ndarray) -> None:
        self._ring[buckets, self._turn[buckets] % _RING] = record
        self._turn[buckets] = (self._turn[buckets] + 1) % _RING
