"""Answers of ``gspo evaluate`` under two judges, and the part of a gain that is due to ending."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_lightning.data.prompts import WordProblems
from gspo_lightning.report.statistics.intervals import of_new_problems
from gspo_lightning.report.statistics.paired import difference

LIMIT = 32
"""Tokens of a response in configs/smollm2.yaml; held_out.yaml samples four times as many."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer to a held-out problem."""

    prompt: str
    gold: str
    text: str
    ended: bool
    """True if the answer ends within ``LIMIT`` tokens."""
    right: bool
    """True if the answer ends within ``LIMIT`` tokens and ``MathVerifier`` accepts it."""
    lenient: bool
    """True if the last number of the text, at four times ``LIMIT`` tokens at most, is the answer."""


def read(folder: Path) -> list[Answer]:
    """Return the answers of an evaluation with held_out.yaml, in the order of the problems."""
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    found = sorted((json.loads(line) for line in lines), key=lambda line: int(line["id"]))
    records = WordProblems("held_out", len(found)).records()
    return [_answer(str(r["prompt"]), str(r["answer"]), line) for r, line in zip(records, found, strict=True)]


def _answer(prompt: str, gold: str, line: dict[str, Any]) -> Answer:
    text, ended = str(line["completion"]), not line["truncated"] and int(line["tokens"]) <= LIMIT
    return Answer(prompt, gold, text, ended, ended and line["value"] == 1, last_number(text) == gold)


def last_number(text: str) -> str | None:
    """Return the last number of a text.

    >>> last_number("3 + 4 = 7 apples. So 1,007."), last_number("none")
    ('1007', None)
    """
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


def shares(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the accuracy under both judges and the share that ends, each with a 95 % interval over problems."""
    values = {name: [float(getattr(a, name)) for a in answers] for name in ("right", "lenient", "ended")}
    return {name: _rounded(of_new_problems(v)) for name, v in values.items()}


def gain(before: Sequence[Answer], after: Sequence[Answer]) -> dict[str, Any]:
    """Return the gain under both judges, paired by problem, and the strict gain by whether the answers ended."""
    found: dict[str, Any] = {}
    for name in ("right", "lenient"):
        pairs = [[float(getattr(a, name)) for a in answers] for answers in (before, after)]
        found[name] = _rounded(paired := difference(*pairs)) | {"p": paired.p}
    changes = [(b.ended, a.ended, a.right - b.right) for b, a in zip(before, after, strict=True)]
    both = [change for b, a, change in changes if b and a]
    found["due_to_ending"] = round(sum(change for b, a, change in changes if a and not b) / len(changes), 4)
    found["due_to_not_ending"] = round(sum(change for _, a, change in changes if not a) / len(changes), 4)
    found["among_ended_both_times"] = {"problems": len(both), "gain": round(sum(both) / max(len(both), 1), 4)}
    return found


def _rounded(estimate: Any) -> dict[str, float]:
    return {name: round(float(getattr(estimate, name)), 4) for name in ("value", "low", "high")}
