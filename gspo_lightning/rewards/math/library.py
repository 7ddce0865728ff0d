r"""Equality by Math-Verify, with its own time limits off.

Math-Verify is right on mathematics but unsafe in a trainer: its time limits are signals, and it needs seconds and
hundreds of megabytes on hostile input. The worker's deadline and memory limit replace its time limits.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

_EXACT = 12
"""Decimal places to which the library compares decimals where nothing else is set: they reach it as fractions."""
_ARITHMETIC = re.compile(r"[-+*/^()\d.,\s%]+")
_NUMBER = re.compile(r"[-+]?[\d.,\s]+%?")
_SIDE = r"[-+]?\(*[-+]?\d[\d.,]*\)*"
_OPERATOR = r"(?:[-+*/^\u00d7\u00f7\u00b7]|\\times|\\cdot)"
_EQUATION = re.compile(
    rf"(?:^|[$:;,.=]\s*|(?<![\\_^{{}}\w])[A-Za-z]{{2,}}\s+)({_SIDE}(?:\s*{_OPERATOR}\s*{_SIDE})*)\s*=\s*([^=<>\n]{{1,40}})$"
)


def _package() -> Any:
    """Import the package on first use (1.5 s) and silence it: it logs a warning per process."""
    import math_verify as package

    for name in ("math_verify.parser", "math_verify.grader", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return package


def warm_up() -> None:
    """Trigger the imports and tables that the first samples would wait for: half a second."""
    for gold, given in (
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
        ("(0,1)", "[0,1]"),
        ("x = 1, y = 2", "1, 3"),
        (r"\sin^2 x + 1", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        ("2 < x", r"\{1, 2\} \cup [3, \infty)"),
    ):
        equal(parse(gold, boxed=True), parse(given, boxed=True), 6, strict=True)


def parse(text: str, *, boxed: bool) -> list[Any]:
    r"""Parse a text with Math-Verify, in the configuration of its own tests, without its time limit.

    In a box, fallback to the last number is off: ``\boxed{41 \to 42}`` is not 42.
    """
    package = _package()
    targets = [package.LatexExtractionConfig(boxed_match_priority=0, **_without_units(boxed))]
    if not boxed or _ARITHMETIC.fullmatch(text):
        targets.append(package.ExprExtractionConfig())
    readings: list[Any] = package.parse(f"\\boxed{{{text}}}" if boxed else text, targets, parsing_timeout=None)
    return readings


def _without_units(boxed: bool) -> dict[str, Any]:
    """Upstream settings that do not read ``2t`` as 2 tons; ``units`` removes units that are set apart."""
    if not boxed:
        return {}
    from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]

    config = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    return {"normalization_config": config}


@lru_cache(maxsize=64)  # the samples of a group follow each other
def read(gold: str) -> tuple[Any, ...]:
    """Parse a record's answer, often LaTeX without the delimiters Math-Verify expects; empty if unreadable."""
    bare = gold.replace("\\$", "")
    if any(mark in bare for mark in ("$", "\\(", "\\[", "\\boxed")):
        readings = parse(bare, boxed=False)
    else:
        readings = parse(bare, boxed=True)
        if _NUMBER.fullmatch(bare):  # 1,22 is a decimal number to some and a pair to others
            readings += parse(bare, boxed=False)
    return tuple(readings) if any(not isinstance(value, str) for value in readings) else ()


def equal(wanted: Any, given: Any, decimals: int | None, *, strict: bool) -> bool:
    """True if any reading of one answer equals a reading of the other."""
    decimals = _EXACT if decimals is None else decimals
    verify = _package().verify
    pairs = [(ours, candidate) for ours in wanted for candidate in given]
    pairs += [(_complex(a), _complex(b)) for a, b in pairs if _has_i(a) or _has_i(b)]
    return any(
        bool(verify(ours, candidate, float_rounding=decimals, strict=strict, timeout_seconds=None))
        and not _both_vanish(ours, candidate, decimals)
        for ours, candidate in pairs
    )


def _has_i(value: Any) -> bool:
    """True if a name i occurs, which upstream reads as the imaginary unit in some places only."""
    return getattr(value, "is_commutative", False) is True and any(
        str(symbol) == "i" for symbol in getattr(value, "free_symbols", ())
    )


def _complex(value: Any) -> Any:
    from sympy import I  # type: ignore[import-untyped]

    names = {symbol: I for symbol in getattr(value, "free_symbols", ()) if str(symbol) == "i"}
    return value.subs(names) if names else value


def _both_vanish(ours: Any, theirs: Any, decimals: int) -> bool:
    """True if two numbers differ but both round to 0."""
    if not (getattr(ours, "is_number", False) and getattr(theirs, "is_number", False)) or ours == theirs:
        return False
    sizes = [abs(float(value.evalf(15))) if value.is_real else 1.0 for value in (ours, theirs)]
    return max(sizes) < 10.0**-decimals and abs(sizes[0] - sizes[1]) > 1e-9 * max(sizes)


def constant(text: str) -> Fraction | None:
    r"""Return the value of a real constant to 40 digits; None if a text is none.

    >>> constant(r"\sqrt{2}") ** 2 - 2 < 1e-30, constant("x")
    (True, None)
    """
    for reading in parse(text, boxed=True):
        value = getattr(reading, "evalf", None) and getattr(reading, "is_number", False) and reading.evalf(40)
        if value is not None and value is not False and value.is_Float:
            return Fraction(str(value))
        if value is not None and value is not False and value.is_Rational:
            return Fraction(int(value.p), int(value.q))
    return None


def chain_holds(expression: Any, decimals: int | None) -> bool:
    """True if each equation of ``x = 6 * 7 = 42`` that does not define a name holds."""
    from latex2sympy2_extended import is_expr_of_only_symbols
    from latex2sympy2_extended.logic import And  # type: ignore[import-untyped]
    from sympy import Eq, false

    if expression == false:
        return False
    equations = getattr(expression, "_unsorted_args", ()) if isinstance(expression, And) else (expression,)
    return all(
        is_expr_of_only_symbols(e.lhs) or equal([e.lhs], [e.rhs], decimals, strict=True)
        for e in equations
        if isinstance(e, Eq)
    )


def unequal_sides(text: str) -> tuple[str, str] | None:
    """Return the two sides of an arithmetic equation at the end of a text, to check that they are equal.

    >>> unequal_sides("So 41 = 42"), unequal_sides("Step 3. 6 * 7 = 42."), unequal_sides("x = 42")
    (('41', '42'), ('6 * 7', '42'), None)
    """
    match = _EQUATION.search(text[-400:].strip())
    if match is None or match[1].count("(") != match[1].count(")"):
        return None
    return match[1], match[2].strip(" .$\\)]}*\n")
