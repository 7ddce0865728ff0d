"""Find prompts that leak a benchmark.

A record leaks a benchmark prompt

* if it holds at least half of the prompt's distinct 8-grams of words,
* if the two share a 13-gram of words that is rare in the training file, even with other numbers in it,
* if the two are nearly the same (Jaccard similarity of character 5-grams).

A single shared 8-gram proves nothing: a quarter of clean problems of common templates have one. Candidates are found by
hashes, a block of records at a time, and each leak is confirmed on the words themselves.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gspo_lightning.data.corpus.minhash import band_keys, banding, estimates, grams, jaccard, signatures
from gspo_lightning.data.corpus.text import normalised

SHORT, LONG = 8, 13
"""Words of a short and of a long gram."""
SHARE = 0.5
"""Share of a benchmark prompt's 8-grams that makes a leak."""
_MARGIN = 0.16
_MOST = 10
_SAME_KEY = 16
"""Most benchmark prompts with one key that a record is compared with."""
_MIXER = np.uint64(0x9E3779B97F4A7C15)
Words = Sequence[str]


class Rule:
    """Rules by which a record leaks."""

    SHORT_GRAMS = "8-grams"
    LONG_GRAM = "rare 13-gram"
    NEAR = "near-duplicate"


@dataclass(frozen=True, slots=True)
class BenchmarkPrompt:
    """A prompt of a benchmark: number of its file, line, words, text for near-duplicates, and answer."""

    file: int
    number: int
    words: tuple[str, ...]
    text: str
    answer: str | None


@dataclass(frozen=True, slots=True)
class Leak:
    """Leak of a record: rule, index of the benchmark prompt, and share of the prompt found."""

    rule: str
    prompt: int
    share: float


def comparable(text: str, found: Words) -> str:
    """Return the text to compare for near-duplicates: the words if there are at least 8, else the normalised text.

    As words, ``3+4`` and ``3-4`` would be the same.
    """
    return " ".join(found) if len(found) >= SHORT else normalised(text)


