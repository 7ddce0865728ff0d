"""What the code reward is asked to test: the record's ``answer``, checked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gspo_lightning.rewards.code.asserts import Assertion, UnsupportedTestError, parse
from gspo_lightning.rewards.code.shapes import plain_shape

__all__ = ["BadAnswerError", "Case", "Task", "program_of", "read_answer"]

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n`]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


class BadAnswerError(ValueError):
    """A record that cannot be judged by; nobody's answer is."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test: the frame for the sandbox, and what is expected, which stays here.

    ``expected`` holds every value that counts as right; ``assertion`` is there for the assert kind.
    """

    frame: dict[str, Any]
    expected: tuple[Any, ...] = ()
    assertion: Assertion | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """The tests of a record; ``prefix`` is put in front of the program (HumanEval), ``timeout_s`` is CPU time."""

    kind: str
    cases: tuple[Case, ...]
    timeout_s: float | None = None
    prefix: str = ""


def program_of(completion: str) -> str:
    r"""The program: the last fenced code block, or the whole completion if there is none.

    >>> program_of("Try:\n```python\nprint(1)\n```\nor:\n```\nprint(2)\n```\n")
    'print(2)\n'
    """
    blocks = [match.group(2) for match in _FENCE.finditer(completion)]
    return blocks[-1] if blocks else completion


def read_answer(answer: Any) -> Task:
    """The tests of an answer, in this package's shape or in one of those that data sets come in.

    Raises:
        BadAnswerError: what is wrong with it.
    """
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise BadAnswerError(f"the answer is not JSON: {error}") from error
    if not isinstance(answer, Mapping):
        raise BadAnswerError(f"the answer is a {type(answer).__name__}, not an object with tests")
    try:
        answer = plain_shape(answer)
    except (UnsupportedTestError, ValueError, KeyError, TypeError) as error:
        raise BadAnswerError(f"the tests cannot be read: {error}") from error
    kind, tests = answer.get("type"), answer.get("tests")
    if kind not in ("stdin", "call", "assert"):
        raise BadAnswerError(f"the test kind {kind!r} is unknown; it must be stdin, call or assert")
    if not isinstance(tests, list) or not tests:
        raise BadAnswerError("the answer has no tests")
    timeout = answer.get("timeout_s")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise BadAnswerError(f"timeout_s is {timeout!r}; it must be a number of seconds above 0")
    entry, setup = answer.get("entry_point"), answer.get("setup", "")
    if entry is not None and not isinstance(entry, str):
        raise BadAnswerError("entry_point must be a name")
    if kind == "call" and not entry:
        raise BadAnswerError("call tests need an entry_point")
    cases: list[Case] = []
    for number, test in enumerate(tests, start=1):
        try:
            cases += _cases(kind, test, entry, setup)
        except (UnsupportedTestError, KeyError, TypeError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise BadAnswerError(f"test {number} of {len(tests)}: {what}") from error
    if not cases:
        raise BadAnswerError("no test says anything about the program")
    return Task(kind, tuple(cases), timeout, str(answer.get("prefix", "")))


def _cases(kind: str, test: Any, entry: str | None, setup: str) -> list[Case]:
    if kind == "assert":
        if not isinstance(test, str):
            raise TypeError("an assert test must be text")
        return [Case({"expression": a.calls, "setup": a.setup}, (a.expected,), a) for a in parse(test, setup, entry)]
    if not isinstance(test, Mapping):
        raise TypeError(f"a {kind} test must be an object with input and output")
    expected = tuple(test["outputs"]) if "outputs" in test else (test["output"],)
    if kind == "stdin":
        if not isinstance(test["input"], str) or not all(isinstance(text, str) for text in expected):
            raise TypeError("input and output of a stdin test must be text")
        return [Case({"stdin": True, "input": test["input"]}, expected)]
    if not isinstance(test["input"], list):
        raise TypeError("the input of a call test must be a list of arguments")
    return [Case({"entry": entry, "arguments": test["input"]}, expected)]
