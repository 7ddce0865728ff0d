"""Index of the recorded responses of a run: built once, then only extended, so that a large run opens at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.report.tokens import TOKENS
from gspo_lightning.report.view.rows import COLUMNS, cells, parse, record_files, whole_lines

INDEX = ".view.sqlite"
"""Name of the file in the run folder; it may be deleted at any time."""
_VERSION, _APPLICATION = 3, 0x6773706F
"""``user_version`` and ``application_id`` of SQLite's header: "gspo"."""
_NAMED_LINES = 5
"""Numbers of damaged lines that are named of a file."""
_BATCH = 5_000
_TAIL = 512
SAMPLE_BYTES = 2_000_000
"""Bytes of JSON lines that one question of a hint may read: hints are part of what is read before the page is drawn."""
SORTS = {
    "iteration": "iteration", "reward": "reward", "length": "length", "log_s": "abs(log_s)", "age": "age",
    "advantage": "advantage",
}  # fmt: skip
"""Word of a query -> what rows are sorted by."""
_SOURCES = """
WITH RECURSIVE known(source) AS (
  SELECT min(source) FROM rollouts UNION ALL
  SELECT (SELECT min(source) FROM rollouts WHERE source > known.source) FROM known
  WHERE known.source IS NOT NULL LIMIT 50)
SELECT source FROM known
"""
"""All sources, by jumps in their index: DISTINCT would read every row."""
_SHOWN = {
    "prompt": "CASE WHEN length(prompt) > 401 THEN '…' || substr(prompt, -400) ELSE prompt END",
    "completion": "substr(completion, 1, 400)",
}
"""Texts of a table: the end of a prompt, where its question stands, and the beginning of a response."""
_TABLES = f"""
CREATE TABLE rollouts (n INTEGER PRIMARY KEY, file INTEGER, start INTEGER, {", ".join(COLUMNS)},
  UNIQUE (iteration, prompt_id, sample, row));
CREATE TABLE files (
  file INTEGER PRIMARY KEY, name TEXT UNIQUE, size INTEGER, stamp INTEGER, tail TEXT, lines INTEGER, damaged INTEGER,
  wrong TEXT);
CREATE TABLE facts (one INTEGER PRIMARY KEY, facts TEXT);
"""
_INDEXES = {
    "by_prompt": "(prompt_id, iteration)", "by_reward": "(reward)", "by_length": "(length)", "by_log_s": "(abs(log_s))",
    "by_age": "(age)", "by_advantage": "(advantage)", "by_source": "(source)",
    "by_update": "(update_) WHERE update_ IS NOT NULL",
}  # fmt: skip
"""Made once the first rows are in, which is faster than to extend them row by row."""


