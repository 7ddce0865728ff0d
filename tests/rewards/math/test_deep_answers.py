r"""Answers of university and contest records: for each kind, what must be paid and what only looks like it."""

from __future__ import annotations

import pytest

from gspo_lightning.rewards import MathVerifier

Case = tuple[str, str, str, bool]

PERMUTATIONS: list[Case] = [
    ("Write it in cycle notation.", r"(1\ 4\ 2)(3\ 6)", r"(6\ 3)(2\ 1\ 4)", True),
    ("Write it in cycle notation.", r"(1\ 4\ 2)(3\ 6)", r"(1\ 2\ 4)(3\ 6)", False),
    ("Write it in cycle notation.", "(2 5 3)", "(3 5 2)", False),
    ("Write it in cycle notation.", "(2 5 3)", "(5 3 2)(1)(4)", True),
    ("Which element?", "(2 5 3)", r"\sigma = (2\ 5\ 3)", True),
    ("Which element?", "(2 5 3)", "2 5 3", False),
    ("Which permutation is it?", "(143)", "(431)", True),
    ("Which permutation is it?", "(143)", "(134)", False),
    ("Which permutation is it?", "(14)(23)", "322", False),
    ("Write the permutation with transpositions.", "(1 3)(1 2)", "(1 2 3)", True),
    ("Write the permutation with transpositions.", "(1 3)(1 2)", "(1 2)(1 3)", False),
]
SUBSPACES: list[Case] = [
    ("Find a basis of W.", r"\{(1,0,2),(0,1,3)\}", r"\{(1,1,5),(1,-1,-1)\}", True),
    ("Find a basis of W.", r"\{(1,0,2),(0,1,3)\}", r"\{(1,0,2),(2,0,4)\}", False),
    ("Find a basis of W.", r"\{(1,0,2),(0,1,3)\}", r"\{(1,0,2),(0,1,3),(1,1,5)\}", False),
    ("Find a basis of W.", r"\{(1,0,2),(0,1,3)\}", r"\{(1,0,2),(0,1,2)\}", False),
    ("Find an orthonormal basis of W.", r"\{(1,0,0),(0,1,0)\}", r"\{(2,0,0),(0,1,0)\}", False),
    ("Give the kernel of T.", r"\operatorname{span}\{(3,-1)\}", r"\text{span}\{(-6,2)\}", True),
    ("Give the kernel of T.", r"\operatorname{span}\{(3,-1)\}", r"\text{span}\{(-1,3)\}", False),
    ("Find the eigenvectors of A.", "(1,3), (2,-1)", "(-4,2), (2,6)", True),
    ("Find the eigenvectors of A.", "(1,3), (2,-1)", "(1,3), (3,9)", False),
    ("Find the projection of v onto the space spanned by w.", "(1,3)", "(2,6)", False),
    ("Find the coordinates of v in the basis B.", "(1,3)", "(2,6)", False),
    ("Find the line.", r"(0,1,2)+t(1,1,0), t\in\mathbb{R}", r"(3,4,2)+s(-2,-2,0), s\in\mathbb{R}", True),
    ("Find the line.", r"(0,1,2)+t(1,1,0), t\in\mathbb{R}", r"(3,5,2)+s(-2,-2,0), s\in\mathbb{R}", False),
    ("Find all integer solutions.", r"(x,y)=(1+7t,2-3t), t\in\mathbb{Z}", r"(8-7k,-1+3k), k\in\mathbb{Z}", True),
    ("Find all integer solutions.", r"(x,y)=(1+7t,2-3t), t\in\mathbb{Z}", r"(8-14k,-1+6k), k\in\mathbb{Z}", False),
    ("Find all integer solutions.", r"(x,y)=(1+7t,2-3t), t\in\mathbb{Z}", r"(x,y)=(2-3t,1+7t), t\in\mathbb{Z}", False),
    ("Find all solutions.", r"x=1+t, y=2t, t\in\mathbb{R}", r"x=s, y=2s-2, s\in\mathbb{R}", True),
    ("Find all solutions.", r"x=1+t, y=2t, t\in\mathbb{R}", r"x=s, y=2s+2, s\in\mathbb{R}", False),
    ("Find u.", r"\left(\frac{5}{13},\frac{12}{13}\right)", r"\frac{1}{13}(5,12)", True),
    ("Find u.", r"\left(\frac{5}{13},\frac{12}{13}\right)", r"\frac{1}{12}(5,12)", False),
    ("Find an eigenvector of A.", "(1,2)", "(0,0)", False),
    ("Find the eigenvectors of A.", "(1,3), (2,-1)", "(0,0), (0,0)", False),
    ("Find an orthogonal basis of W.", r"\{(1,0),(0,1)\}", r"\{(1,0),(1,1)\}", False),
    ("Find a basis of the orthogonal complement.", r"\{(1,0,0),(0,1,0)\}", r"\{(1,0,0),(1,1,0)\}", True),
    ("Find a basis consisting of eigenvectors.", r"\{(1,1),(1,-1)\}", r"\{(1,0),(0,1)\}", False),
    ("Find a basis consisting of eigenvectors.", r"\{(1,1),(1,-1)\}", r"\{(-2,2),(3,3)\}", True),
    ("Find the dual basis.", r"\{(1,0),(0,1)\}", r"\{(1,0),(1,1)\}", False),
    ("Find a basis of the lattice.", r"\{(1,0),(0,1)\}", r"\{(2,0),(0,2)\}", False),
    ("Apply Gram-Schmidt and give the basis.", r"\{(1,0),(0,1)\}", r"\{(1,0),(1,1)\}", False),
    ("Find the projection onto span{w}.", "(1,3)", "(2,6)", False),
    ("Find the kernel vector with first entry 1.", "(1,3)", "(2,6)", False),
    ("Find the direction vector from P to Q.", "(1,3)", "(-1,-3)", False),
    ("Find the plane.", "(0,0,0)+s(1,0,0)+t(0,1,0)", "(0,0,0)+t(1,0,0)+t(0,1,0)", False),
    ("Find all.", r"(0,1)+t(1,0), t\in\mathbb{Z}", r"(0,1)+2t(1,0), t\in\mathbb{Z}", False),
    ("Find all.", r"(0,1)+2t(1,0), t\in\mathbb{Z}", r"(4,1)+t(2,0), t\in\mathbb{Z}", True),
    ("Find the line.", r"(1,2)+t(1,0), t\in\mathbb{R}", r"(1,2)+t(1,0), t \neq 0", False),
    ("Find a basis of W.", r"\{(1,0,2),(0,1,3)\}", "s(1,0,2)+t(0,1,3)", True),
    ("Find a basis of W.", r"\{(1,0,2),(0,1,3)\}", "t(1,0,2)+t(0,1,3)", False),
]
GROWTH: list[Case] = [
    ("How fast does it grow?", r"O(n^2\log n)", r"\mathcal{O}(n^2 \ln n)", True),
    ("How fast does it grow?", r"O(n^2\log n)", "O(n^2)", False),
    ("How fast does it grow?", r"\Theta(2^n)", r"\Theta(2^{n+3})", True),
    ("How fast does it grow?", r"\Theta(2^n)", r"\Theta(4^n)", False),
    ("How fast does it grow?", r"\Theta(2^n)", "O(2^n)", False),
    ("How fast does it grow?", r"\Theta(n^{\log_2 3})", r"\Theta(n^{\log_4 3})", False),
    ("How fast does it grow?", r"\Theta(n^{\log_2 3})", r"\Theta(n^{\frac{\ln 3}{\ln 2}})", True),
    ("Which group is it?", "O(2)", "O(3)", False),
]
BOUND: list[Case] = [
    ("Write the series.", r"\sum_{n=1}^\infty \frac{x^{2n}}{n}", r"\sum_{k=0}^\infty \frac{x^{2k+2}}{k+1}", True),
    ("Write the series.", r"\sum_{n=1}^\infty \frac{x^{2n}}{n}", r"\sum_{k=0}^\infty \frac{x^{2k}}{k+1}", False),
    ("Write the series.", r"\sum_{n=1}^\infty n x^n", r"\sum_{m=0}^\infty m x^m", True),
    ("Write the series.", r"\sum_{n=1}^\infty n x^n", r"\sum_{m=2}^\infty m x^m", False),
    ("Which integral?", r"\int_0^2 g(x)\,dx", r"\int_0^2 g(u)\,du", True),
    ("Which integral?", r"\int_0^2 g(x)\,dx", r"\int_0^2 g(x)\,du", False),
    ("Which integral?", r"\int_0^2 g(x)\,dx", r"\int_0^3 g(u)\,du", False),
]
CONDITIONS: list[Case] = [
    ("Give the set.", r"\{n\in\mathbb{Z} : |n| < 3\}", r"\{-2,-1,0,1,2\}", True),
    ("Give the set.", r"\{n\in\mathbb{Z} : |n| < 3\}", r"\{-3,-2,-1,0,1,2,3\}", False),
    ("Give the set.", r"\{n\in\mathbb{Z} : |n| < 3\}", "(-3,3)", False),
    ("Give the set.", r"\{3,6,\ldots,15\}", r"\{3,6,9,12,15\}", True),
    ("Give the set.", r"\{3,6,\ldots,15\}", r"\{3,6,15\}", False),
    ("Give the set.", r"\{3,6,\ldots,15\}", r"\{15,6,\ldots,3\}", False),
    ("Which region?", r"\{(x,y) \mid y > 2x\}", r"\{(a,b) : b > 2a\}", True),
    ("Which region?", r"\{(x,y) \mid y > 2x\}", r"\{(a,b) : a > 2b\}", False),
    ("For which k?", r"k \le 7", r"k\text{ is at most }7", True),
    ("For which k?", r"k \le 7", r"k\text{ is less than }7", False),
    ("For which k?", r"k < 0", r"\text{all negative real numbers}", True),
    ("For which k?", r"k < 0", r"\text{all nonnegative real numbers}", False),
    ("For which k?", r"-1 \le k < 7", r"k\text{ is at least }-1\text{ and less than }7", True),
    ("For which k?", r"-1 \le k < 7", r"k\text{ is at least }-1\text{ or less than }7", False),
    ("How many?", "7", r"\text{at most }7", False),
    ("For which n?", r"\text{all multiples of }5", r"n = 5m, m\in\mathbb{Z}", True),
    ("For which n?", r"\text{all multiples of }5", r"n = 10m, m\in\mathbb{Z}", False),
    ("For which n?", r"n\equiv 0 \pmod{12}", r"12 \mid n", True),
    ("For which n?", r"n\equiv 0 \pmod{12}", r"n \mid 12", False),
    ("For which n?", r"n\equiv 1 \pmod 2", r"n\text{ is odd}", True),
    ("For which n?", r"n\equiv 1 \pmod 2", r"n\text{ is even}", False),
    ("Find the inverse of 4 modulo 11.", "3", r"3 \pmod{11}", True),
    ("Find the inverse of 4 modulo 11.", "3", r"4 \pmod{11}", False),
    ("Find all n.", r"n=5k+2, k=0,1,2,\ldots", r"n=5k-3, k=1,2,3,\ldots", True),
    ("Find all n.", r"n=5k+2, k=0,1,2,\ldots", r"n=5k-3, k=0,1,2,\ldots", False),
    ("Describe it.", r"\{(x,y)\in\mathbb{R}^2 : x<y\}", r"\{(a,b)\in\mathbb{Z}^2 : a<b\}", False),
    ("Describe it.", r"\{(x,y)\in\mathbb{R}^2 : x<y\}", r"\{(a,b)\in\mathbb{R}^2 : a<b\}", True),
    (r"Solve $x\equiv 2 \pmod 3$, $x\equiv 3 \pmod 5$.", "8", r"8 \pmod 3", False),
]
FORMS: list[Case] = [
    (r"Simplify $\frac{x^2-9}{x-3}$.", "x+3", r"\frac{x^2-9}{x-3}", False),
    (r"Simplify $\frac{x^2-9}{x-3}$.", "x+3", r"\dfrac{x^{2}-9}{x-3}", False),
    (r"Simplify $\frac{x^2-9}{x-3}$.", "x+3", "3+x", True),
    (r"Find partial fractions of $\frac{4}{x^2-4}$.", r"\frac{1}{x-2}-\frac{1}{x+2}", r"\frac{4}{x^2-4}", False),
    ("Complete the square in $x^2-6x+1$.", "(x-3)^2-8", "x^2-6x+1", False),
    ("Complete the square in $x^2-6x+1$.", "(x-3)^2-8", "(3-x)^2-8", True),
    ("What is the prime factorization of 60?", r"2^2\cdot 3\cdot 5", r"5 \times 3 \times 2^2", True),
    ("What is the prime factorization of 60?", r"2^2\cdot 3\cdot 5", r"4 \times 15", False),
    ("What is the prime factorization of 60?", r"2^2\cdot 3\cdot 5", "60", False),
]
ROUNDING: list[Case] = [
    ("Find it to three decimal places.", r"\frac{2}{7}", "0.286", True),
    ("Find it to three decimal places.", r"\frac{2}{7}", "0.285", False),
    ("Find it to three decimal places.", r"\frac{2}{7}", "0.29", False),
    ("Find it.", r"\frac{2}{7}", "0.286", False),
    ("Give the area, to the nearest hundredth.", r"2\pi", "6.28", True),
    ("Give the area, to the nearest hundredth.", r"2\pi", "6.29", False),
    ("Give the ratio, to the nearest hundredth.", r"2\pi", r"6.28\%", False),
    ("Give it to 2 significant figures.", r"\sqrt{50000}", "220", True),
    ("Give it to 2 significant figures.", r"\sqrt{50000}", "230", False),
    ("Give the exact area; a guess to one decimal place is no answer.", r"2\pi", "6.3", False),
    ("Round to the nearest ten thousand.", r"\frac{1234567}{8}", "154320", False),
    ("Round to the nearest hundred thousand.", r"\frac{1234567}{8}", "154300", False),
]
CHEMISTRY: list[Case] = [
    ("Balance it.", r"N_2 + 3H_2 \to 2NH_3", r"\ce{3H2 + N2 -> 2NH3}", True),
    ("Balance it.", r"N_2 + 3H_2 \to 2NH_3", r"\ce{N2 + H2 -> NH3}", False),
    ("Balance it.", r"N_2 + 3H_2 \to 2NH_3", r"\ce{2NH3 -> N2 + 3H2}", False),
    ("Which ion?", r"\ce{NO3^-}", r"\mathrm{NO_3^{-}}", True),
    ("Which ion?", r"\ce{NO3^-}", r"\mathrm{NO_2^{-}}", False),
    ("Which ion?", r"\mathrm{Ca^{2+}}", r"\ce{Ca^2+}", True),
    ("Which ion?", r"\mathrm{Ca^{2+}}", r"\ce{Ca^+}", False),
    ("Which sugar?", r"\mathrm{C_{12}H_{22}O_{11}}", r"\ce{C12H22O11}", True),
    ("Solve for S.", "S = 2V", "2V = S", True),
    ("What is it?", "PV = NK", "NK = PV", True),
    ("Balance it.", r"2H_2 + O_2 = 2H_2O", r"O_2 + 2H_2 = 2H_2O", True),
    ("Balance it.", r"2H_2 + O_2 = 2H_2O", r"2H_2O = O_2 + 2H_2", False),
]
WORDS: list[Case] = [
    ("Is the function bounded?", r"\text{unbounded}", r"\text{The function is not bounded.}", True),
    ("Is the function bounded?", r"\text{unbounded}", r"\text{bounded}", False),
    ("Does the integral converge?", r"\text{diverges}", r"\text{The integral diverges.}", True),
    ("Does the integral converge?", r"\text{diverges}", r"\text{It does not converge}", True),
    ("Does the integral converge?", r"\text{diverges}", r"\text{The integral converges.}", False),
    ("Does the integral converge?", r"\text{diverges}", r"\text{The integral never diverges}", False),
    ("Which curve is it?", r"\text{parabola}", r"\text{The curve is a parabola.}", True),
    ("Which curve is it?", r"\text{parabola}", r"\text{The curve is not a parabola.}", False),
    ("Which is heavier, the red ball or the ball?", r"\text{red ball}", r"\text{ball}", False),
    ("In which quadrant?", "III", r"\text{the third quadrant}", True),
    ("In which quadrant?", "III", "3", True),
    ("In which quadrant?", "III", r"\text{Quadrant IV}", False),
    ("Write 3 in Roman numerals.", "III", "3", False),
    ("In which century?", r"12\text{th century}", r"\text{the twelfth century}", True),
    ("In which century?", r"12\text{th century}", r"\text{the eleventh century}", False),
    ("In what year?", r"31\text{ BC}", r"31\text{ AD}", False),
    ("In what year?", r"31\text{ BC}", r"31\text{ BCE}", True),
    ("How much?", r"\text{loss of }\$8", r"\$8\text{ loss}", True),
    ("How much?", r"\text{loss of }\$8", r"\$8\text{ profit}", False),
    ("How does it change?", r"15\%\text{ decrease}", r"\text{a decrease of }15\%", True),
    ("How does it change?", r"15\%\text{ decrease}", r"\text{an increase of }15\%", False),
    ("Which are more, oranges or apples?", r"\text{apples}", r"\text{oranges apples}", False),
    ("Is it true or false?", r"\text{true}", r"\text{false is true}", False),
    ("Does the series converge or diverge?", r"\text{converges}", r"\text{The series converges}", True),
    ("In which quadrant is it?", "IV", "VI", False),
    ("Which functions?", r"\text{sin}(x), \text{cos}(x)", r"\text{sinh}(x), \text{cosh}(x)", False),
]
LISTS: list[Case] = [
    ("Divide.", "q(x)=x-1, r(x)=5", "q(x)=5, r(x)=x-1", False),
    ("Divide.", "q(x)=x-1, r(x)=5", "r(x)=5, q(x)=x-1", True),
    ("Find the extremes.", r"\text{max }9, \text{ min }2", r"\text{minimum: }2, \text{maximum: }9", True),
    ("Find the extremes.", r"\text{max }9, \text{ min }2", r"\text{min }9, \text{ max }2", False),
    ("Arrange in ascending order.", r"0.2, \frac14, 0.3", r"0.2 < \frac14 < 0.3", True),
    ("Arrange in ascending order.", r"0.2, \frac14, 0.3", r"0.2 < 0.3 < \frac14", False),
    ("Order these weights from lightest to heaviest, or from least to most.", "3, 4, 7", "7, 4, 3", False),
    ("List the roots.", "3, 4, 7", "7, 4, 3", True),
    ("Find the extremes.", r"\min=2, \max=9", r"\text{max }9, \text{ min }2", True),
    ("Give the first four terms.", "2, 4, 8, 16", r"2, 4, 8, 16, \ldots", True),
    ("Give the first four terms.", "2, 4, 8, 16", r"2, 4, 8, \ldots", False),
    ("Write 500 in hexadecimal.", "1F4", "1f4", True),
    ("Write 500 in hexadecimal.", "1F4", r"\mathrm{1F4}_{16}", True),
    ("Write 500 in hexadecimal.", "1F4", "500", False),
    ("Write 500 in hex.", "1F4", "F14", False),
    ("Write 61 in hexadecimal.", "3D", "D3", False),
    ("Write 61 in hexadecimal.", "3D", r"3 \cdot D", False),
    ("Write z in polar form.", r"3e^{i\pi/4}", r"3\angle 45^\circ", True),
    ("Write z in polar form.", r"3e^{i\pi/4}", r"3\angle 60^\circ", False),
    ("In how many ways?", r"\frac{9!}{2!3!4!}", r"\binom{9}{2,3,4}", True),
    ("In how many ways?", r"\frac{9!}{2!3!4!}", r"\binom{9}{3,3,3}", False),
    ("Find the inverse.", r"f^{-1}(x)=\frac{x-1}{4}", r"f^{-1}(y)=\frac{y-1}{4}", True),
    ("Find the inverse.", r"f^{-1}(x)=\frac{x-1}{4}", r"f^{-1}(y)=\frac{y+1}{4}", False),
]
KINDS = {
    "permutations": PERMUTATIONS,
    "subspaces": SUBSPACES,
    "orders of growth": GROWTH,
    "bound letters": BOUND,
    "conditions": CONDITIONS,
    "forms": FORMS,
    "roundings": ROUNDING,
    "chemistry": CHEMISTRY,
    "words": WORDS,
    "lists and notations": LISTS,
}


