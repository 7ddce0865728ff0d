"""The project's own sets of cases: what must be paid and what must not.

The rules were made by looking at failures of the development half of ``adversarial.jsonl`` and at ``honest.jsonl``; the
held-out half is counted here and by ``python -m benchmarks.math_cases``, and its failures are not looked at.
``rules.jsonl`` is the table of single rules: for each, answers that it must refuse and honest ones that look like them.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.math_cases import HALVES, OWN, half, read
from gspo_lightning.rewards import MathVerifier


@pytest.fixture(scope="module")
def verifier() -> MathVerifier:
    verifier = MathVerifier()
    verifier.prepare()
    return verifier


def wrong(verifier: MathVerifier, cases: list[dict[str, Any]]) -> list[tuple[bool, str, str]]:
    """(paid, answer, completion) of the cases that are judged otherwise than they say."""
    return [
        (not case["paid"], case["answer"], case["completion"])
        for case in cases
        if (verifier.score(case["completion"], case["answer"]).reward == 1.0) != case["paid"]
    ]


def test_every_set_has_both_kinds_and_no_case_twice() -> None:
    for path in OWN.glob("*.jsonl"):
        cases = read(path)
        assert len({(case["answer"], case["completion"]) for case in cases}) == len(cases)
        assert {half(case) for case in cases} == set(HALVES)
    assert sum(not case["paid"] for case in read(OWN / "adversarial.jsonl")) > 500


def test_development_half_is_judged_as_it_says(verifier: MathVerifier) -> None:
    cases = [case for case in read(OWN / "adversarial.jsonl") if half(case) == "development"]
    assert wrong(verifier, cases[::4]) == []


@pytest.mark.thorough
def test_each_rule_refuses_what_it_is_for_and_no_honest_answer_that_looks_like_it(verifier: MathVerifier) -> None:
    cases = read(OWN / "rules.jsonl")
    for rule in {case["class"] for case in cases}:
        assert [
            paid for paid in (True, False) if sum((rule, paid) == (c["class"], c["paid"]) for c in cases) < 10
        ] == []
    assert wrong(verifier, cases) == []


@pytest.mark.long
def test_all_of_the_development_half_is_judged_as_it_says(verifier: MathVerifier) -> None:
    cases = [case for case in read(OWN / "adversarial.jsonl") if half(case) == "development"]
    assert wrong(verifier, cases) == []


@pytest.mark.long
def test_at_most_two_in_a_hundred_of_the_held_out_half_are_paid_wrongly(verifier: MathVerifier) -> None:
    cases = [case for case in read(OWN / "adversarial.jsonl") if half(case) == "held-out"]
    found = wrong(verifier, cases)
    assert sum(paid for paid, _, _ in found) <= 0.02 * sum(not case["paid"] for case in cases)
    assert len(found) <= 0.02 * len(cases)


@pytest.mark.thorough
def test_honest_sentences_and_formulas_are_paid(verifier: MathVerifier) -> None:
    cases = read(OWN / "honest.jsonl")
    assert len(wrong(verifier, cases)) <= 0.03 * len(cases)
