"""Test runs of one program in its sandboxes, and the verdict on each result."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.rewards.code.answer import BadAnswerError, Case, Task
from gspo_lightning.rewards.code.asserts import UnsupportedTestError
from gspo_lightning.rewards.code.compare import INCOMPARABLE
from gspo_lightning.rewards.code.scripts import script_of
from gspo_lightning.rewards.sandbox import End, Isolation, Limits, Outcome, Sandbox
from gspo_lightning.rewards.sandbox.cpp import compiled
from gspo_lightning.rewards.sandbox.examination import Script, Verdict, examine
from gspo_lightning.rewards.sandbox.inside.decode import Named
from gspo_lightning.rewards.sandbox.process import Opaque

WRONG = "wrong_answer"
_NAMES = (
    "from math import inf, nan\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
    "from collections import Counter, OrderedDict, deque\nimport datetime"
)
"""Imports for evaluating the written form of results."""
_CHECKER_FILE_MB = 64
_RIGHT = ("1", "true", "ok", "yes", "ac", "accepted", "correct")
_WRONG_WORDS = ("0", "false", "no", "wa", "wrong")


class Judge:
    """A runner of a task's tests on one program; a sandbox that fails is replaced, once.

    Asserts and calls share a process of the program, in their order. If that has to be replaced for another reason than
    a test that ended it, the new one runs the tests of the old one again, so that it has the same past.

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
        self._isolation = isolation
        self._program = program
        self._task = task
        self._limits = limits
        self._language = language
        self._sandbox: Sandbox | None = None
        self._channel: socket.socket | None = None
        self._has_scripts = any(case.script is not None for case in task.cases)
        self._returns_objects = False
        self._past: list[dict[str, Any] | Script] = []
        self._conditions: Sandbox | None = None
        self._retried = False
        self._open = ExitStack()
        self._open_conditions = ExitStack()
        self._changes = False
        self.spent_s = 0.0
        self.missed_changes = False
        """True if a script passed that did not see what the program changed in its arguments."""

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
        script = case.script or (self._as_script(case) if self._returns_objects else None)
        if script is not None:
            return self._script(script)
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

    def see_changes(self) -> None:
        """Begin with the first test again; from now on scripts see what the program changes in its arguments."""
        self._close_box()
        self._past = []
        self._changes = True
        self.spent_s = 0.0

    def _outcome(self, case: Case) -> Outcome:
        """Run a test; repeat it once in a fresh sandbox if the sandbox failed or the program slept."""
        past = self._past
        try:
            outcome = self._run(case.frame)
            if not outcome.asleep:
                return outcome
        except InfrastructureError:
            if self._retried:
                raise
            self._retried = True
        self._begin_again(past)
        return self._run(case.frame)

    def _run(self, frame: dict[str, Any]) -> Outcome:
        outcome = self._box().run({**frame, "shares": "stdin" not in frame})
        self._past = [*self._past, frame] if outcome.alive else []
        return outcome

    def _begin_again(self, past: Sequence[dict[str, Any] | Script]) -> None:
        """Replace the sandbox, and run in the new one what the process had run."""
        self._close_box()
        self._past = []
        for earlier in past:
            if isinstance(earlier, Script):
                self._examine(earlier)
            else:
                self._count(self._run(earlier))

    def _close_box(self) -> None:
        self._open.close()
        self._sandbox = self._channel = None

    def _box(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = self._open.enter_context(self._program_box())
        return self._sandbox

    def _program_box(self) -> Sandbox:
        if self._has_scripts:
            program_end, own_end = socket.socketpair()
            self._channel = self._open.enter_context(own_end)
            with program_end:
                return Sandbox(
                    self._isolation.kind, self._isolation.python, self._program, self._limits,
                    preamble=self._task.preamble, channel=program_end.fileno(), role="serve",
                )  # fmt: skip
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
        source = self._task.checker
        text = case.frame["input"]
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
        assertion = case.assertion
        results = outcome.value
        assert assertion is not None
        if not isinstance(results, tuple) or len(results) != assertion.results:
            return WRONG
        if assertion.literal:
            return "" if _equal(results[0], assertion.expected) else WRONG
        if any(_has_object(value) for value in results):
            return self._script_instead(case)
        names = ", ".join(f"_{i}" for i in range(len(results)))
        try:
            values = ", ".join(map(repr, results))
        except (ValueError, RecursionError):  # numbers of too many digits, values nested too deep
            return WRONG
        condition = f"bool((lambda {names}: {assertion.condition})({values}))"
        if self._conditions is None:
            self._conditions = self._open_conditions.enter_context(self._new(_NAMES, self._limits))
        verdict = self._conditions.run({"expression": condition, "setup": [("", assertion.condition_setup)]})
        return "" if verdict.end is End.FINISHED and verdict.value is True else WRONG

    def _as_script(self, case: Case) -> Script | None:
        """Return an assertion as a script; None if it compares with a literal only, or cannot be one."""
        if case.assertion is None or case.assertion.literal:
            return None
        try:
            return script_of(case.assertion.source, prefix=self._task.prefix)
        except UnsupportedTestError:
            return None

    def _script_instead(self, case: Case) -> str:
        """Run an assertion on an object of the program as a script, in a process whose past is without it."""
        script = self._as_script(case)
        if script is None:
            raise BadAnswerError("a test looks at an object of the program, and cannot run beside it")
        self._has_scripts = self._returns_objects = True
        self._begin_again(self._past[:-1])
        return self._script(script)

    def _script(self, script: Script) -> str:
        past = self._past
        verdict = self._examine(script)
        if verdict.outcome.asleep:
            self._begin_again(past)
            verdict = self._examine(script)
        self.missed_changes |= verdict.passed and verdict.changed
        if verdict.broken:
            raise BadAnswerError(f"the test fails by itself: {verdict.broken}")
        if verdict.outcome.end is not End.FINISHED:
            return verdict.outcome.end
        return "" if verdict.passed else WRONG

    def _examine(self, script: Script) -> Verdict:
        box = self._box()
        assert self._channel is not None
        verdict = examine(self._isolation, box, self._channel, script, self._limits, changes=self._changes)
        self._count(verdict.outcome)
        self.spent_s += verdict.cpu_s
        if verdict.outcome.alive:
            self._past = [*self._past, script]
        else:
            self._close_box()
            self._past = []
        return verdict


def _verdict(answer: object) -> bool | None:
    """Read a checker's verdict: a truth value or 0 or 1, returned or printed as the last word."""
    if isinstance(answer, bool):
        return answer
    if not isinstance(answer, int | float | str):
        return None
    word = str(answer).lower().strip(".").removesuffix(".0")
    if word in _RIGHT:
        return True
    return False if word in _WRONG_WORDS else None


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
