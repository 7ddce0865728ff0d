"""Cache of verdicts: in memory, and in a file that several processes and runs may share."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from gspo_lightning.errors import UserError

__all__ = ["VerdictCache", "key_of"]

_BUSY_S = 30.0
_MEMORY = 10_000
"""Maximum number of verdicts in memory."""


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
        self._known: dict[str, dict[str, float]] = {}

    def get(self, key: str) -> dict[str, float] | None:
        """Return the stored verdict, or None.

        Raises:
            UserError: the file is not a cache.
        """
        if key not in self._known and self.file is not None:
            rows = self._run("SELECT verdict FROM verdicts WHERE key = ?", key)
            if rows:
                self._remember(key, json.loads(rows[0][0]))
        return self._known.get(key)

    def put(self, key: str, verdict: dict[str, float]) -> None:
        """Store a verdict; the file keeps the first one of a key.

        Raises:
            UserError: the file is not a cache.
        """
        self._remember(key, verdict)
        if self.file is not None:
            self._run("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", key, json.dumps(verdict))

    def _remember(self, key: str, verdict: dict[str, float]) -> None:
        if len(self._known) >= _MEMORY:
            del self._known[next(iter(self._known))]
        self._known[key] = verdict

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
