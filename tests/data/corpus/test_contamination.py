"""Leaks: each rule at its border, computed by hand, and planted leaks among problems of templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.leaks import KINDS, measure
from gspo_lightning.data.corpus.contamination import BenchmarkPrompt, Leak, LeakSearch, Rule, comparable
from gspo_lightning.data.corpus.text import words

WORDS = [f"{a}{b}" for a in "bcdfghjklm" for b in ("ax", "ey", "iz", "ow", "uv")]
"""Fifty different ones."""


def search(benchmark: Sequence[str], records: Sequence[str]) -> dict[int, Leak]:
    prompts = [
        BenchmarkPrompt(0, i, tuple(words(text)), comparable(text, words(text)), None)
        for i, text in enumerate(benchmark)
    ]
    found = LeakSearch(prompts, 0.7)
    split = [words(text) for text in records]
    found.look(0, [comparable(text, one) for text, one in zip(records, split, strict=True)], split)
    found.finish(len(records))
    return found.leaks


def text(*parts: Sequence[str]) -> str:
    return " ".join(word for part in parts for word in part)


def test_half_of_the_eight_grams_is_a_leak_and_one_less_is_none() -> None:
    prompt = WORDS[:19]  # 12 grams of 8 words: six of them are in 13 words
    other = [word[::-1] for word in WORDS]
    enough, too_few = text(prompt[:12], other, prompt[10:19]), text(prompt[:12], other, other[:9])
    found = search([text(prompt)], [enough, too_few])
    assert found[0] == Leak(Rule.SHORT_GRAMS, 0, 7 / 12)
    assert 1 not in found


def test_a_shared_thirteen_gram_is_a_leak_where_it_is_rare() -> None:
    prompt, other = WORDS, [word[::-1] for word in WORDS]
    shares, common = text(other[:30], prompt[:13], other[30:]), text(other[20:], prompt[30:43], other[:20])
    found = search([text(prompt)], [shares, *[common] * 3])
    assert found == {0: Leak(Rule.LONG_GRAM, 0, 1.0)}
    assert search([text(prompt)], [text(other[:30], prompt[:12], other[30:])]) == {}


def test_a_template_with_other_numbers_is_not_rare() -> None:
    other = [word[::-1] for word in WORDS]
    prompt = [*WORDS[:6], "17", *WORDS[6:12], *WORDS[20:]]
    train = [text(other[10:], WORDS[:6], [str(n)], WORDS[6:12], other[:10]) for n in (3, 17, 29, 41)]
    assert search([text(prompt)], train) == {}
    assert set(search([text(prompt)], train[1:2])) == {0}


def test_short_prompts_leak_only_where_they_are_nearly_the_same() -> None:
    found = search(["What is 6*7?"], ["what  is 6*7?", "Tell me: what is 6*7? And then what is 8*9?", "What is 16+27?"])
    assert set(found) == {0}
    assert found[0].rule == Rule.NEAR


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"Compute $\frac{3}{4} \cdot \sqrt{5}$.", "compute 3/4 \u00b7 \u221a5"),
        (r"$1{,}000 \leq x^{2}$", "1,000 \u2264 x\u00b2"),
        (r"\textbf{Find} \(n\) &amp; \[m\]", "<p><b>Find</b> n &amp; m</p>"),
        ("Twenty-one of 13 boys, seven girls", "21 of thirteen boys, 7 girls"),
        ("a < b and c > d", "a b and c d"),
    ],
)
def test_markup_and_ways_to_write_numbers_make_no_difference(one: str, other: str) -> None:
    assert words(one) == words(other)


def test_planted_leaks_are_found_and_clean_problems_kept(tmp_path: Path) -> None:
    found = measure(40, 1000, 0.6, 5, tmp_path)
    assert all(found["recall"][kind] == 1.0 for kind in KINDS)
    assert found["precision"] > 0.9
    assert found["clean_that_share_an_8_gram"] > 0.02