def rare_below(records: int) -> int:
    """Return the most records in which a 13-gram is rare: one in a thousand of all, but at least 2 and at most 10.

    >>> rare_below(100), rare_below(5_000), rare_below(1_000_000)
    (2, 5, 10)
    """
    return min(_MOST, max(2, records // 1000))


class LeakSearch:
    """Search for leaks in blocks of records.

    Args:
        prompts: of the benchmarks.
        threshold: similarity from which two prompts are near-duplicates.
    """

    def __init__(self, prompts: Sequence[BenchmarkPrompt], threshold: float) -> None:
        self.prompts, self.threshold = prompts, threshold
        self.leaks: dict[int, Leak] = {}
        """Leaks by number of the record."""
        self._short = _Postings(prompts, SHORT, rarest=True)
        self._long = _Postings(prompts, LONG)
        masked = {_hash(_masked(gram)) for gram in self._long.grams}
        self._masked = np.array(sorted(masked), dtype=np.uint64)
        self._mask_of = np.searchsorted(
            self._masked, np.array([_hash(_masked(gram)) for gram in self._long.grams], dtype=np.uint64)
        )
        self._counts = np.zeros(len(self._masked), dtype=np.int64)  # records with the gram, with any numbers
        self._shared: dict[int, list[tuple[int, int]]] = defaultdict(list)  # gram -> first (record, prompt) pairs
        _, self._rows = banding(threshold)
        signature = signatures([prompt.text for prompt in prompts])
        self._low = signature.astype(np.uint8)
        keys = band_keys(signature, self._rows)
        self._orders = np.argsort(keys, axis=1, kind="stable")
        self._keys = np.take_along_axis(keys, self._orders, axis=1)
        self._grams = [grams(prompt.text) for prompt in prompts]

    def look(self, start: int, texts: Sequence[str], found: Sequence[Words]) -> None:
        """Search a block of records.

        Args:
            start: number of the first record.
            texts: in the form for near-duplicates.
            found: words of each text.
        """
        hashes, owners = _hashes(found)
        for record, prompts in self._short.candidates(hashes, owners, SHORT).items():
            self._by_short_grams(start + record, found[record], prompts)
        masks, _ = _hashes([_masked(one) for one in found])
        np.add.at(self._counts, _found(self._masked, masks, owners, LONG)[:, 1], 1)
        self._by_long_grams(start, found, self._long.found(hashes, owners, LONG))
        self._by_similarity(start, texts)

    def finish(self, records: int) -> None:
        """Decide which long grams are rare, after all records of the file."""
        limit = rare_below(records)
        for gram in sorted(self._shared):
            if self._counts[self._mask_of[gram]] <= limit:
                for record, prompt in self._shared[gram]:
                    self.leaks.setdefault(record, Leak(Rule.LONG_GRAM, prompt, 1.0))

    def _by_long_grams(self, start: int, found: Sequence[Words], pairs: np.ndarray) -> None:
        for record, gram in pairs[self._counts[self._mask_of[pairs[:, 1]]] <= _MOST].tolist():
            known = self._shared[gram]
            if len(known) < _MOST and self._long.grams[gram] in _grams(found[record], LONG):
                known.append((start + record, self._long.postings[gram][0]))

    def _by_short_grams(self, record: int, found: Words, prompts: Iterable[int]) -> None:
        held = _grams(found, SHORT)
        best = max(((self._short.share(p, held), -p) for p in prompts), default=(0.0, 0))
        if best[0] >= SHARE:
            self.leaks[record] = Leak(Rule.SHORT_GRAMS, -best[1], best[0])

    def _by_similarity(self, start: int, texts: Sequence[str]) -> None:
        signature = signatures(texts)
        low, keys = signature.astype(np.uint8), band_keys(signature, self._rows)
        pairs: set[tuple[int, int]] = set()
        for known, order, asked in zip(self._keys, self._orders, keys, strict=True):
            left, right = np.searchsorted(known, asked, "left"), np.searchsorted(known, asked, "right")
            for record in np.flatnonzero(right > left).tolist():
                pairs.update(
                    (record, int(prompt))
                    for prompt in order[left[record] : min(right[record], left[record] + _SAME_KEY)]
                )
        for record, prompt in sorted(pairs):
            if start + record in self.leaks:
                continue
            if estimates(low[record], self._low[prompt : prompt + 1])[0] < self.threshold - _MARGIN:
                continue
            similarity = jaccard(grams(texts[record]), self._grams[prompt])
            if similarity >= self.threshold:
                self.leaks[start + record] = Leak(Rule.NEAR, prompt, similarity)


class _Postings:
    """Inverted index of benchmark prompts: hash of an n-gram -> prompts that have it.

    With ``rarest``, only the rarest grams of each prompt are indexed: just enough that a record with half of the
    prompt's grams has one of them. Grams common to all problems of a template are then not looked up.
    """

    def __init__(self, prompts: Sequence[BenchmarkPrompt], size: int, *, rarest: bool = False) -> None:
        self._sets = [_grams(prompt.words, size) for prompt in prompts]
        hashed = [{_hash(gram): gram for gram in one} for one in self._sets]
        frequency = Counter(number for one in hashed for number in one)
        postings: dict[int, list[int]] = defaultdict(list)
        for prompt, one in enumerate(hashed):
            kept = sorted(one, key=lambda number: (frequency[number], number))
            if rarest:
                kept = kept[: len(kept) - math.ceil(SHARE * len(kept)) + 1]
            for number in kept:
                postings[number].append(prompt)
        text = {number: gram for one in hashed for number, gram in one.items()}
        self._known = np.array(sorted(postings), dtype=np.uint64)
        self.postings = [postings[number] for number in self._known.tolist()]
        """Prompts that have each gram."""
        self.grams = [text[number] for number in self._known.tolist()]

    def share(self, prompt: int, held: set[tuple[str, ...]]) -> float:
        """Return the share of a prompt's grams that a record holds."""
        return len(self._sets[prompt] & held) / len(self._sets[prompt])

    def candidates(self, hashes: np.ndarray, owners: np.ndarray, size: int) -> dict[int, set[int]]:
        """Return record of a block -> prompts that share an indexed gram with it."""
        found: dict[int, set[int]] = defaultdict(set)
        for record, gram in self.found(hashes, owners, size).tolist():
            found[record].update(self.postings[gram])
        return found

    def found(self, hashes: np.ndarray, owners: np.ndarray, size: int) -> np.ndarray:
        """Return (record, number of the gram) ``[n, 2]``, each gram once a record."""
        return _found(self._known, hashes, owners, size)


def _found(known: np.ndarray, hashes: np.ndarray, owners: np.ndarray, size: int) -> np.ndarray:
    """Return (record, place in ``known``) of every known gram, once a record."""
    if len(hashes) < size or not len(known):
        return np.empty((0, 2), dtype=np.int64)
    inside = owners[size - 1 :] == owners[: len(owners) - size + 1]
    asked, records = _rolled(hashes, size)[inside], owners[: len(owners) - size + 1][inside]
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    there = known[places] == asked
    return np.unique(np.stack([records[there], places[there]], axis=1), axis=0)


def _masked(found: Words) -> tuple[str, ...]:
    """Replace numbers by ``#``: problems of a template differ in these."""
    return tuple("#" if word.isdigit() else word for word in found)


def _grams(found: Words, size: int) -> set[tuple[str, ...]]:
    return {tuple(found[i : i + size]) for i in range(len(found) - size + 1)}


def _hashes(found: Sequence[Words]) -> tuple[np.ndarray, np.ndarray]:
    """Return a hash of each word of a block, and the text that each word belongs to."""
    lengths = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
    numbers = np.fromiter((hash(word) for one in found for word in one), dtype=np.int64, count=int(lengths.sum()))
    return numbers.view(np.uint64), np.repeat(np.arange(len(found)), lengths)


def _rolled(hashes: np.ndarray, size: int) -> np.ndarray:
    """Return a hash of the gram that begins at each word."""
    count = len(hashes) - size + 1
    found = hashes[:count].copy()
    for k in range(1, size):
        found *= _MIXER
        found ^= found >> np.uint64(32)
        found += hashes[k : count + k]
    return found


def _hash(gram: tuple[str, ...]) -> int:
    return int(_rolled(np.array([hash(word) for word in gram], dtype=np.int64).view(np.uint64), len(gram))[0])
