"""Countdown: make a number from given numbers, each used exactly once."""

from __future__ import annotations

import json
import operator
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import ClassVar

from gspo_lightning.rewards.logic.family import Family, Grade, Puzzle

_TOKEN = re.compile(r"\s*([0-9]{1,9}|[-+*/()\[\]{}=])")
_SPELLINGS = (
    ("\\times", "*"), ("\\cdot", "*"), ("\\div", "/"), ("\u00d7", "*"), ("\u00b7", "*"), ("\u22c5", "*"),
    ("\u2219", "*"), ("\u2192", "="), ("equals", "="),
    ("\u2217", "*"), ("\u2022", "*"), ("\u00f7", "/"), ("\u2212", "-"), ("\u2013", "-"), ("\\left", " "),
    ("\\right", " "), ("==", "="),
)  # fmt: skip
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|([0-9])\s*([0-9]))")
_TIMES = re.compile(r"(?<=[0-9)\]}\s])[xX](?=[\s0-9(\[{])")
"""The letter x between two values: ``3 x 5``, ``3x5``."""
_OPENED_BY = {")": "(", "]": "[", "}": "{"}
_GOLD = re.compile(r"\s*[0-9]{1,9}(?:[\s,]+[0-9]{1,9})*\s*=\s*[0-9]{1,9}\s*")
_RANK = {")": 0, "+": 1, "-": 1, "*": 2, "/": 2}
_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_LARGEST = 12
"""Maximum count of numbers in a puzzle; bounds the arithmetic that a record can ask for."""
_SIDES = 6
"""Maximum number of sides of a chain ``3*5+7 = 15+7 = 22``."""


class Countdown(Family):
    """Countdown puzzles: difficulty + 2 numbers and a target; ``+ - * /`` and brackets.

    The generator builds its target from an expression, so a solution exists. Any other expression with the same numbers
    and the same value is equally correct. Values are exact fractions.
    """

    name: ClassVar[str] = "countdown"

    def generate(self, rng: random.Random, difficulty: int) -> Puzzle | None:
        """Combine numbers at random; every intermediate value is a positive whole number."""
        numbers = [rng.randint(1, 9 if difficulty == 1 else 25) for _ in range(difficulty + 2)]
        parts = [(n, str(n)) for n in numbers]
        while len(parts) > 1:
            left_value, left = parts.pop(rng.randrange(len(parts)))
            right_value, right = parts.pop(rng.randrange(len(parts)))
            sign = rng.choice("+-*/")
            value = _OPERATIONS[sign](Fraction(left_value), Fraction(right_value))
            if value < 1 or value.denominator != 1:
                return None
            parts.append((int(value), f"({left}{sign}{right})"))
        target, expression = parts[0]
        solution = expression[1:-1]  # without the outer brackets
        if target > 999 or target in numbers:
            return None
        listed = " ".join(str(n) for n in sorted(numbers))
        return Puzzle(
            key=f"{listed}={target}",
            text=f"Make {target} from the numbers {listed.replace(' ', ', ')}: use each of them exactly once, with "
            "+, -, *, / and brackets.",
            form="one expression",
            answer=f"{listed} = {target}",
            solution=solution,
            compact=f"{listed}={target}",
            compact_solution=solution,
        )

    def grade(self, text: str, answer: object) -> Grade:
        """Grade an expression against ``3 5 7 = 22``, or ``{"numbers": [3, 5, 7], "target": 22}``.

        ``expression = 22`` and ``22 = expression`` are accepted, too, and steps between them if each side is the
        target.
        """
        numbers, target = _gold(answer)
        try:
            sides = _sides(text)
            used = [sorted(int(token) for token in side if token.isdigit()) for side in sides]
            if sorted(numbers) not in used:
                return Grade(0, 1, "does not use each number exactly once")
            if len(sides) > _SIDES or max(map(len, used)) > _LARGEST:
                return Grade.unread("more than an expression and its value")
            if len(sides) == 1:
                return Grade(int(evaluate(sides[0]) == target), 1)
            if all("".join(side) == str(target) or evaluate(side) == target for side in sides):
                return Grade(1, 1)
            return Grade.unread("a side of the = is not the target")
        except (ValueError, ZeroDivisionError) as error:
            return Grade.unread(str(error))


