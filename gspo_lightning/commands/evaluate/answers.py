"""Sources of benchmark answers: the protocol, and completions recorded in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.escape import whole
from gspo_lightning.core.parsing import load_json
from gspo_lightning.core.thinking import after_thinking
from gspo_lightning.data.corpus.lines import numbered
from gspo_lightning.training.suites.problems import Problem
from gspo_lightning.training.suites.suite import Suite
from gspo_lightning.training.suites.verdicts import Answer

_FORM = 'write {"id": ..., "sample": 0, "completion": "..."}'
SampleRequests = Sequence[tuple[Problem, Sequence[int]]]
"""Every problem of the suite, with the sample numbers of its missing answers."""


class Answers(Protocol):
    """A source of answers."""

    recorded: bool
    """True if the source itself determines which answers exist."""

    def described(self) -> Mapping[str, Any]:
        """Return a description of the source for the results; an evaluation resumes only if it is unchanged."""

    def answer(self, suite: Suite, wanted: SampleRequests, *, several: bool) -> Iterator[Answer]:
        """Yield answers one by one, in any order.

        Args:
            suite: benchmark, with its sampling settings.
            wanted: missing answers.
            several: True if more than one suite is evaluated.
        """

    def close(self) -> None:
        """Release connections, processes and files."""


class Recorded:
    """Answers recorded in a file.

    Args:
        path: JSONL file.
        done: (suite, id, sample) of the answers already graded.
    """

    recorded = True

    def __init__(self, path: Path, done: Collection[tuple[str, str, int]]) -> None:
        self.path = path
        self.done = done

    def described(self) -> Mapping[str, Any]:
        """Return the path of the file and the hash of its content.

        Raises:
            UserError: the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError("--completions", f"{self.path} cannot be read: {error.strerror}") from error
        return {"completions": str(self.path), "sha256": digest}

    def answer(self, suite: Suite, wanted: SampleRequests, *, several: bool) -> Iterator[Answer]:
        """Yield the file's answers to the problems in ``wanted``; its sample numbers are ignored."""
        ids = {problem.id for problem, _ in wanted}
        for answer in read_completions(self.path, suite.name, ids, several=several):
            if (suite.name, answer.id, answer.sample) not in self.done:
                yield answer

    def close(self) -> None:
        """Do nothing: no resource stays open."""


def read_completions(path: Path, suite: str, problems: Collection[str], *, several: bool) -> Iterator[Answer]:
    """Yield the answers to a suite's problems, one after another: memory does not grow with the file.

    A line may also have ``suite``, ``truncated``, ``unfinished_thought`` and ``tokens``. Without ``sample``, answers to
    a problem are numbered in order.

    Args:
        path: JSON lines.
        suite: name of the suite.
        problems: ids of its problems.
        several: True if more than one suite is evaluated: lines then need ``suite``.

    Raises:
        UserError: a line is malformed, has an unknown id, or repeats an answer; names file and line.
    """
    samples_of: dict[str, set[int]] = {}
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError("--completions", f"{path} cannot be read: {error.strerror}") from error
    with file:
        for number, line in numbered(file, path.name):
            if not line.strip():
                continue
            where = f"{path.name}:{number}"
            record = _object(line, where)
            if several and "suite" not in record:
                raise UserError(where, "has no 'suite'", fix="say of each line which suite it answers")
            if record.get("suite", suite) != suite:
                continue
            if "id" not in record:  # the log of another program, such as samples of lm-eval
                raise UserError(where, "has no 'id' of a problem", fix=_FORM)
            identifier = str(record["id"])
            if identifier not in problems:
                near, _, _ = did_you_mean(identifier, problems).partition("?")
                hint = f" ({near}?)" if near.startswith("did you mean") else ""
                raise UserError(where, f"its id {identifier[:80]!r} is not a problem of {suite}{hint}")
            samples = samples_of.setdefault(identifier, set())
            sample = record.get("sample", len(samples))
            if not isinstance(sample, int) or isinstance(sample, bool) or sample < 0:
                raise UserError(where, f"'sample' is {sample!r:.40}; it must be a number from 0")
            if sample in samples:
                raise UserError(where, f"answers {identifier[:80]!r} as sample {sample} a second time")
            samples.add(sample)
            yield _answer(record, identifier, sample, where)


def _answer(record: Mapping[str, Any], identifier: str, sample: int, where: str) -> Answer:
    """Return the answer of a line, whose id and sample number are checked.

    Raises:
        UserError: another field is missing or has the wrong type.
    """
    if not isinstance(record.get("completion"), str):
        raise UserError(where, "has no 'completion' that is a text", fix=_FORM)
    tokens = record.get("tokens")
    truncated = record.get("truncated", False)
    unfinished_thought = record.get("unfinished_thought", after_thinking(record["completion"]) is None)
    if not isinstance(truncated, bool) or not (tokens is None or isinstance(tokens, int)):
        raise UserError(where, "'truncated' must be true or false, and 'tokens' a number")
    if not isinstance(unfinished_thought, bool):
        raise UserError(where, "'unfinished_thought' must be true or false")
    completion = whole(record["completion"])
    return Answer(identifier, sample, completion, tokens, truncated, unfinished_thought=unfinished_thought)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = load_json(line)
    except ValueError as error:
        raise UserError(where, "is not JSON", fix=_FORM) from error
    if not isinstance(record, dict):
        raise UserError(where, f"is a JSON {type(record).__name__}, not an object")
    return record
