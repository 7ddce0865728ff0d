"""The tests of a record: read and check its ``answer``."""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from gspo_lightning.core.parsing import allow_long_integers, load_json
from gspo_lightning.rewards.code.asserts import Assertion, UnsupportedTestError, parse, read_python
from gspo_lightning.rewards.code.compare import Comparison, Rule
from gspo_lightning.rewards.code.extract import LANGUAGES
from gspo_lightning.rewards.code.scripts import script_of
from gspo_lightning.rewards.code.shapes import plain_shape
from gspo_lightning.rewards.sandbox.examination import Script

_INTERACTIVE = ("interactive", "interaction_format", "interactor")
_TAGS = ("tags", "raw_tags", "cf_tags")
_CODECONTESTS = Comparison("tolerance", 1e-5, relative=False, any_case=True)


class BadAnswerError(ValueError):
    """A record whose answer cannot be used to test any program."""


@dataclass(frozen=True, slots=True)
class Case:
    """A single test: the frame sent to the sandbox, and the expected values, which stay outside.

    ``expected`` holds every correct value; ``assertion`` is set for the assert kind, ``script`` for a test that has to
    run unchanged.
    """

    frame: dict[str, Any]
    expected: tuple[Any, ...] = ()
    assertion: Assertion | None = None
    script: Script | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """The tests of a record; ``prefix`` precedes the program (HumanEval), ``timeout_s`` is CPU time.

    ``checker`` is a program that judges printed text in place of ``comparison``; ``preamble`` puts LiveCodeBench's
    imports in front of the program. ``names`` are those that a program must define; ``language`` is the required
    language, or empty.
    """

    kind: str
    cases: tuple[Case, ...]
    timeout_s: float | None = None
    prefix: str = ""
    comparison: Comparison = field(default_factory=Comparison)
    checker: str = ""
    preamble: bool = False
    names: tuple[str, ...] = ()
    language: str = ""

    def program(self, text: str) -> str:
        """Prepend the prefix, without its last stub of a function that the program defines itself."""
        for name in self.names:
            definition = re.compile(rf"^(?:async[ ]+)?def[ ]+{re.escape(name)}\b", re.MULTILINE)
            stubs = list(definition.finditer(self.prefix))
            if stubs and definition.search(text):
                return self.prefix[: stubs[-1].start()] + text
        return self.prefix + text