@pytest.fixture(scope="module")
def verifier() -> MathVerifier:
    verifier = MathVerifier()
    verifier.prepare()
    return verifier


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_judged_as_it_says(verifier: MathVerifier, kind: str) -> None:
    wrong = [
        (prompt, answer, written, score.reward, score.detail)
        for prompt, answer, written, paid in KINDS[kind]
        if ((score := verifier.score(f"So it is $\\boxed{{{written}}}$.", answer, prompt)).reward == 1.0) != paid
    ]
    assert wrong == []
    assert {paid for *_, paid in KINDS[kind]} == {True, False}


@pytest.mark.parametrize(
    ("completion", "paid"),
    [
        (r"(a) First $\boxed{6}$. (b) With it $\boxed{8}$.", True),
        (r"(b) First $\boxed{8}$. (a) With it $\boxed{6}$.", True),
        (r"(a) First $\boxed{8}$. (b) With it $\boxed{6}$.", False),
        (r"(a) First $\boxed{6}$, no, (a) $\boxed{7}$. (b) With it $\boxed{8}$.", False),
        (r"(a) First $\boxed{6}$. (b) is hard.", False),
        (r"(a) It is not $\boxed{6}$. (b) With it $\boxed{8}$.", False),
    ],
)
def test_boxes_of_parts_belong_to_the_labels_in_front_of_them(
    verifier: MathVerifier, completion: str, paid: bool
) -> None:
    assert (verifier.score(completion, "(a) 6, (b) 8", "Do both.").reward == 1.0) == paid


@pytest.mark.parametrize(
    ("behind", "paid"),
    [
        (" unless the die is biased, in which case it is 9.", False),
        (" except when n = 1, then 9.", False),
        (" unless I am mistaken.", True),
    ],
)
def test_a_condition_with_another_value_takes_a_box_back(verifier: MathVerifier, behind: str, paid: bool) -> None:
    assert (verifier.score(f"$\\boxed{{8}}${behind}", "8", "Compute.").reward == 1.0) == paid
