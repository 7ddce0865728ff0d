"""Evaluation run: collect answers, grade them, compute metrics. An interrupted run resumes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gspo_lightning.commands.evaluate.answers import Answers
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say, visible
from gspo_lightning.core.registry import installed_version, parameters
from gspo_lightning.core.tolerance import is_right
from gspo_lightning.resume.writer import sole_writer
from gspo_lightning.rewards import RewardRunner
from gspo_lightning.training.suites.contests import check_contests, contest_rating
from gspo_lightning.training.suites.judging import judge
from gspo_lightning.training.suites.metrics import (
    RESULTS,
    Found,
    Graded,
    as_json,
    measure,
    read_results,
    torn,
    write_results,
)
from gspo_lightning.training.suites.problems import Problem, data_file, read_problems
from gspo_lightning.training.suites.suite import Suite, load_suite
from gspo_lightning.training.suites.verdicts import VerdictFile, read_verdicts

log = logging.getLogger(__name__)
SAMPLES = "samples.jsonl"
_UNCHANGED = {"suites": "suites", "hashes": "problems or rewards", "sampling": "sampling", "answers": "answers"}
"""Key of ``run`` -> its name in messages; these must be unchanged when an evaluation resumes."""
_VERSIONS = ("gspo_lightning", "torch", "transformers", "math-verify")


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of one evaluation, from the command line."""

    suites: tuple[str, ...]
    output: Path
    data: Path | None = None
    workers: int | None = None
    samples: int | None = None
    """Answers per problem; None takes the suite's number."""
    limit: int | None = None
    """Number of problems to evaluate, from the first; None evaluates all."""
    max_response_tokens: int | None = None
    """Maximum tokens of a response; None takes the suite's number."""


@dataclass(frozen=True, slots=True)
class Task:
    """Suite with its problems."""

    suite: Suite
    window: str
    problems: Sequence[Problem]

    def fingerprint(self) -> str:
        """Hash everything that a score depends on: the questions, the records, the reward's settings.

        It does not depend on the machine: a reward that keeps its constructor arguments is described by them alone.
        """
        reward = [type(self.suite.reward).__qualname__, sorted(self._options().items())]
        digest = hashlib.sha256(json.dumps([self.suite.name, self.window, reward]).encode())
        for problem in self.problems:
            digest.update(json.dumps([problem.id, problem.prompt, problem.columns], default=repr).encode())
        return digest.hexdigest()

    def reward(self) -> dict[str, Any]:
        """Return the class of the reward and a hash of each option; the values themselves may be private."""
        hashes = {name: hashlib.sha256(value.encode()).hexdigest()[:16] for name, value in self._options().items()}
        return {"class": type(self.suite.reward).__qualname__, "options": hashes}

    def _options(self) -> dict[str, str]:
        judge = self.suite.reward
        names = [parameter.name for parameter in parameters(type(judge))]
        kept = names if all(hasattr(judge, name) for name in names) else vars(judge)
        return {name: repr(getattr(judge, name)) for name in kept}


def evaluate(plan: Plan, source: Callable[[VerdictFile], Answers]) -> dict[str, Any]:
    """Grade the answers that have no score yet, compute all metrics, and write ``results.json``.

    Args:
        plan: suites, output folder and limits.
        source: builds the source of answers; takes the file of answers already graded.

    Raises:
        UserError: the output holds another evaluation, or a suite, a record or an answer is wrong.
        InfrastructureError: too many answers could not be graded.
    """
    tasks = [_task(name, plan) for name in plan.suites]
    names = [task.suite.name for task in tasks]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise UserError("--suite", f"{', '.join(sorted(repeated))} is given twice")
    with sole_writer(plan.output, "--output"), contextlib.closing(_runner(tasks[0], plan.workers)) as first:
        return _evaluate(plan, tasks, source, first)