class RolloutIndex:
    """Answers queries over the recorded responses of one run folder.

    Args:
        folder: the run folder. The index is written there, or into a nameless temporary file, which goes away with this
            process, if that is not possible: the folder is read-only, its disk is full, or the name is taken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._lock = folder, threading.Lock()
        self._facts: dict[str, Any] | None = None
        self._nameless = False
        self._base = self._open(folder / INDEX)

    def _open(self, path: Path) -> sqlite3.Connection:
        for _ in range(2):
            if not _is_own(path):
                break
            try:
                return _connect(path)
            except sqlite3.DatabaseError:  # older, damaged, or not writable
                with contextlib.suppress(OSError):
                    path.unlink()
        self._nameless = True
        return _connect(None)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()

    def refresh(self) -> None:
        """Read what was added to the files since; a file that is not what it was is read anew.

        Queries are answered between two pieces of work, with what has been read by then.

        Raises:
            InfrastructureError: the index cannot be written, neither in the run folder nor elsewhere.
        """
        try:
            self._refresh()
        except sqlite3.OperationalError as error:  # a full disk, say
            if self._nameless:
                raise _unwritable(error) from error
            with self._lock, contextlib.suppress(sqlite3.Error, OSError):
                self._base.close()
                (self.folder / INDEX).unlink(missing_ok=True)
            self._nameless, self._facts = True, None
            try:
                self._base = _connect(None)
                self._refresh()
            except sqlite3.OperationalError as again:
                raise _unwritable(again) from again

    def _refresh(self) -> None:
        names = {str(path.relative_to(self.folder)): path for path in record_files(self.folder)}
        with self._lock:
            known = {row[1]: row for row in self._base.execute("SELECT file, name, size, stamp, tail FROM files")}
            changed = known.keys() - names.keys()
            for name, (_, _, size, stamp, tail) in known.items():
                with contextlib.suppress(FileNotFoundError):
                    status = _status(names[name]) if name in names else (size, stamp)
                    if status != (size, stamp) and (status[0] < size or _tail(names[name], size) != tail):
                        changed.add(name)
            if TOKENS in changed:  # its rows stood for rows of other files
                changed = set(known)
            if changed:
                self._forget_facts()
            for name in changed:
                self._base.execute("DELETE FROM rollouts WHERE file = ?", (known[name][0],))
                self._base.execute("DELETE FROM files WHERE file = ?", (known.pop(name)[0],))
            if self._base.execute("SELECT 1 FROM rollouts LIMIT 1").fetchone() is None:
                for name in _INDEXES:
                    self._base.execute(f"DROP INDEX IF EXISTS {name}")
            self._base.commit()
        for name, path in names.items():
            size, stamp = known[name][2:4] if name in known else (0, -1)
            with contextlib.suppress(FileNotFoundError):  # a resume cuts the file now
                if (size, stamp) != _status(path):
                    self._read(name, path, size)
        for name, of in _INDEXES.items():
            with self._lock:
                self._base.execute(f"CREATE INDEX IF NOT EXISTS {name} ON rollouts {of}")
                self._base.commit()
        facts = json.dumps(self.facts())
        with self._lock:
            self._base.execute("INSERT OR IGNORE INTO facts VALUES (0, ?)", (facts,))
            self._base.commit()

    def _forget_facts(self) -> None:
        self._facts = None
        self._base.execute("DELETE FROM facts")

    def _read(self, name: str, path: Path, start: int) -> None:
        """Read a file from a position on."""
        stamp = _status(path)
        with self._lock:
            self._base.execute(
                "INSERT OR IGNORE INTO files (name, lines, damaged, wrong) VALUES (?, 0, 0, '')", (name,)
            )
            asked = "SELECT file, lines, wrong FROM files WHERE name = ?"
            file, lines, wrong = self._base.execute(asked, (name,)).fetchone()
        read = _Progress(start, -1, lines, 0, wrong)
        batch = list[tuple[Any, ...]]()
        for at, line in whole_lines(path, start):
            read.end, read.lines = at + len(line), read.lines + 1
            row = parse(line)
            if row is None:
                read.damage()
            else:
                batch.append((file, at, *cells(row)))
            if len(batch) >= _BATCH:
                self._add(path, file, batch, read)
                batch, read.damaged = [], 0
        read.stamp = stamp[1] if read.end == stamp[0] else -1  # what is half-written is read later
        self._add(path, file, batch, read)

    def _add(self, path: Path, file: int, batch: list[tuple[Any, ...]], read: _Progress) -> None:
        """Add rows, and note how far their file has been read."""
        way = "REPLACE" if path.name == TOKENS else "IGNORE"  # a row with tokens stands for the same row without
        marks = ", ".join("?" * (2 + len(COLUMNS)))
        with self._lock:
            self._base.executemany(
                f"INSERT OR {way} INTO rollouts (file, start, {', '.join(COLUMNS)}) VALUES ({marks})", batch
            )
            self._base.execute(
                "UPDATE files SET size = ?, stamp = ?, tail = ?, lines = ?, damaged = damaged + ?, wrong = ? "
                "WHERE file = ?",
                (read.end, read.stamp, _tail(path, read.end), read.lines, read.damaged, read.wrong, file),
            )
            self._forget_facts()
            self._base.commit()

    def find(
        self, query: Mapping[str, str], *, limit: int = 100, offset: int = 0, whole: bool = False
    ) -> dict[str, Any]:
        """Return ``total`` and the ``rows`` of a query, without their tokens, and the number of the ``last`` row.

        Args:
            query: ``iteration``, ``prompt_id``, ``source``, ``choice``, ``finish``: exact; ``q``: text of prompt or
                answer; ``least``, ``most``: of the reward; ``sort``: a word of :data:`SORTS`; ``up``: smallest first;
                ``live``: with an advantage; ``clipped``; ``last``: no rows that were recorded after this number.
            limit: number of rows.
            offset: rows before the first one.
            whole: True for whole texts, False for the parts that a table shows.

        Raises:
            ValueError: a number is none.
        """
        where, values = _where(query)
        order = SORTS.get(query.get("sort", ""), "iteration")
        way = "ASC" if query.get("up") else "DESC"
        tie = ", prompt_id, sample, row" if order == "iteration" else f", n {way}"  # as its index has them
        shown = COLUMNS if whole else [_SHOWN.get(name, name) for name in COLUMNS]
        with self._lock:
            total, last = self._base.execute(f"SELECT count(*), max(n) FROM rollouts{where}", values).fetchone()
            found = self._base.execute(
                f"SELECT n, {', '.join(shown)} FROM rollouts{where} ORDER BY {order} {way}{tie} LIMIT ? OFFSET ?",
                (*values, limit, offset),
            ).fetchall()
        return {"total": total, "last": last, "rows": [dict(zip(("n", *COLUMNS), row, strict=True)) for row in found]}

    def rows(self, query: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
        """Return whole rows of a query, with their tokens, in the order of samples.

        Raises:
            ValueError: a number is none.
        """
        where, values = _where(query)
        with self._lock:
            places = self._base.execute(
                f"SELECT n, name, start FROM rollouts JOIN files USING (file){where} "
                "ORDER BY iteration, prompt_id, sample, row LIMIT ?",
                (*values, limit),
            ).fetchall()
        return [{"n": n, **row} for n, name, start in places if (row := self._line(name, start)) is not None]

    def _line(self, name: str, start: int) -> dict[str, Any] | None:
        try:
            with open(self.folder / name, "rb") as file:
                file.seek(start)
                return parse(file.readline())
        except OSError:
            return None

    def columns(self, *names: str, where: str = "") -> Iterator[tuple[Any, ...]]:
        """Return the values of columns, ordered by iteration; names and condition are the caller's, never a user's."""
        with self._lock:
            found = self._base.execute(f"SELECT {', '.join(names)} FROM rollouts {where} ORDER BY iteration").fetchall()
        return iter(found)

    def sample(self, most: int) -> int:
        """Return how many rows a question may read, so that it reads :data:`SAMPLE_BYTES` of recorded JSON at most."""
        facts = self.facts()
        return max(1, min(most, SAMPLE_BYTES * max(1, facts["rollouts"]) // max(1, facts["bytes"])))

    def facts(self) -> dict[str, Any]:
        """Return numbers of rows, bytes and damaged lines, places of those, sources, first and last iteration."""
        with self._lock:
            if self._facts is None and (kept := self._base.execute("SELECT facts FROM facts").fetchone()) is not None:
                self._facts = json.loads(kept[0])
            if self._facts is None:
                ask = self._base.execute
                count, first, last = ask("SELECT count(*), min(iteration), max(iteration) FROM rollouts").fetchone()
                damaged, size = ask("SELECT coalesce(sum(damaged), 0), coalesce(sum(size), 0) FROM files").fetchone()
                wrong = ask("SELECT name, wrong FROM files WHERE wrong != '' ORDER BY name LIMIT 5").fetchall()
                tokens = ask("SELECT 1 FROM rollouts WHERE update_ IS NOT NULL LIMIT 1").fetchone()
                sources = [row[0] for row in ask(_SOURCES).fetchall() if row[0]]
                self._facts = {
                    "rollouts": count, "first": first, "last": last, "damaged": damaged, "tokens": tokens is not None,
                    "sources": sources, "bytes": size, "wrong": [f"{name}: line {lines}" for name, lines in wrong],
                }  # fmt: skip
            return dict(self._facts)


@dataclass(slots=True)
class _Progress:
    """Progress in a file: position, time stamp, lines, damaged ones of this batch, and the first numbers of those."""

    end: int
    stamp: int
    lines: int
    damaged: int
    wrong: str

    def damage(self) -> None:
        self.damaged += 1
        if self.wrong.count(",") < _NAMED_LINES - 1:
            self.wrong += f"{', ' if self.wrong else ''}{self.lines}"


def _is_own(path: Path) -> bool:
    """True if there is no such file, or a plain file of this user with no other name: no link to something else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()


