"""Read answers that were sampled elsewhere: a file of ``id``, ``sample``, ``completion``."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from gspo_lightning.corpus.lines import numbered
from gspo_lightning.errors import UserError, did_you_mean
from gspo_lightning.suites.verdicts import Answer

__all__ = ["read_completions"]


def read_completions(path: Path, suite: str, problems: Collection[str], *, several: bool) -> Iterator[Answer]:
    """Yield the answers to a suite's problems, one after another: memory does not grow with the file.

    A line may also have ``suite``, ``truncated`` and ``tokens``. Without ``sample``, answers to a problem are numbered
    in order.

    Args:
        path: JSON lines.
        suite: name of the suite.
        problems: ids of its problems.
        several: True if more than one suite is evaluated: lines then need ``suite``.

    Raises:
        UserError: a line is malformed, has an unknown id, or repeats an answer; names file and line.
    """
    seen: dict[str, set[int]] = {}
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
            identifier = str(record.get("id", ""))
            if identifier not in problems:
                hint = did_you_mean(identifier, problems).partition("?")[0]
                near = f" ({hint}?)" if hint.startswith("did you mean") else ""
                raise UserError(where, f"its id {identifier[:80]!r} is not a problem of {suite}{near}")
            taken = seen.setdefault(identifier, set())
            sample = record.get("sample", len(taken))
            if not isinstance(sample, int) or isinstance(sample, bool) or sample < 0:
                raise UserError(where, f"'sample' is {sample!r:.40}; it must be a number from 0")
            if sample in taken:
                raise UserError(where, f"answers {identifier[:80]!r} as sample {sample} a second time")
            taken.add(sample)
            if not isinstance(record.get("completion"), str):
                raise UserError(where, "has no 'completion' that is a text")
            tokens, truncated = record.get("tokens"), record.get("truncated", False)
            if not isinstance(truncated, bool) or not (tokens is None or isinstance(tokens, int)):
                raise UserError(where, "'truncated' must be true or false, and 'tokens' a number")
            yield Answer(identifier, sample, record["completion"], tokens, truncated)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(where, "is not JSON", fix='write {"id": ..., "sample": 0, "completion": "..."}') from error
    if not isinstance(record, dict):
        raise UserError(where, f"is a JSON {type(record).__name__}, not an object")
    return record