def _evaluate(
    plan: Plan, tasks: Sequence[Task], source: Callable[[VerdictFile], Answers], first: RewardRunner
) -> dict[str, Any]:
    """Run an evaluation; ``first`` grades the answers to the first suite, and its workers start before sampling."""
    file = VerdictFile(plan.output / SAMPLES)
    unread = {tasks[0].suite.name: _unreadable(tasks[0], first)}
    for task in tasks[1:]:  # one worker each, and not for long: those of all suites at once would be too many
        with contextlib.closing(_runner(task, 1)) as runner:
            unread[task.suite.name] = _unreadable(task, runner)
    answers = source(file)
    run = _described(plan, tasks, answers)
    _begin(plan.output, run, tasks)
    with contextlib.closing(answers), file:
        if file.done:
            say(f"{plan.output / SAMPLES}: continues after {len(file.done):,} verdicts")
        for task in tasks:
            runner = first if task is tasks[0] else _runner(task, plan.workers)
            _judge(task, runner, answers, file, several=len(tasks) > 1)
    graded = _read(plan.output / SAMPLES)
    results: dict[str, Any] = {"run": run}
    for task in tasks:
        name = task.suite.name
        metrics, count_notes = _count(plan, task, graded[name])
        results[name] = as_json(metrics)
        notes = [*run["recovered"], *count_notes]
        run["notes"][name] = [*unread[name], *notes]
        for note in notes:  # those of unread answers were logged before sampling
            log.warning("%s: %s", name, note)
    write_results(plan.output, results)
    return results


def _task(name: str, plan: Plan) -> Task:
    suite_name, colon, window = name.partition(":")
    if colon and not window:
        raise UserError("--suite", f"{name!r} ends in a colon", fix="write NAME:WINDOW")
    suite = load_suite(suite_name)
    if plan.samples is not None:
        suite = replace(suite, samples=plan.samples)
    if plan.max_response_tokens is not None:
        suite = replace(suite, sampling=replace(suite.sampling, max_response_tokens=plan.max_response_tokens))
    task = Task(suite, window, read_problems(suite, plan.data, window)[: plan.limit])
    if "rating" in suite.metrics:
        check_contests(task.problems, _contests(plan, suite))
    return task


def _runner(task: Task, workers: int | None) -> RewardRunner:
    """Return the scorer of a suite; its workers start when they are first needed."""
    return RewardRunner({"answer": task.suite.reward}, num_workers=workers)


def _unreadable(task: Task, runner: RewardRunner) -> list[str]:
    """Return warnings about problems whose reference answer cannot be parsed; logged before sampling."""
    if not task.suite.reward.reads_answers:
        return []
    records = [({**problem.columns, "id": problem.id}, problem.prompt) for problem in task.problems]
    warnings = list(runner.unreadable(records).values())
    for warning in warnings:
        log.warning("%s: %s", task.suite.name, warning)
    return warnings


def _contests(plan: Plan, suite: Suite) -> Path:
    """Return the folder of contests that a rating needs."""
    if plan.data is None:
        raise UserError("--data", "is needed for a rating", fix="a folder with contests/<id>/standings.json")
    return data_file(suite, plan.data).parent / "contests"


def _described(plan: Plan, tasks: Sequence[Task], answers: Answers) -> dict[str, Any]:
    """Return ``run`` of the results: the suites, sampling and rewards, the source of answers, and package versions."""
    described = dict(answers.described())
    sampling: dict[str, Any] = {}
    suites: dict[str, Any] = {}
    for task in tasks:
        suite = task.suite
        sampling[suite.name] = None  # of recorded answers it is unknown
        if not answers.recorded:
            sampling[suite.name] = {"samples": suite.samples, **asdict(suite.sampling)}
        suites[suite.name] = {
            "problems": len(task.problems),
            "window": task.window or None,
            "data": suite.data if plan.data is None and isinstance(suite.data, str) else None,
        }
    return {
        "answers": described,
        "revision": described.get("revision"),
        "data": None if plan.data is None else str(plan.data),
        "sampling": sampling,
        "hashes": {task.suite.name: task.fingerprint() for task in tasks},
        "rewards": {task.suite.name: task.reward() for task in tasks},
        "suites": suites,
        "versions": {name: installed_version(name) for name in _VERSIONS},
        "recovered": [],
        "notes": {},
    }