def _connect(path: Path | None) -> sqlite3.Connection:
    """Open or create the file, readable by this user only; None: a temporary one without a name.

    Raises:
        sqlite3.DatabaseError: it is damaged, of another version, or cannot be written.
    """
    if path is not None:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600))
    base = sqlite3.connect("" if path is None else path, timeout=60, check_same_thread=False)
    try:
        base.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY; PRAGMA cache_size = -32000;")
        version = base.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and base.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_VERSION};"
            base.executescript(f"BEGIN; {_TABLES} {marks} COMMIT;")
        elif (base.execute("PRAGMA application_id").fetchone()[0], version) != (_APPLICATION, _VERSION):
            raise sqlite3.DatabaseError("another version")
        base.execute("UPDATE files SET size = size WHERE 0")
        base.commit()
    except sqlite3.DatabaseError:
        base.close()
        raise
    return base


def _unwritable(error: sqlite3.Error) -> InfrastructureError:
    return InfrastructureError(
        f"the index of recorded responses cannot be written: {error}.\n"
        f"  fix: make room in the run folder, or in {tempfile.gettempdir()} (or name another folder with TMPDIR)"
    )


def _where(query: Mapping[str, str]) -> tuple[str, list[Any]]:
    parts, values = [], list[Any]()
    for name in ("iteration", "prompt_id", "n", "row"):
        if query.get(name, "") != "":
            parts.append(f"{name} = ?")
            values.append(int(query[name]))
    for name in ("source", "choice", "finish"):
        if query.get(name):
            parts.append(f"{name} = ?")
            values.append(query[name])
    if text := query.get("q"):
        parts.append("(completion LIKE ? ESCAPE '\\' OR prompt LIKE ? ESCAPE '\\')")
        like = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        values += [f"%{like}%"] * 2
    for name, condition in (("least", "reward >= ?"), ("most", "reward <= ?"), ("last", "n <= ?")):
        if query.get(name, "") != "":
            parts.append(condition)
            values.append(float(query[name]))
    if query.get("live"):
        parts.append("advantage != 0")
    if query.get("clipped"):
        parts.append("clip != 0")
    if query.get("tokens"):
        parts.append("update_ IS NOT NULL")
    return (f" WHERE {' AND '.join(parts)}" if parts else ""), values


def _status(path: Path) -> tuple[int, int]:
    """Return the size of a file and the time of its last change."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _tail(path: Path, end: int) -> str:
    """Return a hash of the bytes before a position, by which a file that only grew is recognised."""
    with open(path, "rb") as file:
        file.seek(max(0, end - _TAIL))
        return hashlib.blake2b(file.read(min(end, _TAIL)), digest_size=8).hexdigest()
