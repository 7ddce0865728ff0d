"""``python -m gspo_lightning.rewards.gym.generate``: read a JSON request from stdin, write items as JSON lines.

It runs in a process of its own: reasoning-gym takes seconds to import, some families depend on the order of sets, which
``PYTHONHASHSEED`` fixes, and some draw from global generators.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from gspo_lightning.core.randomness import stable_hash, stream
from gspo_lightning.rewards.gym.items import graded, make_item, open_source, read_entry, write_entry

PATIENCE = 2000
"""Draws in a row without a new item after which a family counts as exhausted."""
DRAWS = 40
"""Maximum draws per requested item: a split may be a tenth. Some families make all of them at once."""


def items(request: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Generate records with ``question``, ``answer``, ``family`` and ``entry``, the families in turn.

    A hash of its question assigns an item to a split. Each item is scored once before it is returned, and left out if
    its stored answer is not accepted.

    Args:
        request: ``families``, ``configs`` (family -> settings), ``size``, ``seed``, ``split`` (the tenths that belong
            to it).

    Raises:
        ValueError: an unknown family or setting, or a family with too few items.
    """
    makers = [_of_family(family, request) for family in request["families"]]
    for number in range(request["size"]):
        yield next(makers[number % len(makers)])


def _of_family(family: str, request: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    seed = stream(request["seed"], stable_hash(family)) % (1 << 31)
    most = DRAWS * -(-request["size"] // len(request["families"])) + PATIENCE // 10
    source = open_source(family, seed, most, request["configs"].get(family, {}))
    questions: set[str] = set()
    idle = 0
    for index in range(most):
        if idle == PATIENCE:
            break
        entry = make_item(source, index, stream(seed, index) % (1 << 32))
        idle += 1
        question = str(entry["question"])
        if question in questions or stable_hash(question) % 10 not in request["split"]:
            continue
        written = write_entry(entry)
        if written is None or not graded(source, family, entry["answer"], read_entry(written)):
            continue
        questions.add(question)
        idle = 0
        yield {"question": question, "answer": entry["answer"], "family": family, "entry": written}
    raise ValueError(f"{family} has only {len(questions)} items for this split with these settings")


def main() -> int:
    """Serve one request; for user errors return exit code 3 and write a line to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output that the package prints is not a record
    try:
        for record in items(json.load(sys.stdin)):
            out.write(json.dumps(record) + "\n")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 3
    out.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
