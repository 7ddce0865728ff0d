"""Tools that a policy can call in the middle of a response: text in, text out."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, Literal

from gspo_lightning.environments.calculator import calculate
from gspo_lightning.errors import UserError
from gspo_lightning.sandbox import End, Limits, Outcome, Sandbox, choose

_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


class ToolError(Exception):
    """Wrong use of a tool; the policy reads the message and continues."""


class Tool(ABC):
    """Base class of tools. Defining a subclass registers it under its name.

    Exceptions of :meth:`call` other than :class:`ToolError` count as infrastructure failures.
    """

    argument: ClassVar[str] = "input"
    """Name of the argument, as the policy writes it."""
    description: ClassVar[str] = ""
    """Description for the policy, one sentence."""
    max_concurrent: int = 64
    """Maximum number of conversations that may use the tool at the same time."""

    @abstractmethod
    def call(self, text: str) -> str | Awaitable[str]:
        """Answer a call; plain or ``async``.

        Raises:
            ToolError: the argument is wrong.
        """


class Calculator(Tool):
    """Exact arithmetic: numbers, + - * / and parentheses; nothing is evaluated as code.

    Args:
        digits: significant digits of a result that is not a whole number, 1 to 50.

    >>> Calculator().call("37*46+18"), Calculator().call("(1+2)/8"), Calculator(4).call("2/3")
    ('1720', '0.375', '0.6667')
    """

    argument = "expression"
    description = "Computes an expression of numbers, + - * / and parentheses."

    def __init__(self, digits: int = 10) -> None:
        if not 1 <= digits <= 50:
            raise UserError("Calculator.digits", f"is {digits}; it must lie in 1 to 50")
        self.digits = digits

    def call(self, text: str) -> str:
        """Return the value of the expression.

        Raises:
            ToolError: the text is not an expression.
        """
        try:
            value = calculate(text)
        except ValueError as error:
            raise ToolError(str(error)) from error
        return str(value.numerator) if value.denominator == 1 else _rounded(value, self.digits)


def _rounded(value: Fraction, digits: int) -> str:
    """Format with ``digits`` significant digits, without an exponent or trailing zeros."""
    scale = digits - 1 - (Decimal(value.numerator) / Decimal(value.denominator)).adjusted()
    text = f"{Decimal(round(value * Fraction(10) ** scale)).scaleb(-scale):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class PythonTool(Tool):
    """Python interpreter in the sandbox of the code reward; it returns the output of a program (docs/sandbox.md).

    Args:
        timeout_s: CPU seconds of a program.
        memory_mb: MiB that a program may use.
        isolation: see ``CodeExecutor``; ``auto`` tries backends when the tool is built.
        max_characters: characters of the output that the policy reads.

    Raises:
        UserError: a setting is out of range, or no isolation backend works here.
    """

    argument = "code"
    description = "Runs a Python program and returns what it prints."

    def __init__(
        self,
        timeout_s: float = 6.0,
        memory_mb: int = 1024,
        isolation: Literal["auto", "bubblewrap", "landlock", "unsafe"] = "auto",
        max_characters: int = 2000,
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise UserError("PythonTool.timeout_s", f"is {timeout_s}; it must be a number of seconds above 0")
        for name, value, least in (("memory_mb", memory_mb, 16), ("max_characters", max_characters, 1)):
            if value < least:
                raise UserError(f"PythonTool.{name}", f"is {value}; it must be at least {least}")
        self.limits, self.max_characters = Limits(timeout_s, memory_mb), max_characters
        self.chosen = choose(isolation)
        self.max_concurrent = os.cpu_count() or 1

    def call(self, text: str) -> str:
        """Return the output of a program (the last fenced block, or the whole text), and its error if it fails.

        Raises:
            InfrastructureError: the sandbox failed, or got too little of the CPU.
        """
        fenced = _FENCE.findall(text)
        with Sandbox(self.chosen.kind, self.chosen.python, fenced[-1] if fenced else text, self.limits) as box:
            outcome = box.run({"stdin": True, "input": ""})
        return self._shown(outcome)

    def _shown(self, outcome: Outcome) -> str:
        failed = outcome.end is not End.FINISHED
        error = f"[{outcome.end}] {outcome.detail}".strip() if failed else ""
        text = outcome.stdout.strip()
        if len(text) > self.max_characters:
            text = f"{text[: self.max_characters]}\n[{len(text) - self.max_characters} more characters]"
        return "\n".join(part for part in (text, error) if part)
