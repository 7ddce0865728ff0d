"""The text work: thinking, boxes, one notation, what stands around a box, which sentence commits."""

from __future__ import annotations

import pytest

from gspo_lightning.core.thinking import after_thinking
from gspo_lightning.rewards.math.library import unequal_sides
from gspo_lightning.rewards.math.notation import canonical, in_latex
from gspo_lightning.rewards.math.numbers import plain_integer
from gspo_lightning.rewards.math.text import boxed
from gspo_lightning.rewards.math.unboxed_answer import committed
from gspo_lightning.rewards.math.withdrawn_boxes import taken_back


def test_boxed_text_and_its_surroundings() -> None:
    assert boxed(r"\boxed{a}, and $\boxed{b}$", 9).text == "a, b"
    assert boxed(r"\boxed{\{1\}} \} {", 9).text == r"\{1\}"
    found = boxed(r"so $x = \boxed{7}$, really", 9)
    assert (found.before, found.text, found.after) == ("so $x = ", "7", "$, really")


def test_text_after_thinking() -> None:
    assert after_thinking("a</think>b") == "b"
    assert after_thinking("<think>a</think><think>b") is None


def test_notations_are_brought_to_one() -> None:
    assert canonical(r" $\left( 1 , 2 \right)$. ") == "(1,2)"
    assert in_latex("½ \u00d7 √2 ≤ x²") == r"\frac{1}{2} \times  \sqrt{2} \le  x^{2}"
    assert in_latex(r"\sqrt[3]2 + 0.\overline3 + \varnothing") == r"\sqrt[3]{2} + 0.\overline{3} + \emptyset"
    assert canonical(r"\$36") == r"\$36"  # money, no delimiter
    assert canonical("4 2") != canonical("42")


def test_plain_integer_refuses_long_and_non_ascii_digits() -> None:
    assert plain_integer("4" * 500) is None
    assert plain_integer("\u0664\u0662") is None


def test_sides_of_equations() -> None:
    assert unequal_sides("2 + 2 = 4 cm") == ("2 + 2", "4 cm")
    assert unequal_sides(r"\log_2 64 = 6") is None


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (r"\boxed{42} but really 41", True),
        (r"\boxed{42}. Wait, it should be 41.", True),
        (r"\boxed{42}. However, the correct answer is $41$.", True),
        (r"The answer is not \boxed{42}.", True),
        (r"\boxed{42} is wrong.", True),
        (r"\boxed{42} or 41", True),
        (r"\boxed{42}, not 41.", False),
        (r"\boxed{42}. Check: but $6 \cdot 8 = 48$ is too large.", False),
        (r"\boxed{42}, or approximately 42.0", False),
        (r"\boxed{\$16,386.20}. The answer is $16{,}386.20$.", False),
        (r"41 was wrong. So \boxed{42}", False),
    ],
)
def test_a_box_that_is_taken_back(text: str, taken: bool) -> None:
    assert taken_back(boxed(text, 99)) is taken


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 42.", "42"),
        ("**Answer:** 42", "42"),
        ("#### 1,234", "1,234"),
        ("So there are $9$ divisors of 196.", "9"),
        ("It is not 41 but it equals 42", "42"),
        ("If $n = 3$, then we get 12.", "12."),
        ("The answer is 5, since 10/2 = 5.", "5"),
        ("x + 1", "x + 1"),
        ("The roots are $2$ and $3$.", "2, 3"),
        ("41 or 42", None),
        ("It is not 42.", None),
        ("Maybe 42", None),
        ("Is it 42?", None),
        ("At most 42 of them", None),
        ("between 41 and 42", None),
        ("If the answer were 42, there would be more.", None),
        ("from 40 to 42", None),
        ("The answer is 42 unless it is 24.", None),
    ],
)
def test_the_sentence_that_commits(text: str, answer: str | None) -> None:
    found = committed(text, 2000)
    if answer is None:
        assert found.reason or "or" in found.text or "," in found.text
    else:
        assert found.text.rstrip(".") == answer.rstrip(".")


def test_the_letter_of_an_option() -> None:
    assert committed("I think it's (D).", 99, options=True).text == "(D)"
    assert committed("Option A looks good, but the answer is C.", 99, options=True).text == "C"
    assert committed("The answer is D, it can't be A or B", 99, options=True).text == "D"
    assert committed("It is A or C.", 99, options=True).text == "A, C"  # two values: no option
    assert committed("I would rule out A.", 99, options=True).reason
