"""What the verifier knows beyond mathematics: units, bases, times, words, options, intervals, written-out numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gspo_lightning.rewards import MathVerifier
from gspo_lightning.rewards.math.bases import based
from gspo_lightning.rewards.math.numbers import calculated, literal
from gspo_lightning.rewards.math.real_sets import equal_sets
from gspo_lightning.rewards.math.times import clock
from gspo_lightning.rewards.math.units import quantity
from gspo_lightning.rewards.math.words import option, words


@pytest.fixture(scope="module")
def verifier() -> MathVerifier:
    verifier = MathVerifier()
    verifier.prepare()
    return verifier


PAID = [
    (r"\$36", "36"),
    ("36", r"\$36"),
    ("[2,5]", r"2 \le x \le 5"),
    ("x > 3", r"(3, \infty)"),
    (r"(3, \infty)", "x > 3"),
    (r"(-\infty, 0) \cup (1, \infty)", r"x < 0 \text{ or } x > 1"),
    (r"0.\overline3", r"\frac{1}{3}"),
    (r"\emptyset", r"\varnothing"),
    (r"\frac{1}{2}", "½"),
    ("45", "45°"),
    ("50", "€50"),
    (r"\sqrt[3]{2}", r"\sqrt[3]2"),
    ("A", r"\textbf{(A) }42"),
    ("5", r"5 \text{ m}"),
    (r"5 \text{ m}", "5"),
    (r"5 \text{ m}", "5 meters"),
    (r"12 \text{ cm}^2", r"12 \text{ square centimeters}"),
    ("1010_2", r"1010_{\text{two}}"),
    (r"3{:}00 \text{ p.m.}", "15:00"),
    (r"\text{March 5}", "5 March"),
    ("xy", "yx"),
    ("abc", "cab"),
    ("BADC", r"\text{badc}"),
    ("20\\%", "0.2"),
    ("1.5", r"1\frac{1}{2}"),
    (r"\sin(30^\circ)", r"\frac{1}{2}"),
    (r"-3+4i", r"(1+2i)^2"),
    ("f(x) = 2x + 3", "y = 2x + 3"),
]
NOT_PAID = [
    ("BADC", "ABCD"),
    ("stop", "pots"),
    (r"\text{cat}", "act"),
    (r"5 \text{ m}", r"5 \text{ kg}"),
    (r"5 \text{ m}", r"5 \text{ m}^2"),
    (r"60 \text{ mph}", r"60 \text{ km/h}"),
    (r"\$50", "€50"),
    ("1010_2", "1010_3"),
    ("1010_2", "1010"),
    ("1010", "1010_2"),
    (r"3{:}00 \text{ p.m.}", r"3{:}00 \text{ a.m.}"),
    (r"\text{March 5}", r"\text{March 6}"),
    ("[2,5]", r"2 < x \le 5"),
    ("x > 3", r"[3, \infty)"),
    ("(1,2)", r"\{1,2\}"),
    ("(1,2)", "1,2"),
    ("2t", "2"),
    ("x", "X"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    ("0.0000001", "0"),
    ("42", r"2x + 1 = 42"),
    ("42", "41 = x = 42"),
    ("A", r"\text{(A) or (B)}"),
]


@pytest.mark.parametrize(("answer", "written"), PAID)
def test_equivalent_spellings_are_paid(verifier: MathVerifier, answer: str, written: str) -> None:
    assert verifier.score(f"So it is $\\boxed{{{written}}}$.", answer).reward == 1.0


@pytest.mark.parametrize(("answer", "written"), NOT_PAID)
def test_not_paid(verifier: MathVerifier, answer: str, written: str) -> None:
    assert verifier.score(f"So it is $\\boxed{{{written}}}$.", answer).reward == 0.0


def test_numbers_are_read_exactly() -> None:
    values = {
        "1,000.5": Fraction(2001, 2),
        r"-2\frac{1}{3}": Fraction(-7, 3),
        "1 1/2": Fraction(3, 2),
        r"0.1\overline{6}": Fraction(1, 6),
        r"2.5\times10^{-3}": Fraction(1, 400),
        "10^6": Fraction(10**6),
        "seven": Fraction(7),
        "1 000": Fraction(1000),
    }
    assert {text: found.value for text in values if (found := literal(text)) is not None} == values
    assert [literal(text) for text in ("2^3", "1,00", "x", "1/0", r"2\frac{3}{2}", "4 2", "10^{9999}")] == [None] * 7


def test_units_bases_times_words_options_and_intervals() -> None:
    assert quantity("9 km/h").unit == quantity(r"9 \text{ kilometers per hour}").unit == (("h", -1), ("km", 1))
    assert quantity("5x").unit == quantity("2ab").unit == quantity(r"\int_0^1 x dx").unit == ()
    assert (based("2B_{16}"), based("12_2"), based("a_1")) == (("2B", 16), None, None)
    assert (clock("12:30 a.m."), clock("25:00"), clock("2:3")) == ((0, 30, 0, True), None, None)
    assert (words(r"\text{no solution}"), words("sin x"), words("no")) == (r"\emptyset", None, "no")
    assert (option("(c)"), option(r"\text{(D)}"), option("AB"), option("A or B")) == ("C", "D", None, None)
    assert equal_sets(r"\{x \mid -1 \le x < 2\}", "[-1,2)", calculated)
    assert equal_sets("x < y", "(1,2)", calculated) is None
