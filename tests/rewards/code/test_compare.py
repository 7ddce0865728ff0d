"""What counts as right: the rules of comparison, one by one."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from gspo_lightning.rewards.code.compare import Comparison, same_output, same_value


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("3", "3", True),
        ("3\n", "3", True),
        ("  3  \n\n", "\n3", True),
        ("1 2\n3", " 1 2 \n 3 ", True),
        ("1\n2", "1 2", False),
        ("1\n\n2", "1\n2", False),
        ("3.0", "3", True),
        ("3.00 4", "3 4.0", True),
        ("1e3", "1000", True),
        ("3.0000001", "3", False),
        ("0.1", "0.10", True),
        ("yes 1.0", "yes 1", False),
        ("Yes", "yes", False),
        ("", "", True),
        ("", "0", False),
        ("nan", "nan", True),
        ("NaN", "nan", False),
        ("sNaN 1", "snan 1", False),
        ("inf", "Infinity", True),
        ("1  2", "1 2", True),
        ("a  b", "a b", False),
        ("1" * 10000, "1" * 10000 + ".0", True),
        ("1e999999999", "1", False),
    ],
)
def test_printed_text_is_compared_by_livecodebenchs_rules(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same
    assert Comparison().output(printed, expected) is same


@pytest.mark.parametrize("rule", ["lines", "tokens", "unordered", "tolerance"])
@pytest.mark.parametrize("printed", ["1 " * (4 << 20), "1\n" * (4 << 20)], ids=["words", "lines"])
@pytest.mark.parametrize("expected", ["2", "1 1.0", "1\n2"])
def test_megabytes_of_output_are_not_taken_apart_to_see_that_they_are_too_much(
    rule: Any, printed: str, expected: str
) -> None:
    comparison = Comparison(rule)
    tracemalloc.start()
    try:
        assert not comparison.output(printed, expected)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(printed)  # copies of the text, and no object for each word


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("returned", "expected", "same"),
    [
        ((1, 2), [1, 2], True),
        ([1, 2], [1, 2], True),
        ([(1, 2)], [[1, 2]], False),
        (1.0, 1, True),
        (True, 1, True),
        ("1", 1, False),
        (None, None, True),
        (0, None, False),
        ({"a": 1}, {"a": 1}, True),
        ({1: 2}, {"1": 2}, False),
        (0.1 + 0.2, 0.3, False),
        (nested(100_000), nested(100_000), False),
    ],
)
def test_returned_values_are_compared_by_equality(returned: Any, expected: Any, same: bool) -> None:
    assert same_value(returned, expected) is same


@pytest.mark.parametrize(
    ("rule", "printed", "expected", "same"),
    [
        ("tokens", "1\n2  3\n", "1 2 3", True),
        ("tokens", "1 2", "1 2 3", False),
        ("tokens", "12", "1 2", False),
        ("tokens", "3.0", "3", False),
        ("exact", "a  b\n", "a  b", True),
        ("exact", "a b", "a  b", False),
        ("exact", " a", "a", False),
        ("exact", "a\r\nb\r\n", "a\nb\n", True),
        ("unordered", "b 2\na  1\n", "a 1\nb 2", True),
        ("unordered", "2 b\na 1", "a 1\nb 2", False),
        ("unordered", "3 1 2", "1 2 3", True),
        ("unordered", "1\n2\n3", "3 2 1", True),
        ("unordered", "1 2 2", "1 1 2", False),
        ("tolerance", "0.333333", "0.3333333333", True),
        ("tolerance", "0.33333", "0.3333333333", False),
        ("tolerance", "1000000.4", "1000000.0", True),  # 1e-6 of a million
        ("tolerance", "1000002.0", "1000000.0", False),
        ("tolerance", "3.0", "3", True),
        ("tolerance", "3.0000001", "3", False),
        ("tolerance", "1000000008", "1000000007", False),
        ("tolerance", "nan", "3.5", False),
        ("tolerance", "nan", "nan", True),
        ("tolerance", "inf", "1e308", False),
        ("tolerance", "1e9999", "1e308", False),
        ("tolerance", "1_0.0", "10.0", False),
        ("tolerance", "YES 1.5", "yes 1.5", False),
        ("tolerance", "9" * 5000, "1.5", False),
    ],
)
def test_printed_text_by_the_rule_that_a_record_names(rule: Any, printed: str, expected: str, same: bool) -> None:
    assert Comparison(rule).output(printed, expected) is same


@pytest.mark.parametrize(
    ("rule", "returned", "expected", "same"),
    [
        ("tolerance", 0.1 + 0.2, 0.3, True),
        ("tolerance", [1, (0.1 + 0.2, "a")], [1, [0.3, "a"]], True),
        ("tolerance", {"a": 0.30000001}, {"a": 0.3}, True),
        ("tolerance", 3.0000001, 3, False),
        ("tolerance", float("nan"), 0.3, False),
        ("tolerance", 10**400, 0.3, False),
        ("tolerance", True, 1.0, True),
        ("tolerance", [0.3], [0.3, 0.3], False),
        ("unordered", [3, 1, 2], [1, 2, 3], True),
        ("unordered", [[2], [1]], [[1], [2]], True),
        ("unordered", ["b", 1], [1, "b"], True),
        ("unordered", [1, 1, 2], [1, 2, 2], False),
        ("unordered", "ab", "ba", False),
        ("exact", 1, 1, True),
        ("exact", True, 1, False),
        ("exact", (1, 2), [1, 2], False),
        ("exact", [1.0], [1], False),
        ("exact", {"a": [1]}, {"a": [1]}, True),
        ("tolerance", nested(100_000), nested(100_000), False),
        ("exact", nested(100_000), nested(100_000), False),
    ],
)
def test_returned_values_by_the_rule_that_a_record_names(rule: Any, returned: Any, expected: Any, same: bool) -> None:
    assert Comparison(rule).value(returned, expected) is same


def test_codecontests_ignores_case_and_takes_an_absolute_tolerance() -> None:
    rule = Comparison("tolerance", 1e-5, relative=False, any_case=True)
    assert rule.output("Yes 0.333334", "YES 0.333333")
    assert not rule.output("Yes 1000000.1", "YES 1000000.0")