def read_answer(answer: Any) -> Task:
    """Read the tests of an answer, in this package's format or in a known data set's.

    Raises:
        BadAnswerError: the answer cannot be read; the message says why.
    """
    allow_long_integers()
    if isinstance(answer, str):
        try:
            answer = load_json(answer)
        except ValueError as error:
            raise BadAnswerError(f"the answer is not JSON: {error}") from error
    if not isinstance(answer, Mapping):
        raise BadAnswerError(f"the answer is a {type(answer).__name__}, not an object with tests")
    _refuse_interactive(answer)
    try:
        answer = plain_shape(answer)
    except (UnsupportedTestError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadAnswerError(f"the tests cannot be read: {error}") from error
    kind = answer.get("type")
    tests = answer.get("tests")
    if kind not in ("stdin", "call", "assert"):
        raise BadAnswerError(f"the test kind {kind!r} is unknown; it must be stdin, call or assert")
    if not isinstance(tests, list) or not tests:
        raise BadAnswerError("the answer has no tests")
    timeout = answer.get("timeout_s")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise BadAnswerError(f"timeout_s is {timeout!r}; it must be a number of seconds above 0")
    entry = answer.get("entry_point")
    if entry is not None and not isinstance(entry, str):
        raise BadAnswerError("entry_point must be a name")
    if kind == "call" and not entry:
        raise BadAnswerError("call tests need an entry_point")
    language = answer.get("language") or ""
    if language not in ("", *LANGUAGES):
        raise BadAnswerError(f"language is {language!r}; it must be {' or '.join(LANGUAGES)}")
    comparison = _comparison(answer)
    checker = answer.get("checker") or ""
    if not isinstance(checker, str) or (checker and kind != "stdin"):
        raise BadAnswerError("checker must be the text of a Python program, and goes with stdin tests")
    cases = _all_cases(kind, tests, answer)
    prefix = str(answer.get("prefix") or "")
    preamble = bool(answer.get("preamble"))
    return Task(kind, cases, timeout, prefix, comparison, checker, preamble, _names(entry, cases[0]), language)


def _names(entry: str | None, case: Case) -> tuple[str, ...]:
    """Return the names a program must define: the function under test, or those that the first test uses."""
    if entry:
        return (entry.rpartition(".")[2],)
    if case.script is not None:
        return tuple(case.script.names.values())
    return tuple(re.findall(r"^\((\w+)\(", case.frame.get("expression", "")))


def _all_cases(kind: str, tests: list[Any], answer: Mapping[str, Any]) -> tuple[Case, ...]:
    """Return the cases of all tests.

    Raises:
        BadAnswerError: a test cannot be read, or no test checks the program.
    """
    scripts = answer.get("scripts") or tests
    cases: list[Case] = []
    for number, test in enumerate(tests, start=1):
        try:
            cases += _cases(kind, test, answer, scripts[number - 1], number)
        except (UnsupportedTestError, KeyError, TypeError) as error:
            problem = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise BadAnswerError(f"test {number} of {len(tests)}: {problem}") from error
    if not cases:
        raise BadAnswerError("no test says anything about the program")
    return tuple(cases)


def _cases(kind: str, test: Any, answer: Mapping[str, Any], script: Any, number: int) -> list[Case]:
    entry = answer.get("entry_point")
    if kind == "assert":
        if not isinstance(test, str):
            raise TypeError("an assert test must be text")
        setup = str(answer.get("setup") or "")
        prefix = str(answer.get("prefix") or "")
        return _assert_cases(test, setup, entry, script, prefix, number)
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


@functools.lru_cache(maxsize=64)  # the completions of a group come one after another
def _assert_cases(test: str, setup: str, entry: str | None, script: str, prefix: str, number: int) -> list[Case]:
    """Return the cases of the record's test ``number``: assertions that share a process, or one script."""
    try:
        assertions = parse(test, setup, entry)
        common = sum(not isinstance(statement, ast.Assert) for statement in read_python(setup))
    except UnsupportedTestError:
        return [Case({}, script=script_of(script, setup, entry, prefix))]
    cases: list[Case] = []
    for assertion in assertions:
        # a statement of the record's set-up is the same for all of its tests, one of the test is this test's own
        steps = [(f"{0 if place < common else number}.{place}", text) for place, text in assertion.steps]
        frame = {"expression": assertion.calls, "setup": steps}
        cases.append(Case(frame, (assertion.expected,), assertion))
    return cases


def _comparison(answer: Mapping[str, Any]) -> Comparison:
    rule: Any = answer.get("comparison") or "lines"
    tolerance = answer.get("tolerance")
    if rule == "codecontests":
        return _CODECONTESTS
    if rule not in get_args(Rule):
        raise BadAnswerError(f"comparison is {rule!r}; it must be one of {', '.join(get_args(Rule))}")
    if tolerance is None:
        return Comparison(rule)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise BadAnswerError(f"tolerance is {tolerance!r}; it must be a number of at least 0")
    return Comparison(rule, tolerance)


def _refuse_interactive(answer: Mapping[str, Any]) -> None:
    """Refuse interactive problems, whose programs talk to a judge and cannot run on a file."""
    mark = next((word for word in _INTERACTIVE if answer.get(word)), None)
    for column in _TAGS:
        tags = answer.get(column) or ()
        words = re.findall(r"[\w*]+", tags) if isinstance(tags, str) else tags
        if any(str(word).strip("*").lower() == "interactive" for word in words):
            mark = column
    if mark is not None:
        raise BadAnswerError(f"the problem is interactive ({mark}), and interactive problems are not supported")
