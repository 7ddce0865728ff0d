"""Sources of benchmark answers: the protocol, and completions recorded in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gspo_lightning.errors import UserError
from gspo_lightning.suites.completions import read_completions
from gspo_lightning.suites.problems import Problem
from gspo_lightning.suites.suite import Suite
from gspo_lightning.suites.verdicts import Answer

__all__ = ["Answers", "Recorded", "Wanted"]

Wanted = Sequence[tuple[Problem, Sequence[int]]]
"""Every problem of the suite, with the sample numbers of its missing answers."""


class Answers(Protocol):
    """A source of answers."""

    recorded: bool
    """True if the source itself determines which answers exist."""

    def described(self) -> Mapping[str, Any]:
        """Return a description of the source for the results; an evaluation resumes only if it is unchanged."""

    def answer(self, suite: Suite, wanted: Wanted, *, several: bool) -> Iterator[Answer]:
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
        self.path, self.done = path, done

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

    def answer(self, suite: Suite, wanted: Wanted, *, several: bool) -> Iterator[Answer]:
        """Yield the file's answers to the problems in ``wanted``; its sample numbers are ignored."""
        ids = {problem.id for problem, _ in wanted}
        for answer in read_completions(self.path, suite.name, ids, several=several):
            if (suite.name, answer.id, answer.sample) not in self.done:
                yield answer

    def close(self) -> None:
        """Do nothing: no resource stays open."""
