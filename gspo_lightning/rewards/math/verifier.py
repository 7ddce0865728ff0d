r"""Mathematical answers: equal as mathematics, not as text, and nothing paid for tricks.

Equality is decided by Math-Verify, which is right on mathematics and unsafe in a trainer: its time limits are signals,
and it needs seconds and hundreds of megabytes on hostile input. So its own time limits are off, and the worker's
deadline and memory limit stand in for them. It would also pay ``41 = 42``, boxes in boxes, and a box that appears only
while thinking; the text around the answer is therefore judged first, and most answers never reach Math-Verify.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from gspo_lightning.errors import UserError
from gspo_lightning.rewards.base import Reward
from gspo_lightning.rewards.math.text import canonical, extract, plain_integer, unequal_sides
from gspo_lightning.rewards.types import Score

__all__ = ["MathVerifier"]

_ARITHMETIC = re.compile(r"[-+*/^()\d.,\s%]+")
_NUMBER = re.compile(r"[-+]?[\d.,\s]+%?")


class MathVerifier(Reward):
    r"""1 if the final answer equals ``answer`` mathematically, otherwise 0.

    The final answer is the last ``\boxed{...}`` after any ``<think>...</think>``. LaTeX, fractions, sets, intervals,
    percentages, units and equations such as ``x = 42`` are understood.

    Args:
        require_box: an answer outside a box is worth 0; otherwise the last formula or number of the completion counts
            where there is no box. Boxes leave no doubt about what is meant: ask for them in the prompt, require them.
        max_characters: longer answers are worth 0 (``model_error``); without a box so much of the end is read.
        decimals: decimal places to which numbers with a decimal point must agree.

    >>> verifier = MathVerifier()
    >>> verifier.score(r"6 * 7 is \boxed{42}.", "42").reward, verifier.score(r"\boxed{41}", "42").reward
    (1.0, 0.0)
    """

    def __init__(self, require_box: bool = False, max_characters: int = 2000, decimals: int = 6) -> None:
        if max_characters < 1:
            raise UserError("MathVerifier.max_characters", f"is {max_characters}; it must be at least 1")
        if not 0 <= decimals <= 15:
            raise UserError("MathVerifier.decimals", f"is {decimals}; it must lie in 0 to 15")
        self.require_box, self.max_characters, self.decimals = require_box, max_characters, decimals

    def prepare(self) -> None:
        """Import Math-Verify, which takes more than a second, before a deadline runs."""
        _math_verify()

    def score(self, completion: str, answer: object) -> Score:
        """Compare; why there was nothing to compare is in ``detail``."""
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            return Score.missing(f"the answer must be text or a number, not {type(answer).__name__}")
        gold = str(answer).rsplit("####", 1)[-1].strip()  # GSM8K's answers end so
        if not gold:
            return Score.missing("the answer is empty")
        found = extract(completion, require_box=self.require_box, max_characters=self.max_characters)
        if found.reason:
            return Score.model_error(found.reason) if found.too_long else Score(0.0, detail=found.reason)
        short_gold, short = canonical(_unboxed(gold)), canonical(found.text)
        if short == short_gold:
            return Score(1.0)
        wanted, given = plain_integer(short_gold), plain_integer(short)
        if wanted is not None and given is not None:
            return Score(float(wanted == given))
        return self._compare(gold, found.text, boxed=found.boxed)

    def _compare(self, gold: str, text: str, *, boxed: bool) -> Score:
        wanted, given = _read(gold), _parse(text, boxed=boxed)
        if not wanted:
            return Score(0.0, detail="the record's answer is not understood as mathematics")
        if not given:
            return Score(0.0, detail="the answer is not understood as mathematics")
        if not self._equal(wanted, given):
            return Score(0.0)
        if "=" not in gold:
            sides = unequal_sides(text)
            if sides is not None and not self._equal(wanted, _parse(sides[0], boxed=True)):
                return Score(0.0, detail="a false equation")
            if not all(self._chain_holds(expression) for expression in given):
                return Score(0.0, detail="a false equation")
        return Score(1.0)

    def _equal(self, wanted: list[Any], given: list[Any]) -> bool:
        return bool(_math_verify().verify(wanted, given, float_rounding=self.decimals, timeout_seconds=None))

    def _chain_holds(self, expression: Any) -> bool:
        """Whether each equation of ``x = 6 * 7 = 42`` holds that does not define a name."""
        from latex2sympy2_extended import is_expr_of_only_symbols  # type: ignore[import-untyped]
        from latex2sympy2_extended.logic import And  # type: ignore[import-untyped]
        from sympy import Eq, false  # type: ignore[import-untyped]

        if expression == false:
            return False
        equations = getattr(expression, "_unsorted_args", ()) if isinstance(expression, And) else (expression,)
        return all(
            is_expr_of_only_symbols(e.lhs) or self._equal([e.lhs], [e.rhs]) for e in equations if isinstance(e, Eq)
        )


def _math_verify() -> Any:
    """The package, imported on first use (1.5 s) and silenced: it logs a warning per process."""
    import math_verify

    for name in ("math_verify.parser", "math_verify.grader", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return math_verify


def _parse(text: str, *, boxed: bool) -> list[Any]:
    r"""What Math-Verify reads in a text, in the configuration of its own tests, without its time limit.

    In a box it may not fall back to the last number that it finds there: ``\boxed{41 \to 42}`` is not 42.
    """
    package = _math_verify()
    targets = [package.LatexExtractionConfig(boxed_match_priority=0)]
    if not boxed or _ARITHMETIC.fullmatch(text):
        targets.append(package.ExprExtractionConfig())
    found: list[Any] = package.parse(f"\\boxed{{{text}}}" if boxed else text, targets, parsing_timeout=None)
    return found


def _read(gold: str) -> list[Any]:
    """A record's answer, which is often LaTeX without the delimiters that Math-Verify looks for."""
    if any(mark in gold for mark in ("$", "\\(", "\\[", "\\boxed")):
        return _parse(gold, boxed=False)
    found = _parse(gold, boxed=True)
    if _NUMBER.fullmatch(gold):  # 1,22 is a decimal number to some and a pair to others
        found += _parse(gold, boxed=False)
    return found


def _unboxed(gold: str) -> str:
    return gold[len("\\boxed{") : -1] if gold.startswith("\\boxed{") and gold.endswith("}") else gold