def _begin(output: Path, run: dict[str, Any], tasks: Sequence[Task]) -> None:
    """Start a new evaluation in the folder, or check that the one it holds is the same."""
    if not (output / RESULTS).exists():
        if (output / SAMPLES).exists():
            raise UserError("--output", f"{output} holds answers and no {RESULTS}", fix="name another folder")
        write_results(output, {"run": run})
        return
    if torn(output):
        run["recovered"] = _recovered(output, tasks)
        write_results(output, {"run": run})
        return
    before = read_results(output)["run"]
    for key, name in _UNCHANGED.items():
        if _without_places(before.get(key)) != _without_places(run[key]):
            raise _another(output, name)
    run["recovered"] = before.get("recovered", [])


def _recovered(output: Path, tasks: Sequence[Task]) -> list[str]:
    """Return notes on scores whose ``results.json`` was cut off, after checking their prompts and records.

    Raises:
        UserError: the prompts or records are different ones.
    """
    problems = {(task.suite.name, problem.id): problem for task in tasks for problem in task.problems}
    if not (output / SAMPLES).exists():
        return []
    count = 0
    for verdict in read_verdicts(output / SAMPLES, torn=True):
        count += 1
        problem = problems.get((verdict.suite, verdict.id))
        if problem is None or problem.sha256 != verdict.prompt_sha256:
            raise _another(output, _UNCHANGED["hashes"])
        if verdict.record_sha256 not in ("", problem.record_sha256):  # older versions did not write it
            raise _another(output, _UNCHANGED["hashes"])
    if not count:
        return []
    return [
        f"{RESULTS} was empty or cut off. {count:,} verdicts are on these problems and were kept; that their model, "
        "sampling and reward options are these is not known"
    ]


def _another(output: Path, what: str) -> UserError:
    problem = f"{output} contains a different evaluation: its {what} differ"
    return UserError("--output", problem, fix="name another folder")


def _without_places(described: Any) -> Any:
    """Drop paths from a description: a file of answers may move, but its content must not change."""
    if not isinstance(described, dict):
        return described
    return {name: value for name, value in described.items() if name != "completions"}


def _judge(task: Task, runner: RewardRunner, answers: Answers, file: VerdictFile, *, several: bool) -> None:
    """Get the answers to a suite that have no verdict yet, grade them, and add the verdicts to the file."""
    suite = task.suite
    problems = {problem.id: problem for problem in task.problems}
    missing = []
    for problem in task.problems:
        samples = [k for k in range(suite.samples) if (suite.name, problem.id, k) not in file.done]
        missing.append((problem, samples))
    total = None if answers.recorded else sum(len(samples) for _, samples in missing)
    if total == 0:
        return
    with runner, tqdm(desc=visible(suite.name), unit=" answers", total=total) as bar:
        earlier = (v for v in read_verdicts(file.path) if v.suite == suite.name and v.id in problems)
        for verdicts in judge(suite, problems, answers.answer(suite, missing, several=several), runner, earlier):
            file.add(verdicts)
            bar.update(len(verdicts))


def _read(path: Path) -> dict[str, dict[str, list[Graded]]]:
    """Return suite -> id -> graded answers; answers without a score do not count, but their problem is listed."""
    graded: dict[str, dict[str, list[Graded]]] = defaultdict(lambda: defaultdict(list))
    for verdict in read_verdicts(path):
        answers = graded[verdict.suite][verdict.id]
        if verdict.value is not None:
            answers.append(Graded.of(verdict))
    return graded


def _count(plan: Plan, task: Task, graded: Mapping[str, Sequence[Graded]]) -> tuple[dict[str, Found], list[str]]:
    """Return the metrics of a suite, and notes on what they do not count."""
    metrics = measure(task.suite, task.problems, graded)
    counts = [len(graded[p.id]) for p in task.problems if graded.get(p.id)]
    least = min(counts)
    most = max(counts)
    notes = []
    if len(counts) < len(task.problems):
        missing = len(task.problems) - len(counts)
        notes.append(f"{missing} of {len(task.problems)} problems have no verdict: not counted")
    if least < most:
        notes.append(f"{least} to {most} answers a problem: avg@ takes all, pass@ and maj@ k = {least}")
    if "rating" in task.suite.metrics:
        accepted = {}
        for identifier, answers in graded.items():
            if answers:
                accepted[identifier] = (sum(is_right(answer.value) for answer in answers), len(answers))
        estimate, contest_notes = contest_rating(task.problems, accepted, _contests(plan, task.suite))
        metrics["rating"] = Found(estimate)
        notes += contest_notes
    return metrics, notes
