"""Tools that a policy can call in the middle of a response."""

from __future__ import annotations

import inspect
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.math.calculator import calculate
from gspo_lightning.rewards.sandbox import End, Limits, Outcome, Sandbox, choose
from gspo_lightning.rollouts.environments.environment import result_of
from gspo_lightning.rollouts.environments.tool_schema import Arguments, takes_text

_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


class ToolError(Exception):
    """Wrong use of a tool; the policy reads the message and continues."""


class Tool(ABC):
    """Base class of tools. Defining a subclass registers it under its name.

    A ``call`` with one text gets what the policy wrote, whatever name it gave the argument. Any other ``call`` declares
    its arguments by annotations and gets them by name, checked; wrong ones are answered without a call. Exceptions of
    :meth:`call` other than :class:`ToolError` count as infrastructure failures.

    The docstring of :meth:`call` is for the policy: its first line, and what ``Args`` says of each argument.
    """

    argument: ClassVar[str] = "input"
    """Name of the argument of a tool that takes one text, as the policy writes it."""
    description: ClassVar[str] = ""
    """Description for the policy, one sentence; empty takes the first line of the docstring of :meth:`call`."""
    max_concurrent: int = 64
    """Maximum number of conversations that may use the tool at the same time."""

    @abstractmethod
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a call with a text (or a value that becomes JSON); plain or ``async``.

        Raises:
            ToolError: an argument is wrong.
        """

    @cached_property
    def takes_text(self) -> bool:
        """True if :meth:`call` takes one text."""
        return takes_text(type(self).call)

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments; override it where they are known only at run time (then ``call(**kwargs)``)."""
        if self.takes_text:
            return {"type": "object", "properties": {self.argument: {"type": "string"}}, "required": [self.argument]}
        return self._arguments.schema

    def schema(self, name: str) -> dict[str, Any]:
        """Return the JSON schema of the tool in OpenAI's shape, which chat templates take."""
        description = self.description or (inspect.getdoc(type(self).call) or "").partition("\n")[0]
        return {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": self.parameters},
        }

    async def answer(self, arguments: Mapping[str, Any]) -> str:
        """Return the answer to a call with these arguments.

        Raises:
            ToolError: the arguments do not fit the schema, or the tool raised it.
        """
        if self.takes_text:
            if self.argument not in arguments and len(arguments) != 1:
                raise ToolError(f"the only argument is {self.argument}")
            value = arguments.get(self.argument, next(iter(arguments.values()), ""))
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            return _text(await result_of(self.call, text))
        if type(self).parameters is not Tool.parameters:
            return _text(await result_of(partial(self.call, **arguments)))
        try:
            values = self._arguments.read(arguments)
        except ValueError as error:
            raise ToolError(str(error)) from error
        return _text(await result_of(partial(self.call, **values)))

    def close(self) -> None:  # noqa: B027 (most tools hold nothing)
        """Release what the tool holds, such as a connection; called at the end of a run, after which it may be used."""

    @cached_property
    def _arguments(self) -> Arguments:
        return Arguments(type(self).call, type(self).__name__)


def _text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


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
        self.limits = Limits(timeout_s, memory_mb)
        self.max_characters = max_characters
        self.chosen = choose(isolation)
        self.max_concurrent = os.cpu_count() or 1

    def call(self, text: str) -> str:
        """Return the output of a program (the last fenced block, or the whole text), and its error if it fails.

        Raises:
            InfrastructureError: the sandbox failed, or got too little of the CPU.
        """
        fenced = _FENCE.findall(text)
        program = fenced[-1] if fenced else text
        with Sandbox(self.chosen.kind, self.chosen.python, program, self.limits) as box:
            outcome = box.run({"stdin": True, "input": ""})
        return self._shown(outcome)

    def _shown(self, outcome: Outcome) -> str:
        failed = outcome.end is not End.FINISHED
        error = f"[{outcome.end}] {outcome.detail}".strip() if failed else ""
        text = outcome.stdout.strip()
        if len(text) > self.max_characters:
            text = f"{text[: self.max_characters]}\n[{len(text) - self.max_characters} more characters]"
        return "\n".join(part for part in (text, error) if part)
