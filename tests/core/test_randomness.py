"""Draws are known answers of SplitMix64 chains, uniform, and independent of how they are batched."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_lightning.core.randomness import Purpose, Shuffle, permutation, stable_hash, stream, uniforms

MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """The first output of Vigna's SplitMix64 for a seed, from its reference C code."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def chain(*keys: int) -> int:
    state = 0
    for key in keys:
        state = splitmix64(state ^ (key & MASK))
    return state


def test_the_reference_itself_gives_the_published_first_outputs_of_splitmix64() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(1234567) == 6457827717110365317


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=4))
def test_stream_is_a_chain_of_splitmix64(keys: list[int]) -> None:
    assert stream(*keys) == chain(*keys)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8),
    st.integers(-(2**63), 2**63 - 1),
)
def test_uniforms_are_the_top_53_bits_of_the_same_chain(base: int, first: list[int], second: int) -> None:
    drawn = uniforms(base, torch.tensor(first), second)
    expected = [(splitmix64(splitmix64(base ^ (k & MASK)) ^ (second & MASK)) >> 11) * 2.0**-53 for k in first]
    assert drawn.dtype == torch.float64
    assert drawn.tolist() == expected  # to the last bit


def test_scalars_and_tensors_mean_the_same_counter() -> None:
    assert float(uniforms(stream(3), 5, 7)) == float(uniforms(stream(3), torch.tensor([5]), torch.tensor(7)))
    assert float(uniforms(stream(3), 5, torch.tensor([7]))) == float(uniforms(stream(3), torch.tensor(5), 7))


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("axis", ["prompt", "sample", "position"])
def test_draws_are_uniform_along_each_counter(axis: str) -> None:
    run = torch.arange(200_000)
    counters = {"prompt": (run, 1, 2), "sample": (1, run, 2), "position": (1, 2, run)}[axis]
    drawn = uniforms(stream(0, Purpose.TRAIN_SAMPLING, 4), *counters)
    counts = torch.bincount((drawn * 1000).long(), minlength=1000).double()
    assert chi_square(counts) < 1143  # 99.9% of chi-square with 999 degrees of freedom
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1


def test_neighbouring_draws_are_uncorrelated() -> None:
    grid = uniforms(stream(1), torch.arange(300).view(-1, 1), torch.arange(300).view(1, -1)) - 0.5
    for a, b in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]), (grid[1:, 1:], grid[:-1, :-1]), (grid, grid.T)):
        pairs = a[~torch.isclose(a, b)], b[~torch.isclose(a, b)]
        correlation = float((pairs[0] * pairs[1]).mean() * 12)
        assert abs(correlation) < 4 / len(pairs[0]) ** 0.5


def test_draws_of_a_subset_are_the_rows_of_the_whole() -> None:
    prompts, samples = torch.arange(40), torch.arange(40) % 8
    whole = uniforms(stream(9), prompts, samples, 3)
    keep = torch.tensor([31, 2, 17])
    assert torch.equal(uniforms(stream(9), prompts[keep], samples[keep], 3), whole[keep])
    one_by_one = [float(uniforms(stream(9), int(p), int(k), 3)) for p, k in zip(prompts, samples, strict=True)]
    assert one_by_one == whole.tolist()


def test_every_key_of_a_draw_matters() -> None:
    def draw(seed: int, purpose: Purpose, iteration: int, prompt: int, sample: int, position: int) -> float:
        return float(uniforms(stream(seed, purpose, iteration), prompt, sample, position))

    start = (0, Purpose.TRAIN_SAMPLING, 0, 0, 0, 0)
    others = [tuple(2 if i == j else value for j, value in enumerate(start)) for i in range(6)]
    draws = [draw(*start), *(draw(*keys) for keys in others)]  # type: ignore[arg-type]
    assert len(set(draws)) == 7


def test_purposes_never_share_a_number() -> None:
    assert len({int(p) for p in Purpose.__members__.values()}) == len(Purpose.__members__)  # aliases, too
    assert [int(p) for p in (Purpose.TRAIN_SAMPLING, Purpose.EVAL_SAMPLING, Purpose.PROMPT_ORDER)] == [1, 2, 3]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_a_permutation_holds_every_index_once(base: int, size: int) -> None:
    assert sorted(permutation(base, size).tolist()) == list(range(size))


def test_permutations_are_fair() -> None:
    first = torch.tensor([int(permutation(stream(2, i), 6)[0]) for i in range(3000)])
    assert chi_square(torch.bincount(first, minlength=6).double()) < 20.5  # 99.9%, 5 degrees of freedom
    assert not torch.equal(permutation(stream(0), 50), permutation(stream(1), 50))


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000, 65_537])
def test_a_shuffle_holds_every_index_once(size: int) -> None:
    assert sorted(Shuffle(stream(3, size), size)) == list(range(size))


