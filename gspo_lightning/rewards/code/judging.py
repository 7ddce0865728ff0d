"""Test runs of one program in its sandboxes, and the verdict on each result."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from gspo_lightning.errors import InfrastructureError
from gspo_lightning.rewards.code.answer import BadAnswerError, Case, Task
from gspo_lightning.rewards.code.asserts import UnsupportedTestError
from gspo_lightning.rewards.code.compare import INCOMPARABLE
from gspo_lightning.rewards.code.scripts import script_of
from gspo_lightning.sandbox import End, Isolation, Limits, Outcome, Sandbox
from gspo_lightning.sandbox.cpp import compiled
from gspo_lightning.sandbox.examination import Script, examine
from gspo_lightning.sandbox.inside.decode import Named
from gspo_lightning.sandbox.process import Opaque

WRONG = "wrong_answer"
_NAMES = (
    "from math import inf, nan\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
    "from collections import Counter, OrderedDict, deque\nimport datetime"
)
"""Imports for evaluating the written form of results."""
_CHECKER_FILE_MB = 64
_RIGHT, _WRONG_WORDS = ("1", "true", "ok", "yes", "ac", "accepted", "correct"), ("0", "false", "no", "wa", "wrong")


class Judge:
    """A runner of a task's tests on one program; a sandbox that fails is replaced, once.

    Args:
        isolation: of the sandboxes that programs run in.
        program: source code, from a model.
        task: the tests.
        limits: for each test.
        language: of the program; C++ is compiled for the first test.
    """

    def __init__(
        self, isolation: Isolation, program: str, task: Task, limits: Limits, language: str = "python"
    ) -> None:
        self._isolation, self._program, self._task, self._limits = isolation, program, task, limits
        self._language = language
        self._sandbox: Sandbox | None = None
        self._conditions: Sandbox | None = None
        self._retried = False
        self._open, self._open_conditions = ExitStack(), ExitStack()
        self.spent_s = 0.0

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        self._open_conditions.close()

    def test(self, case: Case) -> str:
        """Run one test; return an empty text if the program passes, else the kind of failure.

        Raises:
            BadAnswerError: the test or the checker is at fault; no program could pass.
            InfrastructureError: the sandbox failed, or got too little of the CPU.
        """
        if case.script is not None:
            return self._script(case.script)
        if self._language == "cpp" and isinstance(failed := compiled(self._isolation, self._program), Outcome):
            return failed.end
        outcome = self._outcome(case)
        self._count(outcome)
        if outcome.end is not End.FINISHED:
            return outcome.end
        if "stdin" in case.frame:
            right = self._printed(case, outcome.stdout)
        elif not outcome.returned:
            return End.RUNTIME_ERROR  # it ended before the function returned
        elif case.assertion is None:
            right = any(self._task.comparison.value(outcome.value, value) for value in case.expected)
        else:
            return self._assertion(case, outcome)
        return "" if right else WRONG

    def _count(self, outcome: Outcome) -> None:
        self.spent_s += max(outcome.cpu_s, self._limits.wall_s if outcome.asleep else 0.0)

    def _outcome(self, case: Case) -> Outcome:
        """Run a test; repeat it once in a fresh sandbox if the sandbox failed or the program slept."""
        try:
            outcome = self._box().run(dict(case.frame))
            if not outcome.asleep:
                return outcome
        except InfrastructureError:
            if self._retried:
                raise
            self._retried = True
        self._open.close()
        self._sandbox = None
        return self._box().run(dict(case.frame))

    def _box(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = self._open.enter_context(self._program_box())
        return self._sandbox

    def _program_box(self) -> Sandbox:
        if self._language != "cpp":
            return self._new(self._program, self._limits, preamble=self._task.preamble)
        library = compiled(self._isolation, self._program)
        assert isinstance(library, bytes)
        return Sandbox(self._isolation.kind, self._isolation.python, "", self._limits, library=library)

    def _new(self, program: str, limits: Limits, *, preamble: bool = False) -> Sandbox:
        return Sandbox(self._isolation.kind, self._isolation.python, program, limits, preamble=preamble)

    def _printed(self, case: Case, printed: str) -> bool:
        if not self._task.checker:
            return any(self._task.comparison.output(printed, text) for text in case.expected)
        checked = [self._check(case, text, printed) for text in case.expected]
        if None not in checked:
            return any(checked)
        if any(self._check(case, text, text) is None for text in case.expected):
            raise BadAnswerError("the checker fails on the expected output, so it cannot judge")
        return any(checked)  # it runs, but not on what this program printed

    def _check(self, case: Case, expected: str, printed: str) -> bool | None:
        """Run the record's checker in a sandbox of its own; None if it gave no verdict."""
        source, text = self._task.checker, case.frame["input"]
        frame: dict[str, Any] = {"entry": "check", "arguments": [text, expected, printed]}
        if "def check(" not in source:
            files = {"input.txt": text, "correct_output.txt": expected, "solution_output.txt": printed}
            frame = {"stdin": True, "input": "", "files": files, "argv": list(files)}
        limits = Limits(max(10.0, self._limits.cpu_s), max(self._limits.memory_mb, 1024), file_mb=_CHECKER_FILE_MB)
        with self._new(source, limits) as box:
            outcome = box.run(frame)
        if outcome.end is not End.FINISHED:
            return None
        return _verdict(outcome.value if outcome.returned else (outcome.stdout.split() or [""])[-1])

    def _assertion(self, case: Case, outcome: Outcome) -> str:
        """Check an assertion on the results; computed conditions run in a sandbox of their own."""
        assertion, results = case.assertion, outcome.value
        assert assertion is not None
        if not isinstance(results, tuple) or len(results) != assertion.results:
            return WRONG
        if assertion.literal:
            return "" if _equal(results[0], assertion.expected) else WRONG
        if any(_has_object(value) for value in results):
            return self._script(self._as_script(assertion.source))
        names = ", ".join(f"_{i}" for i in range(len(results)))
        try:
            values = ", ".join(map(repr, results))
        except (ValueError, RecursionError):  # numbers of too many digits, values nested too deep
            return WRONG
        condition = f"bool((lambda {names}: {assertion.condition})({values}))"
        if self._conditions is None:
            self._conditions = self._open_conditions.enter_context(self._new(_NAMES, self._limits))
        verdict = self._conditions.run({"expression": condition, "setup": assertion.condition_setup})
        return "" if verdict.end is End.FINISHED and verdict.value is True else WRONG

    def _as_script(self, source: str) -> Script:
        try:
            return script_of(source, prefix=self._task.prefix)
        except UnsupportedTestError as error:
            raise BadAnswerError(f"a test looks at an object of the program: {error}") from error

    def _script(self, script: Script) -> str:
        verdict = examine(self._isolation, self._program, script, self._limits)
        if verdict.outcome.asleep:
            verdict = examine(self._isolation, self._program, script, self._limits)
        self._count(verdict.outcome)
        self.spent_s += verdict.cpu_s
        if verdict.broken:
            raise BadAnswerError(f"the test fails by itself: {verdict.broken}")
        if verdict.outcome.end is not End.FINISHED:
            return verdict.outcome.end
        return "" if verdict.passed else WRONG


def _verdict(said: object) -> bool | None:
    """Read a checker's verdict: a truth value or 0 or 1, returned or printed as the last word."""
    if isinstance(said, bool):
        return said
    word = str(said).lower().strip(".")
    word = word.removesuffix(".0") if isinstance(said, int | float | str) else ""
    return True if word in _RIGHT else False if word in _WRONG_WORDS else None


def _has_object(value: object) -> bool:
    """True if a value holds something that cannot be written as data."""
    if isinstance(value, Opaque | Named):
        return True
    if isinstance(value, dict):
        return any(_has_object(key) or _has_object(item) for key, item in value.items())
    return isinstance(value, list | tuple | set | frozenset) and any(map(_has_object, value))


def _equal(value: object, expected: object) -> bool:
    try:
        return bool(value == expected)
    except INCOMPARABLE:
        return False
