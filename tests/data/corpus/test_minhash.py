"""MinHash against datasketch's and against the exact similarity; what the bands find; what is dropped."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from datasketch import MinHash

from gspo_lightning.data.corpus.duplicates import Kind, NearDuplicates, Repeats, equal_texts
from gspo_lightning.data.corpus.minhash import band_keys, banding, estimates, grams, jaccard, signatures
from gspo_lightning.data.corpus.text import TextStore

LETTERS = "abcdefghijklmnopqrstuvwxyz \u00e4\u4e2d"


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts of 200 characters and copies with more and more of them replaced."""
    draw = random.Random(seed)
    found = []
    for i in range(count):
        text = "".join(draw.choices(LETTERS, k=200))
        cut = i * 120 // count
        found.append((text, "".join(draw.choices(LETTERS, k=cut)) + text[cut:]))
    return found


def store(path: Path, texts: list[str]) -> TextStore:
    kept = TextStore(path / "texts")
    for text in texts:
        kept.add(text)
    return kept


def test_estimates_are_as_near_the_truth_as_datasketchs() -> None:
    errors, theirs = [], []
    for a, b in pairs(60, 0):
        exact = jaccard(grams(a), grams(b))
        signature = signatures([a, b])
        errors.append(np.mean(signature[0] == signature[1]) - exact)
        peers = [MinHash(num_perm=128) for _ in range(2)]
        for peer, text in zip(peers, (a, b), strict=True):
            peer.update_batch([gram.encode() for gram in grams(text)])
        theirs.append(peers[0].jaccard(peers[1]) - exact)
        low = signature.astype(np.uint8)
        assert estimates(low[0], low[1:])[0] == pytest.approx(exact, abs=0.17)
    assert abs(np.mean(errors)) < 0.02
    assert np.std(errors) < 0.05
    assert np.std(errors) < 1.5 * np.std(theirs)


def test_a_signature_does_not_depend_on_its_neighbours() -> None:
    texts = ["", "a", "abcd", "abcde", "abcdef", "\u00e4" * 7, "\U0001f600 smile", "x" * 3000, "abcde"]
    together = signatures(texts)
    for text, row in zip(texts, together, strict=True):
        assert np.array_equal(signatures([text])[0], row)
    assert np.array_equal(together[3], together[8])
    assert not np.array_equal(together[3], together[4])


def test_the_smallest_value_is_over_the_grams_of_the_text_alone() -> None:
    """A set's signature is the minimum over those of its single grams."""
    text = "the quick brown fox"
    single = signatures(sorted(grams(text)))
    assert np.array_equal(signatures([text])[0], single.min(axis=0))


def test_bands_let_similar_texts_meet() -> None:
    bands, rows = banding(0.7)
    met = [
        bool((keys[:, 0] == keys[:, 1]).any())
        for a, b in pairs(400, 1)
        if jaccard(grams(a), grams(b)) >= 0.7 and (keys := band_keys(signatures([a, b]), rows)) is not None
    ]
    assert len(met) > 80
    assert all(met)
    assert bands * rows == 128


def brute_force(texts: list[str], threshold: float) -> dict[int, set[int]]:
    """Of each text that is dropped: the kept ones that it is nearly."""
    sets, kept, dropped = [grams(text) for text in texts], list[int](), {}
    for j, one in enumerate(sets):
        near = {i for i in kept if jaccard(sets[i], one) >= threshold}
        if near:
            dropped[j] = near
        else:
            kept.append(j)
    return dropped


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_near_duplicates_are_those_of_comparing_all_pairs(tmp_path: Path, threshold: float) -> None:
    draw = random.Random(7)
    texts = [text for pair in pairs(150, 2) for text in pair]
    chain = texts[0]  # each nearly the one before it, the ends are not alike
    for _ in range(20):
        place = draw.randrange(190)
        chain = chain[:place] + "".join(draw.choices(LETTERS, k=6)) + chain[place + 6 :]
        texts.append(chain)
    draw.shuffle(texts)
    texts = list(dict.fromkeys(texts))
    found = Repeats.none(len(texts))
    near = NearDuplicates(store(tmp_path, texts), np.arange(len(texts)), threshold, tmp_path, lambda count: None)
    near.repeats(found)
    expected = brute_force(texts, threshold)
    assert set(np.flatnonzero(found.of >= 0).tolist()) == set(expected)
    for j, near_ones in expected.items():
        assert found.of[j] in near_ones
        assert found.similarity[j] == pytest.approx(jaccard(grams(texts[j]), grams(texts[int(found.of[j])])))


def test_clusters_are_the_chains_of_all_pairs(tmp_path: Path) -> None:
    draw = random.Random(3)
    texts = []
    for _ in range(12):
        text = "".join(draw.choices(LETTERS, k=120))
        for _ in range(6):
            texts.append(text)
            place = draw.randrange(110)
            text = text[:place] + "".join(draw.choices(LETTERS, k=5)) + text[place + 5 :]
    draw.shuffle(texts)
    labels = NearDuplicates(store(tmp_path, texts), np.arange(len(texts)), 0.7, tmp_path, lambda count: None).clusters()
    sets = [grams(text) for text in texts]
    for i, j in combinations(range(len(texts)), 2):
        if jaccard(sets[i], sets[j]) >= 0.7:
            assert labels[i] == labels[j]
    assert len(set(labels.tolist())) == 12


def test_equal_hashes_of_different_texts_are_no_repetition(tmp_path: Path) -> None:
    texts = store(tmp_path, ["a", "b", "a"])
    same = np.zeros(3, dtype=np.uint64)
    found = equal_texts(texts, np.array([1, 2, 3], dtype=np.uint64), same)
    assert found.of.tolist() == [-1, -1, 0]
    assert found.kind.tolist() == [0, 0, Kind.NORMALISED]