def reference_shuffle(base: int, size: int, place: int) -> int:
    """A Feistel network with cycle walking, on texts of bits."""
    bits = len(f"{size - 1:b}") if size > 1 else 0
    while True:
        text, width = (f"{place:0{bits}b}" if bits else ""), bits - bits // 2
        for turn in range(12):
            left, right = text[:width], text[width:]
            drawn = f"{splitmix64(splitmix64(base ^ turn) ^ int(right or '0', 2)):064b}"[64 - width :]
            text = right + "".join(str(int(a != b)) for a, b in zip(left, drawn if width else "", strict=True))
            width = bits - width
        place = int(text or "0", 2)
        if place < size:
            return place


def test_a_shuffle_gives_the_numbers_it_has_always_given() -> None:
    assert list(Shuffle(stream(1, Purpose.PROMPT_ORDER, 0), 10)) == [3, 0, 1, 4, 7, 5, 8, 9, 2, 6]
    for size in (1, 2, 3, 10, 1000, 65_537, 2**20):
        base = stream(4, size)
        places = range(0, size, max(1, size // 20))
        assert [Shuffle(base, size)[i] for i in places] == [reference_shuffle(base, size, i) for i in places]


def test_shuffles_are_fair_place_by_place_and_pair_by_pair() -> None:
    orders = torch.tensor([list(Shuffle(stream(2, i), 6)) for i in range(3000)])  # [3000, 6]
    for place in range(6):
        assert chi_square(torch.bincount(orders[:, place], minlength=6).double()) < 20.5  # 99.9%, 5 degrees of freedom
    pairs = (orders[:, :-1] * 6 + orders[:, 1:]).flatten()
    counts = torch.bincount(pairs, minlength=36).reshape(6, 6)
    assert counts.diagonal().sum() == 0
    assert chi_square(counts[~torch.eye(6, dtype=torch.bool)].double()) < 58.3  # 99.9%, 29 degrees of freedom


def test_a_large_shuffle_is_as_mixed_as_chance_would_have_it() -> None:
    size = 10_000
    order = torch.tensor(list(Shuffle(stream(9), size))).double()
    again = torch.tensor(list(Shuffle(stream(9, 1), size))).double()
    limit = 4 / size**0.5  # four standard deviations of a correlation
    for a, b in ((order, torch.arange(size).double()), (order[1:], order[:-1]), (order, again)):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < limit
    for tenth in order.chunk(10):  # the mean of 1,000 of them: +- 3.7 standard deviations
        assert abs(float(tenth.mean()) / size - 0.5) < 0.034
    assert int((order[1:] - order[:-1] == 1).sum()) < 8  # expected: 1
    assert int((order == again).sum()) < 8


def test_any_place_of_a_million_is_computed_alone() -> None:
    tracemalloc.start()
    try:
        order = Shuffle(stream(5), 2**20)
        assert len({order[i] for i in range(0, 2**20, 2**12)}) == 2**8
        assert tracemalloc.get_traced_memory()[1] < 100_000  # a list would have 8 MB
    finally:
        tracemalloc.stop()
    with pytest.raises(IndexError, match="place 1048576 of 1048576"):
        order[2**20]
    with pytest.raises(ValueError, match="size is 0"):
        Shuffle(1, 0)


def reference_hash(text: str) -> int:
    state = len(text)
    for byte in text.encode("utf-8"):
        state = ((state ^ byte) * (2**40 + 0x1B3)) & MASK
    return splitmix64(state)


def test_stable_hash_gives_the_numbers_it_has_always_given() -> None:
    known = {"": 16294208416658607535, "7+5:": 3184597750644160014, "Zürich": 14190848602249720383}
    assert {text: stable_hash(text) for text in known} == known
    assert all(stable_hash(text) == reference_hash(text) for text in known)


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_stable_hash_does_not_depend_on_the_process(hash_seed: str) -> None:
    program = (
        "import sys, types; sys.modules['torch'] = types.SimpleNamespace(Tensor=object)\n"  # not needed, slow to import
        "from gspo_lightning.core.randomness import stable_hash, stream\n"
        "print(stable_hash('7+5*3-4:'), stream(1, 2, 3))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert found.split() == [str(stable_hash("7+5*3-4:")), str(stream(1, 2, 3))]


def test_stable_hash_spreads_evenly_over_ten_buckets() -> None:
    counts = torch.bincount(torch.tensor([stable_hash(f"{i}+{i % 7}:") % 10 for i in range(10_000)]), minlength=10)
    assert chi_square(counts.double()) < 27.9  # 99.9%, 9 degrees of freedom
