"""Who answers the problems: recorded completions, a model in this process, or a server."""

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
"""Every problem of the suite, with the numbers of the answers that are not there yet."""


class Answers(Protocol):
    """A source of answers."""

    recorded: bool
    """Whether it knows itself which answers there are."""

    def described(self) -> Mapping[str, Any]:
        """What is evaluated, for the results: an evaluation goes on only with the same."""

    def answer(self, suite: Suite, wanted: Wanted, *, several: bool) -> Iterator[Answer]:
        """Answers one after another, in any order.

        Args:
            suite: how they are sampled.
            wanted: which ones.
            several: more than one suite is evaluated.
        """

    def close(self) -> None:
        """Let go of what was opened."""


class Recorded:
    """Answers of a file.

    Args:
        path: JSON lines.
        done: (suite, id, sample) of those that are judged already.
    """

    recorded = True

    def __init__(self, path: Path, done: Collection[tuple[str, str, int]]) -> None:
        self.path, self.done = path, done

    def described(self) -> Mapping[str, Any]:
        """The file and the hash of its content.

        Raises:
            UserError: it cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError("--completions", f"{self.path} cannot be read: {error.strerror}") from error
        return {"completions": str(self.path), "sha256": digest}

    def answer(self, suite: Suite, wanted: Wanted, *, several: bool) -> Iterator[Answer]:
        """See :class:`Answers`; ``wanted`` names the problems, the file says which answers there are."""
        ids = {problem.id for problem, _ in wanted}
        for answer in read_completions(self.path, suite.name, ids, several=several):
            if (suite.name, answer.id, answer.sample) not in self.done:
                yield answer

    def close(self) -> None:
        """Nothing to close."""
