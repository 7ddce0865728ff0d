r"""Forms that a prompt asks for: an answer that is equal, but is the task itself or in another form, answers nothing.

"Factor x^2 - 1" is not answered by ``x^2 - 1``, nor "write the prime factorization of 72" by ``8 \cdot 9``.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.equations import split
from gspo_lightning.rewards.math.notation import canonical
from gspo_lightning.rewards.math.question import Question

Form = Literal["any", "factored", "expanded"]

_REWRITE = re.compile(
    r"\b(?:simplif\w+|rewrite|partial fractions?|(?:complete|completing) the square"
    r"|rationali[sz]e|expand|factor(?:i[sz]e)?)\b",
    re.IGNORECASE,
)
"""Tasks whose answer is another form of an expression of the prompt."""
_PRIMES = re.compile(r"\bprime factori[sz]ation\b|\b(?:product|powers?) of primes?\b|\bprime factors\b", re.IGNORECASE)
_PRIME_POWER = re.compile(r"(\d{1,12})(?:\^(?:\{(\d{1,4})\}|(\d)))?")
_OPERATORS = "+-*/^=<>"
_LONGEST = 200


def is_task(gold: str, given: str, question: Question) -> bool:
    r"""True if an answer is the expression that the prompt asks to rewrite, as it stands there.

    >>> task = Question(r"Simplify $\frac{x^2-1}{x-1}$.")
    >>> is_task("x+1", r"\frac{x^2-1}{x-1}", task), is_task("x+1", "1+x", task)
    (True, False)
    """
    copied = _plain(canonical(split(given, "=")[-1]))
    if not 3 < len(copied) <= _LONGEST or copied == _plain(canonical(gold)) or not _REWRITE.search(question.text):
        return False
    prompt = _plain(question.text)
    spaced = r"\s*".join(map(re.escape, copied))
    for match in re.finditer(rf"(?<![A-Za-z0-9\\]){spaced}(?![A-Za-z0-9])", prompt):
        before = prompt[: match.start()].rstrip(" ({")[-1:]
        behind = prompt[match.end() :].lstrip(" )}")[:1]
        if (not before or before not in _OPERATORS) and (not behind or behind not in _OPERATORS):
            return True
    return False


def _plain(text: str) -> str:
    """Remove what does not change an expression: sizes of brackets and of fractions, braces around one character."""
    text = re.sub(r"\\(?:left|right|displaystyle)(?![a-z])\s*|\\[,;:!]", "", text)
    return re.sub(r"([\^_])\{(\w)\}", r"\1\2", re.sub(r"\\[dtc]frac(?![a-z])", r"\\frac", text))


def lacks_primes(gold: str, given: str, question: Question) -> bool:
    r"""True if the prompt asks for a prime factorization, the record has one, and the answer has not.

    >>> task = Question("Write the prime factorization of 72.")
    >>> [lacks_primes(r"2^3\cdot 3^2", text, task) for text in (r"3^2\times 2^3", r"8\cdot 9", "72")]
    [False, True, True]
    """
    if not _PRIMES.search(question.text) or not of_primes(gold):
        return False
    return not of_primes(split(given, "=")[-1])


def of_primes(text: str) -> bool:
    """True if a text is a product of powers of primes."""
    plain = re.sub(r"\\(?:times|cdot)(?![a-z])|\*", "*", text)
    powers = [_PRIME_POWER.fullmatch(re.sub(r"[\s$()]|\\[,;:! ]", "", piece)) for piece in plain.split("*")]
    bases = [int(match[1]) for match in powers if match]
    return len(bases) == len(powers) and all(map(_is_prime, bases))


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, min(10**6, int(number**0.5)) + 1))


def asked_form(gold: str, question: Question) -> Form:
    """Return the form that the prompt asks a polynomial to be brought into, if the record's answer has it."""
    if not question.form or not re.search("[a-z]", gold):
        return "any"
    form: Form = "factored" if question.form == "factored" else "expanded"
    product = re.search(r"\([^()]*[a-z][^()]*\)", gold) is not None
    if product != (form == "factored"):
        return "any"
    return form if has_form(library.read(gold), form) else "any"


def has_form(readings: Any, form: Form) -> bool:
    """True if all readings of a text as an expression are in a form; False if there is none."""
    check = factored if form == "factored" else expanded
    expressions = [item for item in readings if not isinstance(item, str)]
    return bool(expressions) and all(check(getattr(item, "rhs", item)) for item in expressions)


def factored(expression: Any) -> bool:
    """True if an expression is a product of irreducible factors over the rational numbers."""
    from sympy import Mul, Pow, factor_list  # type: ignore[import-untyped]
    from sympy.polys.polyerrors import PolynomialError  # type: ignore[import-untyped]

    for factor in Mul.make_args(expression):
        base = factor.base if isinstance(factor, Pow) else factor
        if not base.free_symbols or base.is_Symbol:
            continue
        try:
            content, factors = factor_list(base)
        except PolynomialError:  # nothing to factor
            continue
        if abs(content) != 1 or sum(power for _, power in factors) != 1:
            return False
    return True


def expanded(expression: Any) -> bool:
    """True if nothing is left to multiply out: no sum is a factor, or the base of a power."""
    from sympy import preorder_traversal

    for node in preorder_traversal(expression):
        powers = node.is_Pow and node.base.is_Add and node.exp.is_Integer and node.exp > 1
        if powers or (node.is_Mul and any(factor.is_Add for factor in node.args)):
            return False
    return True
