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

SHORT = 8
"""Words of a short gram."""
LONG = 13
"""Words of a long gram."""
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
        self.prompts = prompts
        self.threshold = threshold
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
        # sorted band by band: prompts with the key of a record are a slice
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
        masked_hashes, _ = _hashes([_masked(words) for words in found])
        masked_grams = _found(self._masked, masked_hashes, owners, LONG)[:, 1]
        np.add.at(self._counts, masked_grams, 1)
        self._by_long_grams(start, found, self._long.found(hashes, owners, LONG))
        self._by_similarity(start, texts)

    def finish(self, records: int) -> None:
        """Decide which long grams are rare, after all records of the file."""
        limit = rare_below(records)
        for gram in sorted(self._shared):
            if self._counts[self._mask_of[gram]] <= limit:
                for record, prompt in self._shared[gram]:
                    self.leaks.setdefault(record, Leak(Rule.LONG_GRAM, prompt, 1.0))

    def _by_long_grams(self, start: int, words_of: Sequence[Words], pairs: np.ndarray) -> None:
        records_with_gram = self._counts[self._mask_of[pairs[:, 1]]]
        for record, gram in pairs[records_with_gram <= _MOST].tolist():
            pairs_of_gram = self._shared[gram]
            if len(pairs_of_gram) < _MOST and self._long.grams[gram] in _grams(words_of[record], LONG):
                pairs_of_gram.append((start + record, self._long.postings[gram][0]))

    def _by_short_grams(self, record: int, words: Words, prompts: Iterable[int]) -> None:
        record_grams = _grams(words, SHORT)
        shares = [(self._short.share(prompt, record_grams), -prompt) for prompt in prompts]
        share, negative = max(shares, default=(0.0, 0))  # of equal shares the first prompt
        if share >= SHARE:
            self.leaks[record] = Leak(Rule.SHORT_GRAMS, -negative, share)

    def _by_similarity(self, start: int, texts: Sequence[str]) -> None:
        signature = signatures(texts)
        low_bytes = signature.astype(np.uint8)
        keys = band_keys(signature, self._rows)
        pairs: set[tuple[int, int]] = set()
        for prompt_keys, order, record_keys in zip(self._keys, self._orders, keys, strict=True):
            left = np.searchsorted(prompt_keys, record_keys, "left")
            right = np.searchsorted(prompt_keys, record_keys, "right")
            for record in np.flatnonzero(right > left).tolist():
                stop = min(right[record], left[record] + _SAME_KEY)
                pairs.update((record, int(prompt)) for prompt in order[left[record] : stop])
        for record, prompt in sorted(pairs):
            if start + record in self.leaks:
                continue
            if estimates(low_bytes[record], self._low[prompt : prompt + 1])[0] < self.threshold - _MARGIN:
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
        hashes_of = []  # each prompt's grams by their hashes
        gram_of: dict[int, tuple[str, ...]] = {}
        for prompt_grams in self._sets:
            by_hash = {_hash(gram): gram for gram in prompt_grams}
            hashes_of.append(by_hash)
            gram_of |= by_hash
        frequency = Counter(number for by_hash in hashes_of for number in by_hash)
        postings: dict[int, list[int]] = defaultdict(list)
        for prompt, by_hash in enumerate(hashes_of):
            kept = sorted(by_hash, key=lambda number: (frequency[number], number))
            if rarest:  # a record that holds the share SHARE of all grams holds at least one of these
                kept = kept[: len(kept) - math.ceil(SHARE * len(kept)) + 1]
            for number in kept:
                postings[number].append(prompt)
        self._indexed = np.array(sorted(postings), dtype=np.uint64)
        self.postings = [postings[number] for number in self._indexed.tolist()]
        """Prompts that have each gram."""
        self.grams = [gram_of[number] for number in self._indexed.tolist()]

    def share(self, prompt: int, held: set[tuple[str, ...]]) -> float:
        """Return the share of a prompt's grams that a record holds."""
        return len(self._sets[prompt] & held) / len(self._sets[prompt])

    def candidates(self, hashes: np.ndarray, owners: np.ndarray, size: int) -> dict[int, set[int]]:
        """Return record of a block -> prompts that share an indexed gram with it."""
        prompts_of: dict[int, set[int]] = defaultdict(set)
        for record, gram in self.found(hashes, owners, size).tolist():
            prompts_of[record].update(self.postings[gram])
        return prompts_of

    def found(self, hashes: np.ndarray, owners: np.ndarray, size: int) -> np.ndarray:
        """Return (record, number of the gram) ``[n, 2]``, each gram once a record."""
        return _found(self._indexed, hashes, owners, size)


def _found(indexed: np.ndarray, hashes: np.ndarray, owners: np.ndarray, size: int) -> np.ndarray:
    """Return (record, place in ``indexed``) of every indexed gram, once a record."""
    if len(hashes) < size or not len(indexed):
        return np.empty((0, 2), dtype=np.int64)
    first_owners = owners[: len(owners) - size + 1]
    inside = owners[size - 1 :] == first_owners  # a gram does not run into the next record
    gram_hashes = _rolled(hashes, size)[inside]
    records = first_owners[inside]
    places = np.minimum(np.searchsorted(indexed, gram_hashes), len(indexed) - 1)
    is_indexed = indexed[places] == gram_hashes
    return np.unique(np.stack([records[is_indexed], places[is_indexed]], axis=1), axis=0)


def _masked(words: Words) -> tuple[str, ...]:
    """Replace numbers by ``#``: problems of a template differ in these."""
    return tuple("#" if word.isdigit() else word for word in words)


def _grams(words: Words, size: int) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def _hashes(words_of: Sequence[Words]) -> tuple[np.ndarray, np.ndarray]:
    """Return a hash of each word of a block, and the text that each word belongs to."""
    lengths = np.fromiter(map(len, words_of), dtype=np.int64, count=len(words_of))
    word_hashes = (hash(word) for words in words_of for word in words)
    numbers = np.fromiter(word_hashes, dtype=np.int64, count=int(lengths.sum()))
    return numbers.view(np.uint64), np.repeat(np.arange(len(words_of)), lengths)


def _rolled(hashes: np.ndarray, size: int) -> np.ndarray:
    """Return a hash of the gram that begins at each word."""
    count = len(hashes) - size + 1
    rolled = hashes[:count].copy()
    for k in range(1, size):
        rolled *= _MIXER
        rolled ^= rolled >> np.uint64(32)
        rolled += hashes[k : count + k]
    return rolled


def _hash(gram: tuple[str, ...]) -> int:
    hashes = np.array([hash(word) for word in gram], dtype=np.int64).view(np.uint64)
    return int(_rolled(hashes, len(gram))[0])
