"""Example records of a new project; identical on every call."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["RECORDS"]

COUNT = 20
"""Number of records in a file of examples."""


def _lines(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(dict(record)) + "\n" for record in records)


def _own() -> dict[str, str]:
    """Return digits to sort; two in five demonstrations are correct, the others repeat the prompt."""
    draw = random.Random(7)
    digits = [f"{n:04d}" for n in draw.sample(range(10_000), 2 * COUNT + 1000)]
    examples = [{"prompt": f"{d}:", "answer": "".join(sorted(d))} for d in digits[: 2 * COUNT]]
    demonstrations = [
        {"prompt": f"{d}:", "completion": "".join(sorted(d)) if draw.random() < 0.4 else d} for d in digits[2 * COUNT :]
    ]
    return {
        "train.jsonl": _lines(examples[:COUNT]),
        "held_out.jsonl": _lines(examples[COUNT:]),
        "demos.jsonl": _lines(demonstrations),
    }


def _math() -> dict[str, str]:
    """Return two-step word problems."""
    draw = random.Random(7)
    records = []
    for _ in range(COUNT):
        boxes, pens, given = draw.randint(3, 12), draw.randint(4, 15), draw.randint(2, 11)
        question = f"A shop has {boxes} boxes of {pens} pens and sells {given} pens. How many pens are left?"
        records.append({"prompt": question, "answer": str(boxes * pens - given)})
    return {"train.jsonl": _lines(records)}


def _code() -> dict[str, str]:
    from gspo_lightning.prompts.tasks.code import CodeTask

    return {"train.jsonl": _lines(CodeTask(split="train", size=COUNT).records())}


def _logic() -> dict[str, str]:
    """Return ``10 * COUNT`` puzzles: with only 20, a model memorises their answers and unlearns how to solve others."""
    from gspo_lightning.prompts.tasks.logic import LogicTask

    puzzles = LogicTask(family="knights", split="train", size=10 * COUNT, style="compact")
    return {"train.jsonl": _lines(puzzles.records())}


RECORDS: dict[str, Callable[[], dict[str, str]]] = {"own": _own, "math": _math, "code": _code, "logic": _logic}
"""Task -> function that returns its record files: name -> text."""