def evaluate(tokens: list[str]) -> Fraction:
    """Compute the exact value of an expression, ``* /`` before ``+ -``, from the left.

    >>> evaluate(["3", "*", "(", "5", "-", "1", ")", "/", "8"])
    Fraction(3, 2)

    Raises:
        ValueError: not an expression.
        ZeroDivisionError: a division by zero.
    """
    values: list[Fraction] = []
    operators = ["("]
    expects_value = True
    for token in [*tokens, ")"]:  # brackets around the whole expression
        if not operators or expects_value != (token == "(" or token.isdigit()):
            raise ValueError("not an expression")
        if token == "(":
            operators.append(token)
        elif token.isdigit():
            values.append(Fraction(int(token)))
            expects_value = False
        else:
            while operators[-1] != "(" and _RANK[token] <= _RANK[operators[-1]]:
                right = values.pop()
                left = values.pop()
                values.append(_OPERATIONS[operators.pop()](left, right))
            if token == ")":
                operators.pop()
            else:
                operators.append(token)
                expects_value = True
    if operators:
        raise ValueError("not an expression")
    return values[0]


def _sides(text: str) -> list[list[str]]:
    """Split an equation into the tokens of each side of ``=``; matching brackets of all kinds become round ones.

    A bracket next to a number or another bracket multiplies: ``2(3+9)``, ``(8-4)(7-1)``.
    """
    sides: list[list[str]] = [[]]
    opened: list[str] = []
    for token in _tokens(text):
        if token == "=":
            sides.append([])
            continue
        if token in _OPENED_BY.values():
            opened.append(token)
        elif token in _OPENED_BY and (not opened or opened.pop() != _OPENED_BY[token]):
            raise ValueError("not an expression")
        if token in "([{":
            token = "("
        elif token in ")]}":
            token = ")"
        side = sides[-1]
        last_token = side[-1] if side else ""
        if (token == "(" and (last_token == ")" or last_token.isdigit())) or (token.isdigit() and last_token == ")"):
            side.append("*")
        side.append(token)
    return sides


def _tokens(text: str) -> list[str]:
    for spelling, sign in _SPELLINGS:
        text = text.replace(spelling, sign)
    fractions = 1
    while fractions:  # the inner ones first, whose braces are gone then
        text, fractions = _FRACTION.subn(lambda m: f"(({m[1] or m[3]})/({m[2] or m[4]}))", text)
    text = _TIMES.sub("*", text).strip()
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("more than an expression")
        tokens.append(match[1])
        position = match.end()
    return tokens


def _gold(answer: object) -> tuple[list[int], int]:
    if isinstance(answer, str) and answer.lstrip().startswith("{"):
        answer = json.loads(answer)
    if isinstance(answer, str) and _GOLD.fullmatch(answer):
        left, _, right = answer.partition("=")
        numbers = [int(n) for n in re.findall(r"\d+", left)]
        target = int(right)
    elif isinstance(answer, Mapping) and {"numbers", "target"} <= answer.keys():
        numbers = list(answer["numbers"])
        target = answer["target"]
        if not all(isinstance(n, int) for n in (*numbers, target)):
            raise ValueError(f"{str(answer)[:80]!r} has a number that is not whole")
    else:
        raise ValueError(f'{answer!r} is neither like "3 5 7 = 22" nor {{"numbers": [3, 5, 7], "target": 22}}')
    if len(numbers) > _LARGEST:
        raise ValueError(f"{len(numbers)} numbers; at most {_LARGEST}")
    return numbers, target
