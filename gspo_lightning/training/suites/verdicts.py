"""Answers with their verdicts, one a line in ``samples.jsonl``; an interrupted evaluation continues from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_json
from gspo_lightning.core.temp_files import sweep, temp_path
from gspo_lightning.core.tolerance import is_right
from gspo_lightning.resume.files import sync_folder


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer sampled for a problem."""

    id: str
    sample: int
    completion: str
    tokens: int | None = None
    """Number of tokens in the completion; None if unknown."""
    truncated: bool = False
    conversation: Mapping[str, Any] = field(default_factory=dict)
    """Columns of a conversation, for the reward: ``messages``, ``environment_reward``."""
    unfinished_thought: bool = False
    """True if it ends inside a thought that its prompt opened: there is no answer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one answer: one line of the file."""

    suite: str
    id: str
    sample: int
    prompt_sha256: str
    completion: str
    value: float | None
    """Value of the reward; None (*missing*) is left out of metrics and graded again by the next run."""
    status: str
    reason: str
    answered: bool
    """True if there was an answer to grade."""
    vote: str | None
    """Text counted for maj@k; None has no vote."""
    tokens: int | None
    truncated: bool
    record_sha256: str = ""
    """Hash of the columns given to the reward; empty in files of older versions."""
    unfinished_thought: bool = False
    """True if the completion ends inside a thought."""

    @property
    def right(self) -> bool:
        """True for a value of at least 1."""
        return is_right(self.value)


_NAMES = tuple(field.name for field in fields(Verdict) if field.default is MISSING)
_ADDED = tuple(field.name for field in fields(Verdict) if field.default is not MISSING)
"""Fields that files of older versions lack."""


class VerdictFile:
    """File of verdicts, appended to in batches; every line is complete on disk before the next batch begins.

    Lines cut off by an interruption, and verdicts that are *missing*, are dropped when the file is opened again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[tuple[str, str, int]] = set()
        """(suite, id, sample) of the verdicts already in the file."""
        self._file: IO[str] | None = None

    def __enter__(self) -> VerdictFile:
        if self.path.exists():
            self._keep_whole_lines()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # prompts may be private
        self._file = os.fdopen(descriptor, "a", encoding="utf-8")
        sync_folder(self.path.parent)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Write a batch."""
        assert self._file is not None
        self._file.writelines(json.dumps(asdict(verdict)) + "\n" for verdict in verdicts)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _keep_whole_lines(self) -> None:
        sweep(self.path.parent, self.path.name)
        unfinished = temp_path(self.path)
        with os.fdopen(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as kept:
            for verdict in read_verdicts(self.path, torn=True):
                if verdict.value is not None:
                    self.done.add((verdict.suite, verdict.id, verdict.sample))
                    kept.write(json.dumps(asdict(verdict)) + "\n")
            kept.flush()
            os.fsync(kept.fileno())
        os.replace(unfinished, self.path)


def read_verdicts(path: Path, *, torn: bool = False) -> Iterator[Verdict]:
    """Yield the verdict on every line.

    Args:
        path: the file.
        torn: treat an unfinished last line as the end.

    Raises:
        UserError: a line is not a verdict; names its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if torn and not line.endswith(b"\n"):
                return
            try:
                record: Any = load_json(line)
                fields = {name: record[name] for name in _NAMES}
                fields |= {name: record[name] for name in _ADDED if name in record}
                yield Verdict(**fields)
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"{path.name}:{number}", "is not a verdict of an evaluation") from error
