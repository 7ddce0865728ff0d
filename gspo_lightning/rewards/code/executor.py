"""Programs: run against tests in a sandbox, compared outside of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal

from gspo_lightning.errors import InfrastructureError, UserError
from gspo_lightning.rewards.base import Reward
from gspo_lightning.rewards.code.answer import BadAnswerError, Case, Task, program_of, read_answer
from gspo_lightning.rewards.code.compare import same_output, same_value
from gspo_lightning.rewards.types import Score, ScoreStatus
from gspo_lightning.sandbox import End, Isolation, Limits, Outcome, Sandbox, choose
from gspo_lightning.sandbox.values import Opaque

__all__ = ["CodeExecutor"]

log = logging.getLogger(__name__)

_WRONG = "wrong_answer"
_OUT_OF_TIME = "not run: earlier tests used up the time"
_NAMES = "from math import inf, nan"


class CodeExecutor(Reward):
    """The share of tests that the program in a completion passes, or 1 for all of them; run in a sandbox.

    The program is the last fenced code block, or the completion itself. ``answer`` holds the tests::

        {"type": "stdin",  "tests": [{"input": "1 2", "output": "3"}]}
        {"type": "call",   "tests": [{"input": [1, 2], "output": 3}], "entry_point": "add"}
        {"type": "assert", "tests": ["assert add(1, 2) == 3"], "entry_point": "add"}

    with ``timeout_s`` if it is not this reward's; as JSON text, too; the shapes of APPS, MBPP, HumanEval and
    LiveCodeBench are understood. What is expected never enters the sandbox.

    Args:
        scoring: ``fraction`` of the tests, or ``all_or_nothing``, which stops at the first failure.
        timeout_s: CPU seconds for one test, where the record does not say; LiveCodeBench's is 6.
        total_timeout_s: CPU seconds for all tests of one program; those that are not reached count as failed.
        memory_mb: MiB that a program may use.
        isolation: found out by trying when this is built: ``auto`` takes bubblewrap, else Landlock, and refuses to
            start without either; the name of one takes that. ``unsafe`` runs programs with this user's rights, and is
            refused to root.

    Raises:
        UserError: a setting out of its range, or no isolation that works here.
    """

    def __init__(
        self,
        scoring: Literal["fraction", "all_or_nothing"] = "fraction",
        timeout_s: float = 6.0,
        total_timeout_s: float = 60.0,
        memory_mb: int = 1024,
        isolation: Literal["auto", "bubblewrap", "landlock", "unsafe"] = "auto",
    ) -> None:
        if scoring not in ("fraction", "all_or_nothing"):
            raise UserError("CodeExecutor.scoring", f"is {scoring!r}; it must be fraction or all_or_nothing")
        for name, seconds in (("timeout_s", timeout_s), ("total_timeout_s", total_timeout_s)):
            if not 0 < seconds < math.inf:
                raise UserError(f"CodeExecutor.{name}", f"is {seconds}; it must be a number of seconds above 0")
        if memory_mb < 16:
            raise UserError("CodeExecutor.memory_mb", f"is {memory_mb}; it must be at least 16")
        self.scoring, self.timeout_s, self.total_timeout_s = scoring, timeout_s, total_timeout_s
        self.memory_mb, self.isolation = memory_mb, isolation
        slowest = Limits(max(timeout_s, total_timeout_s))
        self.chosen = choose(isolation)
        log.info("programs run in %s with %s", self.chosen.kind, self.chosen.python.executable)
        self.deadline_s = 2 * slowest.patience_s + 4 * slowest.wall_s  # its own limits come first

    def score(self, completion: str, answer: object) -> Score:
        """Run the tests; the kind of the first failure is in ``detail``.

        Raises:
            InfrastructureError: the sandbox failed, or got too little of the CPU.
        """
        try:
            task = read_answer(answer)
        except BadAnswerError as error:
            return Score.missing(str(error))
        program = program_of(completion)
        if not program.strip():
            return Score.model_error("no_program")
        if task.prefix:
            program = task.prefix + program
        limits = Limits(min(task.timeout_s or self.timeout_s, self.total_timeout_s), self.memory_mb)
        with _Run(self.chosen, program, limits) as run:
            kinds = self._run(run, task)
        return self._verdict(kinds, len(task.cases))

    def _run(self, run: _Run, task: Task) -> list[str]:
        """Per test that was run: nothing if it passed, else the kind of its failure."""
        kinds: list[str] = []
        for case in task.cases:
            if run.spent_s >= self.total_timeout_s:
                kinds.append(End.TIMEOUT)
                break
            kinds.append(run.test(case))
            if kinds[-1] == End.SYNTAX_ERROR or (kinds[-1] and self.scoring == "all_or_nothing"):
                break
        return kinds

    def _verdict(self, kinds: Sequence[str], tests: int) -> Score:
        failed = [(number, kind) for number, kind in enumerate(kinds, start=1) if kind]
        passed = len(kinds) - len(failed)
        reward = passed / tests if self.scoring == "fraction" else float(passed == tests)
        if not failed:
            return Score(reward)
        number, kind = failed[0]
        detail = f"{kind} in test {number} of {tests}" + (f", {passed} passed" if passed else "")
        if reward > 0 or kind == _WRONG:
            return Score(reward, detail=detail)
        return Score(0.0, ScoreStatus.TIMEOUT if kind == End.TIMEOUT else ScoreStatus.MODEL_ERROR, detail)


class _Run:
    """One program and its sandbox, which is replaced if it fails, once."""

    def __init__(self, isolation: Isolation, program: str, limits: Limits) -> None:
        self._isolation, self._program, self._limits = isolation, program, limits
        self._sandbox: Sandbox | None = None
        self._retried = False
        self._open = ExitStack()
        self.spent_s = 0.0

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def test(self, case: Case) -> str:
        """Nothing if the program passes, else the kind of failure."""
        outcome = self._outcome(case)
        self.spent_s += max(outcome.cpu_s, self._limits.wall_s if outcome.asleep else 0.0)
        if outcome.end is not End.FINISHED:
            return outcome.end
        if "stdin" in case.frame:
            right = any(same_output(outcome.stdout, text) for text in case.expected)
        elif not outcome.returned:
            return End.RUNTIME_ERROR  # it ended before the function returned
        elif case.assertion is None:
            right = any(same_value(outcome.value, value) for value in case.expected)
        else:
            right = self._holds(case, outcome)
        return "" if right else _WRONG

    def _outcome(self, case: Case) -> Outcome:
        """A test that fails for want of a sandbox, or sleeps, is run once more in a fresh one."""
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
            chosen = self._isolation
            self._sandbox = self._open.enter_context(Sandbox(chosen.kind, chosen.python, self._program, self._limits))
        return self._sandbox

    def _holds(self, case: Case, outcome: Outcome) -> bool:
        """Whether an assertion holds of the results; what has to be computed for that runs in a sandbox of its own."""
        assertion, results = case.assertion, outcome.value
        assert assertion is not None
        if not isinstance(results, tuple) or len(results) != assertion.results:
            return False
        if assertion.literal:
            return _equal(results[0], assertion.expected)
        if any(isinstance(value, Opaque) for value in results):
            return False
        names = ", ".join(f"_{i}" for i in range(len(results)))
        try:
            values = ", ".join(map(repr, results))
        except (ValueError, RecursionError):  # numbers of too many digits, values nested too deep
            return False
        condition = f"bool((lambda {names}: {assertion.condition})({values}))"
        chosen = self._isolation
        with Sandbox(chosen.kind, chosen.python, _NAMES, self._limits) as box:
            verdict = box.run({"expression": condition, "setup": assertion.condition_setup})
        return verdict.end is End.FINISHED and verdict.value is True


def _equal(value: object, expected: object) -> bool:
    try:
        return bool(value == expected)
    except RecursionError:
        return False
