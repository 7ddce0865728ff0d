"""Verdicts of a judge, parsed and cached; an unreadable reply is an error, never a low score."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.chat import answer_text
from gspo_lightning.rewards.judge.request import CHOICES
from gspo_lightning.rewards.logic.lenient import last_objects

Verdict = dict[str, float]
_SHOWN = 120
_BUSY_S = 30.0
_MEMORY = 10_000
"""Maximum number of verdicts in memory."""


class UnreadableError(Exception):
    """A reply without a readable verdict, or with several that differ."""


def read_verdict(choice: Mapping[str, Any], check: str, criteria: Sequence[str], scale: int | None) -> Verdict:
    """Read a verdict from the choice of a reply: criterion -> value in [0, 1].

    Args:
        choice: ``{"message": {"content": text}, "finish_reason": ...}``.
        check: the code that a verdict must repeat.
        criteria: of the rubric; a verdict must have each of them, and no other.
        scale: the best score; None for a comparison.

    Raises:
        UnreadableError: no verdict, one with other criteria or values, or several that differ.
    """
    text = answer_text(choice["message"].get("content")) or ""
    fenced = [reply for reply in last_objects(text) if reply.get("check") == check]
    if not fenced:
        cut = ", cut at the limit of tokens" if choice.get("finish_reason") == "length" else ""
        raise UnreadableError(f"no verdict with its code in the judge's reply{cut}: {text[:_SHOWN]!r}")
    verdicts = [_values(reply.get("verdict"), criteria, scale) for reply in fenced]
    if any(verdict != verdicts[0] for verdict in verdicts):
        raise UnreadableError("several verdicts that differ in the judge's reply")
    return verdicts[0]


def weighted(verdict: Verdict, weights: Mapping[str, float]) -> float:
    """Return the weighted mean of the criteria.

    >>> weighted({"right": 1.0, "short": 0.5}, {"right": 3.0, "short": 1.0})
    0.875
    """
    return sum(weights[name] * value for name, value in verdict.items()) / sum(weights.values())


def _values(verdict: object, criteria: Sequence[str], scale: int | None) -> Verdict:
    if not isinstance(verdict, Mapping) or set(verdict) != set(criteria):
        raise UnreadableError(f"a verdict with other criteria than {', '.join(criteria)}: {str(verdict)[:_SHOWN]}")
    return {name: _value(name, verdict[name], scale) for name in criteria}


def _value(name: str, value: object, scale: int | None) -> float:
    if scale is None:
        if isinstance(value, str) and value in CHOICES:
            return CHOICES[value]
        raise UnreadableError(f"{name} is {value!r}, none of {', '.join(CHOICES)}")
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= scale:
        return value / scale
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    raise UnreadableError(f"{name} is {text}, no number from 0 to {scale}")


def key_of(body: dict[str, Any]) -> str:
    """Return a hash of all that a verdict depends on: the model, the rubric, the texts, the request settings."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class VerdictCache:
    """A cache of verdicts: key -> criterion -> value.

    Args:
        file: an SQLite file, created on first use; None keeps verdicts in memory only.
    """

    def __init__(self, file: str | None) -> None:
        self.file = file
        self._verdicts: dict[str, dict[str, float]] = {}

    def get(self, key: str) -> dict[str, float] | None:
        """Return the stored verdict, or None.

        Raises:
            UserError: the file is not a cache.
        """
        if key not in self._verdicts and self.file is not None:
            rows = self._run("SELECT verdict FROM verdicts WHERE key = ?", key)
            if rows:
                self._remember(key, json.loads(rows[0][0]))
        return self._verdicts.get(key)

    def put(self, key: str, verdict: dict[str, float]) -> None:
        """Store a verdict; the file keeps the first one of a key.

        Raises:
            UserError: the file is not a cache.
        """
        self._remember(key, verdict)
        if self.file is not None:
            self._run("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", key, json.dumps(verdict))

    def _remember(self, key: str, verdict: dict[str, float]) -> None:
        if len(self._verdicts) >= _MEMORY:
            del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[key] = verdict

    def _run(self, statement: str, *values: str) -> list[tuple[str]]:
        assert self.file is not None
        try:
            Path(self.file).parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.file, timeout=_BUSY_S)) as connection, connection:
                connection.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, verdict TEXT NOT NULL)")
                return connection.execute(statement, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise UserError(
                "LLMJudge.cache", f"{self.file} cannot be used: {error}", fix="name another file, or remove it"
            ) from error
