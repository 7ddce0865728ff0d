"""The math verifier: equal as mathematics, nothing for tricks, fast where it can be."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import MathVerifier, RewardRunner, Sample

EQUAL = [
    ("42", "42"),
    ("42", "042"),
    ("42", "42.0"),
    ("-42", "-42"),
    ("1000", "1,000"),
    ("1,000", "1000"),
    ("1234567", "1{,}234{,}567"),
    ("0.5", r"\frac{1}{2}"),
    ("1/2", r"\frac12"),
    (r"\frac{1}{2}", r"\dfrac{2}{4}"),
    (r"\frac{1}{3}", r"\tfrac13"),
    ("2/3", r"\frac{4}{6}"),
    (r"\sqrt{2}", r"2^{1/2}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    ("x+1", "1+x"),
    ("x^2-1", "(x-1)(x+1)"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\pi", r"\pi"),
    (r"\frac{\pi}{2}", r"0.5\pi"),
    ("42", "x = 42"),
    ("x = 42", "42"),
    ("42", r"6 \times 7 = 42"),
    ("42", r"6 \cdot 7 = 42"),
    ("42", r"\text{42}"),
    ("42", r"42\text{ cm}"),
    ("42", r"42^\circ"),
    ("50\\%", "50%"),
    ("50%", r"50\%"),
    ("10", r"\$10"),
    ("{1, 2}", r"\{2, 1\}"),
    (r"\{1, 2, 3\}", r"\{3, 2, 1\}"),
    ("1, 2", "2, 1"),
    ("(1, 2)", "(1,2)"),
    ("[0, 1)", "[0,1)"),
    (r"(-\infty, 2]", r"(-\infty,2]"),
    (r"[0, 1] \cup [2, 3]", r"[2,3]\cup[0,1]"),
    (r"\infty", r"\infty"),
    (r"\text{Monday}", "Monday"),
    ("3 + 2i", "2i + 3"),
    (r"10^{3}", "1000"),
    (r"2^{10}", "1024"),
    (r"\log_2 8", "3"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("$y = 2x + 1$", "y = 1 + 2x"),
    ("x > 3", "3 < x"),
]
DIFFERENT = [
    ("42", "41"),
    ("42", "-42"),
    ("42", "420"),
    ("42", "4.2"),
    ("42", r"\pm 42"),
    ("0.5", r"\frac{1}{3}"),
    (r"\frac{1}{3}", "0.3"),
    (r"\sqrt{2}", "1.41"),
    ("x+1", "x-1"),
    ("x^2", "2x"),
    ("(1, 2)", "(2, 1)"),
    ("[0, 1)", "[0, 1]"),
    (r"\{1, 2\}", r"\{1, 3\}"),
    ("1, 2", "1"),
    ("1", "1, 2"),
    ("x > 3", "x < 3"),
    ("x > 3", r"x \ge 3"),
    (r"\infty", r"-\infty"),
    (r"\text{Monday}", r"\text{Tuesday}"),
    ("x = 42", "x = 41"),
    (r"\pi", "3.14"),
]


@pytest.fixture(scope="module")
def verifier() -> MathVerifier:
    verifier = MathVerifier()
    verifier.prepare()
    return verifier


@pytest.mark.parametrize(("answer", "written"), EQUAL)
def test_equal_as_mathematics(verifier: MathVerifier, answer: str, written: str) -> None:
    assert verifier.score(f"Therefore the answer is $\\boxed{{{written}}}$.", answer).reward == 1.0


@pytest.mark.parametrize(("answer", "written"), DIFFERENT)
def test_different_as_mathematics(verifier: MathVerifier, answer: str, written: str) -> None:
    assert verifier.score(f"Therefore the answer is $\\boxed{{{written}}}$.", answer).reward == 0.0


@pytest.mark.parametrize(
    "completion",
    [
        r"\boxed{41 = 42}",
        "41 = 42",
        "So $41 = 42$.",
        r"\boxed{x = 41 = 42}",
        r"\boxed{41 \equiv 42}",
        r"\boxed{41 \to 42}",
        r"\boxed{41 \Rightarrow 42}",
        r"\boxed{41 \neq 42}",
        r"\boxed{42 \neq 41}",
        r"\boxed{7 \boxed{42}}",
        r"\boxed{\boxed{42}}",
        r"<think>\boxed{42}</think> I do not know.",
        r"<think>\boxed{42}",
        r"</think><think>\boxed{42}",
        r"\boxed{42} \boxed{41}",
        r"\boxed{41} \boxed{42}",
        r"\boxed{41} or \boxed{42}",
        r"$\boxed{42}$ or $\boxed{41}$",
        r"\boxed{42} is wrong, so \boxed{41}",
        r"\boxed{41, 42}",
        r"\boxed{41 \text{ or } 42}",
        r"\boxed{\{41, 42\}}",
        r"\boxed{41; 42}",
        r"\boxed{41 42}",
        r"\boxed{41\\42}",
        r"\boxed{41 | 42}",
        r"\boxed{x = 41 \text{ or } x = 42}",
        r"\boxed{\text{the answer is not } 42}",
        r"\boxed{42 \text{ because } 41}",
        r"\boxed{x \ge 42}",
        r"\boxed{42",
        r"\boxed{}",
        r"\boxed{42}\boxed{",
        "41 or 42",
        "1, 2, 3, 42",
        "$41$ or $42$",
        r"\boxed{__import__('os').system('true')}",
        r"\boxed{42 if True else 41}",
        r"\boxed{\text{42 }" + "x" * 3000 + "}",
        "",
        "\x00",
        "}{" * 100,
    ],
)
def test_tricks_are_worth_nothing(verifier: MathVerifier, completion: str) -> None:
    assert verifier.score(completion, "42").reward == 0.0


@pytest.mark.parametrize(
    "completion",
    [
        r"<think>maybe \boxed{41}</think> \boxed{42}",
        r"First \boxed{41}. No: that is wrong. It is \boxed{42}.",
        r"$$\boxed{42}$$",
        r"\boxed{42}. I checked \boxed{42}.",
        r"\fbox{42}",
        r"\boxed 42",
        r"$x = \boxed{42}$",
        "The answer is $42$.",
        "So 6 * 7 = 42.",
        "42",
        "The final answer is $42$. I hope it is correct.",
    ],
)
def test_honest_answers_are_paid(verifier: MathVerifier, completion: str) -> None:
    assert verifier.score(completion, "42").reward == 1.0


def test_a_box_can_be_required() -> None:
    strict = MathVerifier(require_box=True)
    assert strict.score("The answer is 42", "42").detail == "no box"
    assert strict.score(r"The answer is \boxed{42}", 42).reward == 1.0


def test_answers_that_cannot_be_used_are_missing_not_zero(verifier: MathVerifier) -> None:
    assert verifier.score("42", " ").status == "missing"
    assert verifier.score("42", {"value": 42}).status == "missing"


def test_longer_answers_are_the_models_mistake(verifier: MathVerifier) -> None:
    score = verifier.score("\\boxed{" + "1+" * 2000 + "1}", "2001")
    assert (score.reward, score.status, score.detail) == (0.0, "model_error", "longer than 2000 characters")


@pytest.mark.parametrize("settings", [{"max_characters": 0}, {"decimals": -1}, {"decimals": 99}])
def test_settings_out_of_range_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(UserError, match="MathVerifier"):
        MathVerifier(**settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runner() -> Iterator[RewardRunner]:
    with RewardRunner({"math": MathVerifier()}, num_workers=1, deadline_s=1.0, memory_mb=1024) as found:
        found.check({"answer": "42"})
        yield found


@pytest.mark.thorough
def test_hostile_mathematics_is_bounded_and_disturbs_no_other_sample(runner: RewardRunner) -> None:
    hostile = [
        r"\boxed{10^{10^{10^{10}}}}",
        r"\boxed{" + "(" * 900 + "42" + ")" * 900 + "}",
        r"\boxed{" + r"\frac{1}{" * 150 + "2" + "}" * 150 + "}",
        r"\boxed{" + "9" * 1900 + "}",
        r"\boxed{99999999999999!}",
        "\\boxed{" * 20000,
        "$" * 50000,
        "{" * 100000,
    ]
    texts = [t for h in hostile for t in (h, r"\boxed{6 \cdot 7 = 42}")]
    start = time.monotonic()
    scores = runner.score([Sample(str(i), "", t, (), {"answer": "42"}) for i, t in enumerate(texts)])
    assert time.monotonic() - start < 300  # each has a deadline of its own; a busy machine takes longer
    assert [s.reward for s in scores[1::2]] == [1.0] * len(hostile)
    assert all(s.reward in (0.0, 1.0) for s in scores[::2])
    assert [i for i, s in enumerate(scores[::2]) if s.reward == 1.0 and i != 1] == []


@pytest.mark.thorough
def test_thousands_of_plain_answers_are_judged_right(runner: RewardRunner) -> None:
    texts = [f"Some reasoning, {i} steps of it. Thus \\boxed{{{i % 7}}}." for i in range(4000)]
    batch = [Sample(str(i), "", t, (1, 2, 3), {"answer": "3"}) for i, t in enumerate(texts)]
    assert [s.reward for s in runner.score(batch)] == [float(i % 7 == 3) for i in range(4000)]


def test_the_fast_path_imports_nothing_heavy() -> None:
    program = (
        "import sys; from gspo_lightning.rewards import MathVerifier\n"
        "v = MathVerifier()\n"
        "assert v.score('\\\\boxed{42}', '42').reward == 1 and v.score('\\\\boxed{41}', '42').reward == 0\n"
        "assert v.score('\\\\boxed{x+1}', 'x + 1').reward == 1\n"
        "assert v.score('\\\\boxed{0.5}', '1/2').reward == 1 and v.score('\\\\boxed{B}', 'A').reward == 0\n"
        "assert v.score('Monday', 'Friday').reward == 0 and v.score('\\\\boxed{5 m}', '5 kg').reward == 0\n"
        "for kind, gold in dict(integer='7', number='0.5', choice='(B)', text='Rome').items():\n"
        "    typed = MathVerifier(answer_type=kind)\n"
        "    typed.prepare()\n"
        "    right, wrong = typed.score('\\\\boxed{' + gold + '}', gold), typed.score('\\\\boxed{x^2+1}', gold)\n"
        "    assert (right.reward, wrong.reward) == (1, 0)\n"
        "print([m for m in ('torch', 'sympy', 'math_verify', 'numpy') if m in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
