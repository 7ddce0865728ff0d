r"""Form of an answer, if the question asks for one: evaluated, factored, expanded."""

from __future__ import annotations

import re
from typing import Any

from gspo_lightning.rewards.math.notation import canonical
from gspo_lightning.rewards.math.numbers import literal

__all__ = ["expanded", "factored", "unevaluated"]

_OPERATION = re.compile(
    r"\d\s*(?:[+*\u00d7\u00f7]|(?<=\d)\s*-|\\times|\\cdot|\\div)\s*[\d.]|\d\s*!|\\(?:sum|prod|int|iint|oint|lim|binom|tbinom|dbinom|gcd|lcm)(?![a-zA-Z])"
    r"|\\frac\s*\{\s*d(?:\^\d)?[a-z]?\s*\}\s*\{\s*d|\d\s*\^\s*\{?\s*\d|\\b?mod(?![a-zA-Z])"
)


def unevaluated(gold: str, given: str, prompt: str) -> bool:
    r"""True if an answer contains the task: an operation that the record's answer lacks, or a part of the prompt.

    >>> unevaluated("391", r"17 \times 23", ""), unevaluated("391", "391", "")
    (True, False)
    >>> unevaluated("x+1", "(x^2-1)/(x-1)", "Simplify (x^2-1)/(x-1)")
    True
    """
    last = re.split(r"(?<![<>!\\])=", given)[-1].strip()
    if literal(gold) is not None:
        return literal(last) is None
    if _OPERATION.search(last) and not _OPERATION.search(gold):
        return True
    copied = canonical(last)
    return len(copied) > 3 and copied != canonical(gold) and copied in canonical(prompt)


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
    """True if nothing is left to multiply out."""
    from sympy import expand

    return bool(expand(expression) == expression)
