"""Exact arithmetic on text, with a parser of its own: ``eval`` would run code that the policy writes."""

from __future__ import annotations

import re
from fractions import Fraction

_LONGEST = 200
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+|[-+*/()])")


def calculate(expression: str) -> Fraction:
    """Return the value of an expression of numbers, ``+ - * /`` and parentheses.

    There is no power operator: the value of 200 characters has at most as many digits.

    Raises:
        ValueError: the text is no such expression, is longer than 200 characters, or divides by zero; the message
            names the problem.

    >>> calculate("2*(3-10)/4"), calculate("-.5*-6")
    (Fraction(-7, 2), Fraction(3, 1))
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST} characters")
    if not expression.isascii():
        raise ValueError("not an expression")
    return _Parser(expression).value()


class _Parser:
    """Recursive-descent parser with one method per level of precedence."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        place = 0
        text = text.rstrip()
        while place < len(text):
            if (token := _TOKEN.match(text, place)) is None:
                raise ValueError(f"unexpected {text[place:].strip()[0]!r}")
            self.tokens.append(token[1])
            place = token.end()
        self.tokens.reverse()

    def value(self) -> Fraction:
        result = self._sum()
        if self.tokens:
            raise ValueError(f"unexpected {self.tokens[-1]!r}")
        return result

    def _sum(self) -> Fraction:
        total = self._product()
        while self._next() in ("+", "-"):
            total = total + self._product() if self.tokens.pop() == "+" else total - self._product()
        return total

    def _product(self) -> Fraction:
        total = self._factor()
        while self._next() in ("*", "/"):
            if self.tokens.pop() == "*":
                total *= self._factor()
            elif (divisor := self._factor()) == 0:
                raise ValueError("division by zero")
            else:
                total /= divisor
        return total

    def _factor(self) -> Fraction:
        if not self.tokens:
            raise ValueError("unexpected end")
        token = self.tokens.pop()
        if token in ("+", "-"):
            return self._factor() if token == "+" else -self._factor()
        if token == "(":
            inner = self._sum()
            if self._next() != ")":
                raise ValueError("missing )")
            self.tokens.pop()
            return inner
        if token in ("*", "/", ")"):
            raise ValueError(f"unexpected {token!r}")
        return Fraction(token)

    def _next(self) -> str:
        return self.tokens[-1] if self.tokens else ""
