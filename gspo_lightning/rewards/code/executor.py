"""Code reward: run programs against tests in a sandbox and compare the results outside."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from typing import Literal

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.thinking import UNFINISHED
from gspo_lightning.rewards.code.answer import BadAnswerError, Task, read_answer
from gspo_lightning.rewards.code.extract import LANGUAGES, marked_language, other_language, program_of
from gspo_lightning.rewards.code.judging import WRONG, Judge
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.sandbox import End, Limits, choose, with_packages
from gspo_lightning.rewards.sandbox.cpp import COMPILING, missing
from gspo_lightning.rewards.types import Score, ScoreStatus

log = logging.getLogger(__name__)


class CodeExecutor(Reward):
    """The share of tests that the program in a completion passes, or 1 for all of them; run in a sandbox.

    The program is the last fenced Python block after the thinking, or the completion itself. ``answer`` holds::

        {"type": "stdin",  "tests": [{"input": "1 2", "output": "3"}]}
        {"type": "call",   "tests": [{"input": [1, 2], "output": 3}], "entry_point": "add"}
        {"type": "assert", "tests": ["assert add(1, 2) == 3"], "entry_point": "add"}

    ``answer`` may also set ``timeout_s``, which overrides this reward's, and ``comparison`` or ``checker``, the rule
    for a correct result (docs/rewards.md). It may be JSON text. The shapes of APPS, TACO, MBPP, HumanEval, EvalPlus,
    LiveCodeBench, CodeContests and Open-R1's Codeforces are understood. Expected results never enter the program's
    sandbox.

    Args:
        scoring: ``fraction`` of the tests, or ``all_or_nothing``, which stops at the first failure.
        timeout_s: CPU seconds for one test, unless the record sets it; LiveCodeBench's is 6.
        total_timeout_s: CPU seconds for all tests of one program; tests that are not reached count as failed.
        memory_mb: MiB that a program may use.
        isolation: determined by a trial when this is built: ``auto`` takes bubblewrap, else Landlock, and refuses to
            start without either; the name of one takes that. ``unsafe`` runs programs with this user's permissions, and
            is refused to root.
        packages: names of packages that programs and tests may import besides the standard library, such as
            ``[numpy]``; they must be installed for the interpreter of the sandbox. EvalPlus' tests need numpy.

        language: of the programs, where the record has no ``language``; ``cpp`` is C++20 by g++, for stdin tests;
            ``marked`` takes the language that each completion marks, or Python without a mark.

    Raises:
        UserError: a setting out of its range, no isolation that works here, or ``cpp`` without a compiler.
    """

    finds_answers = True
    no_answer = "(no_program|wrong_language|syntax_error).*"

    def __init__(
        self,
        scoring: Literal["fraction", "all_or_nothing"] = "fraction",
        timeout_s: float = 6.0,
        total_timeout_s: float = 60.0,
        memory_mb: int = 1024,
        isolation: Literal["auto", "bubblewrap", "landlock", "unsafe"] = "auto",
        packages: Sequence[str] = (),
        language: Literal["python", "cpp", "marked"] = "python",
    ) -> None:
        if scoring not in ("fraction", "all_or_nothing"):
            raise UserError("CodeExecutor.scoring", f"is {scoring!r}; it must be fraction or all_or_nothing")
        for name, seconds in (("timeout_s", timeout_s), ("total_timeout_s", total_timeout_s)):
            if not 0 < seconds < math.inf:
                raise UserError(f"CodeExecutor.{name}", f"is {seconds}; it must be a number of seconds above 0")
        if language not in (*LANGUAGES, "marked"):
            raise UserError("CodeExecutor.language", f"is {language!r}; it must be {', '.join(LANGUAGES)} or marked")
        if memory_mb < 16:
            raise UserError("CodeExecutor.memory_mb", f"is {memory_mb}; it must be at least 16")
        self.scoring = scoring
        self.timeout_s = timeout_s
        self.total_timeout_s = total_timeout_s
        self.memory_mb = memory_mb
        self.isolation = isolation
        slowest = Limits(max(timeout_s, total_timeout_s))
        self.packages = tuple(packages)
        self.chosen = with_packages(choose(isolation), self.packages)
        log.info("programs run in %s with %s", self.chosen.kind, self.chosen.python.executable)
        self.language = language
        reason = missing(self.chosen) if language == "cpp" else ""
        if reason:
            raise UserError("CodeExecutor.language", f"is cpp, but {reason}")
        self.deadline_s = (
            2 * COMPILING.patience_s + 2 * slowest.patience_s + 4 * slowest.wall_s
        )  # its own limits come first

    def score(self, completion: str, answer: object, unfinished_thought: bool = False) -> Score:
        """Run the tests; ``detail`` holds the kind of the first failure.

        Raises:
            InfrastructureError: the sandbox failed, or got too little of the CPU.
        """
        try:
            task = read_answer(answer)
        except BadAnswerError as error:
            return Score.missing(str(error))
        language = task.language or (marked_language(completion) if self.language == "marked" else self.language)
        if reason := self._not_in(language, task):
            return Score.missing(reason)
        program = program_of(completion, task.names, language, unfinished_thought)
        if program is None:
            return Score.model_error(f"no_program: {UNFINISHED}")
        if not program.strip():
            return Score.model_error("no_program")
        if other := other_language(completion, language):
            return Score.model_error(f"wrong_language: the program is marked {other}, not {language}")
        limits = Limits(min(task.timeout_s or self.timeout_s, self.total_timeout_s), self.memory_mb)
        try:
            with Judge(self.chosen, task.program(program), task, limits, language) as judge:
                kinds = self._run(judge, task)
                if judge.missed_changes:  # they must pass with what the program changes in its arguments, too
                    judge.see_changes()
                    pairs = itertools.zip_longest(kinds, self._run(judge, task), fillvalue=End.TIMEOUT)
                    kinds = [first or second for first, second in pairs]
        except BadAnswerError as error:
            return Score.missing(str(error))
        return self._verdict(kinds, len(task.cases))

    def _not_in(self, language: str, task: Task) -> str:
        """Return why a program in this language cannot be tested here; empty if it can."""
        if language != "cpp":
            return ""
        if task.kind != "stdin":
            return f"{task.kind} tests are for Python programs; a C++ program needs stdin tests"
        return missing(self.chosen)

    def _run(self, judge: Judge, task: Task) -> list[str]:
        """Return one entry per test run: empty if it passed, else the kind of its failure."""
        kinds: list[str] = []
        for case in task.cases:
            if judge.spent_s >= self.total_timeout_s:
                kinds.append(End.TIMEOUT)
                break
            kinds.append(judge.test(case))
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
        if reward > 0 or kind == WRONG:
            return Score(reward, detail=detail)
        return Score(0.0, ScoreStatus.TIMEOUT if kind == End.TIMEOUT else ScoreStatus.MODEL_ERROR, detail)
