"""Read prompts from files and the hub: JSON lines, JSON, CSV, TSV, Parquet, or a ``datasets`` id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import PluginError, UserError, defined, did_you_mean, first_line, is_own
from gspo_lightning.core.escape import whole, whole_values
from gspo_lightning.core.extras import install_command
from gspo_lightning.core.registry import components
from gspo_lightning.data.corpus.files import SUFFIXES, check_there, suffix_of
from gspo_lightning.data.prompts.demonstrations import Demonstrations, read_demonstrations
from gspo_lightning.data.prompts.formats import place_of, read_rows
from gspo_lightning.data.prompts.hub_files import read_data_set
from gspo_lightning.data.prompts.hub_revisions import commit_of
from gspo_lightning.data.prompts.on_demand import OnDemand
from gspo_lightning.data.prompts.preferences import Preferences, read_preferences
from gspo_lightning.data.prompts.prompt_set import Columns, PromptSet, Record, absent_columns, map_columns
from gspo_lightning.policy.hub import check_reachable

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]*){0,2}")
_READABLE = f"{', '.join(SUFFIXES[:-1])} (each may end in .gz) or {SUFFIXES[-1]}"
_SHOWN_NAMES = 20
_SHOWN_CHARACTERS = 60


class PromptFile(PromptSet):
    """Records of a file: ``.jsonl``, ``.json`` (an array of objects), ``.csv``, ``.tsv`` or ``.parquet``.

    The first line of a table names its columns. Its cells are texts and stay as they are: an answer ``042`` is
    ``"042"``, not 42, and an empty cell is an empty text. Rewards get these texts; write JSON lines if a column must
    be a number. Messages never show the content of a record.

    Args:
        path: the file.
        columns: our name -> the file's (``{prompt: question, answer: solution}``); other columns keep their names.
    """

    def __init__(self, path: str, columns: Columns | None = None) -> None:
        self.path = path
        self.columns = dict(columns or {})
        name = Path(path).name
        check_there(path, "data")
        if not suffix_of(path):
            raise UserError("data", f"{name!r} is not a file of records", fix=f"give {_READABLE}")

    def records(self, *, checked: bool = True) -> Sequence[Record]:
        """Return every record of the file. JSON lines and Parquet are not held in memory but read again on access.

        Args:
            checked: check every record now. False leaves that to the caller's first iteration: it reads a large file
                once.

        Raises:
            UserError: a malformed line, with its number, an empty file, or a missing column.
        """
        return _Mapped(self._rows(), self.columns, Path(self.path).name, checked)

    def demonstrations(self) -> Demonstrations:
        """Return every record as a demonstration for a cold start: ``prompt`` and ``completion``, or ``messages``.

        Raises:
            UserError: as :meth:`records`; or a record is not a demonstration, with its line.
        """
        rows = self._rows()
        name = Path(self.path).name
        _check_columns(rows, self.columns, name)
        records = (_read(row, self.columns) for row in rows)
        return read_demonstrations(records, lambda number: place_of(rows, number, name))

    def preferences(self) -> Preferences:
        """Return every record as a preference pair: ``chosen``, ``rejected``, and ``prompt`` if it is separate.

        Raises:
            UserError: as :meth:`records`; or a record is not a pair, with its line.
        """
        rows = self._rows()
        name = Path(self.path).name
        _check_columns(rows, self.columns, name)
        records = (_read(row, self.columns) for row in rows)
        return read_preferences(records, lambda number: place_of(rows, number, name))

    def _rows(self) -> Sequence[dict[str, Any]]:
        rows = read_rows(self.path)
        if not rows:
            raise UserError("data", f"{Path(self.path).name!r} holds no records")
        return rows


class HubPrompts(PromptSet):
    """Records of a ``datasets`` id (extra ``data``).

    Args:
        path: hub id, or anything ``datasets.load_dataset`` takes.
        name: configuration of the data set.
        split: split to read.
        columns: our name -> theirs.
        revision: branch, tag or commit of a hub id; None takes the newest commit, and in a resumed run the one that the
            run has read before (:mod:`gspo_lightning.data.prompts.hub_revisions`).
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        split: str = "train",
        columns: Columns | None = None,
        revision: str | None = None,
    ) -> None:
        self.path = path
        self.name = name
        self.split = split
        self.columns = dict(columns or {})
        self.revision = revision

    def records(self) -> Sequence[Record]:
        """Return every record of the split.

        Raises:
            UserError: ``datasets`` is not installed, or the data set cannot be loaded.
        """
        return _Mapped(self._rows(), self.columns, self._where)

    def demonstrations(self) -> Demonstrations:
        """Return every record of the split as a demonstration for a cold start, as :class:`PromptFile` does.

        Raises:
            UserError: as :meth:`records`; or a record is not a demonstration.
        """
        rows = self._rows()
        _check_columns(rows, self.columns, self._where)
        records = (_read(row, self.columns) for row in rows)
        return read_demonstrations(records, lambda number: f"{self._where}, record {number + 1}")

    def preferences(self) -> Preferences:
        """Return every record of the split as a preference pair, as :class:`PromptFile` does.

        Raises:
            UserError: as :meth:`records`; or a record is not a pair.
        """
        rows = self._rows()
        _check_columns(rows, self.columns, self._where)
        records = (_read(row, self.columns) for row in rows)
        return read_preferences(records, lambda number: f"{self._where}, record {number + 1}")

    @property
    def _where(self) -> str:
        return f"{self.path}[{self.split}]"

    def _rows(self) -> Sequence[dict[str, Any]]:
        try:
            import datasets  # noqa: F401
        except ImportError as error:
            raise UserError("data", f"{self.path!r} needs the package datasets", fix=install_command("data")) from error
        commit = None
        if not _is_file(self.path, folder=True):
            check_reachable("data", self.path, "dataset")
            commit = commit_of(self.path, self.revision)
        try:
            return read_data_set(self.path, self.name, self.split, commit)
        except UserError:
            raise
        except Exception as error:
            cause = first_line(error)
            raise UserError(
                "data",
                f"{self.path!r} is not a file here, and cannot be loaded as a data set: {cause}",
                fix="give a file of records, a hub id you can reach, or a prompt set such as ChainTask",
            ) from error


class _Mapped(OnDemand[Record]):
    """Rows with renamed columns, made on access; iterating over them checks each.

    Raises:
        UserError: a missing column, or a record without a prompt.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Columns, where: str, checked: bool = True) -> None:
        self._rows = rows
        self._columns = columns
        self._where = where
        _check_columns(rows, columns, where)
        if checked:
            for _ in self:  # iterating checks every record
                pass

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Record]:
        """Yield records in order; this reads a file once from beginning to end."""
        for number, row in enumerate(self._rows):
            yield _checked(_read(row, self._columns), partial(self.place, number))

    def at(self, place: int) -> Record:
        """Return the record at a place."""
        return _read(self._rows[place], self._columns)

    def place(self, number: int) -> str:
        """Return the name that messages use for a record: file and line, or record number."""
        return place_of(self._rows, number, self._where)


def open_prompts(source: PromptSet | str, columns: Columns) -> PromptSet:
    """Open prompts: a prompt set as it is, a path with a known suffix as a file, else a hub id (``id:name:split``).

    Raises:
        UserError: no such file, or the text can be neither a file nor an id.
    """
    if isinstance(source, PromptSet):
        return source
    if suffix_of(source) or _is_file(source):
        return PromptFile(source, columns)
    if source.isidentifier() and (near := did_you_mean(source, components("prompts"))).startswith("did you mean"):
        raise UserError("data", f"{source!r} is neither a file nor a registered prompt set; {near}")
    if _is_file(source, folder=True):
        return _folder(Path(source), columns)
    if not _HUB_ID.fullmatch(source):  # neither looked up elsewhere nor shown
        raise UserError(
            "data",
            f"a text of {len(source)} characters is neither a file, nor a hub id, nor a prompt set",
            fix=f"give {_READABLE}, an id such as owner/name, or a prompt set such as ChainTask",
        )
    path, name, split = [*source.split(":"), "", ""][:3]
    return HubPrompts(path, name or None, split or "train", columns)


def _folder(folder: Path, columns: Columns) -> PromptFile:
    """Open the training file of a data set copied to this machine; ``datasets`` would copy its records again."""
    files = sorted(f for f in folder.rglob("*") if suffix_of(f.name) and f.name.startswith("train") and f.is_file())
    splits = (folder / "dataset_dict.json").is_file()
    if not files and (splits or (folder / "state.json").is_file()):
        problem = f"the folder {folder.name!r} was written by save_to_disk of datasets, whose files are no records"
        rows = 'load_from_disk(FOLDER)["train"]' if splits else "load_from_disk(FOLDER)"
        raise UserError("data", problem, fix=f'{rows}.to_parquet("train.parquet"), and name that file')
    if len(files) != 1:
        raise UserError(
            "data",
            f"the folder {folder.name!r} holds {len(files)} files of records that begin with 'train'",
            fix="name one file of records in it",
        )
    return PromptFile(str(files[0]), columns)


def read_prompts(source: PromptSet) -> Sequence[Record]:
    """Return the records of a set. Those of a plug-in are checked here, those of a file when iterated over.

    Raises:
        PluginError: the plug-in returned something other than records; names the method, file and line.
        UserError: a record without a prompt, or an error of a built-in set.
    """
    if is_own(type(source)):
        return source.records(checked=False) if isinstance(source, PromptFile) else source.records()
    records: object = source.records()
    where = defined(source, "records")
    rule = 'a list of mappings such as {"prompt": "1+1:", "answer": "2"}'
    if isinstance(records, str | bytes | Mapping) or not isinstance(records, Sequence):
        raise PluginError.returned(where, f"a {type(records).__name__}, not a list", rule)
    for i, record in enumerate(records, 1):
        if not isinstance(record, Mapping):
            raise PluginError.returned(where, f"a {type(record).__name__} as record {i}", rule)
        try:
            _checked(record, f"record {i}".__str__)
        except UserError as error:
            raise PluginError.returned(where, error.problem, rule) from None
    return records


def _read(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Return a row as a record: columns renamed, halves of characters escaped, which no tokenizer takes."""
    record = map_columns(row, columns)
    try:
        return {whole(name): whole_values(value) for name, value in record.items()}
    except RecursionError:  # levels by the hundred hold no prompt
        return record


def _is_file(path: str, *, folder: bool = False) -> bool:
    try:
        return Path(path).is_dir() if folder else Path(path).is_file()
    except (OSError, ValueError):  # too long, or with a null character
        return False


def _check_columns(rows: Sequence[Mapping[str, Any]], columns: Columns, where: str) -> None:
    """Refuse a mapping that names a column no record has."""
    for ours, source in absent_columns(rows, columns):
        names = {name for row in rows for name in row}
        near = did_you_mean(source, names).partition("?")[0]
        hint = f" ({near}?)" if near.startswith("did you mean") else ""
        raise UserError(
            f"data.columns.{ours}",
            f"is {source!r}, which is not a column of {where}{hint}; it has {_shown(names)}",
            fix=f"data.columns: {{{ours}: <one of them>}}; PromptFile gives a file columns of its own",
        )


def _shown(names: set[str] | Mapping[str, Any]) -> str:
    """Return column names for a message. A table without a header has a record there, so only likely names show."""
    columns = sorted(str(name) for name in names)
    if any(len(name) > _SHOWN_CHARACTERS or "\n" in name for name in columns):
        return f"{len(columns)} columns whose names do not look like names: is the first line of the file missing?"
    more = len(columns) - _SHOWN_NAMES
    return (", ".join(columns[:_SHOWN_NAMES]) or "none") + (f" and {more} more" if more > 0 else "")


def _checked(record: Mapping[str, Any], where: Callable[[], str]) -> Record:
    prompt = record.get("prompt")
    if isinstance(prompt, str) and prompt:
        return record
    if prompt is None:
        raise UserError(
            "data.columns",
            f"{where()} has no column 'prompt'; it has {_shown(record)}",
            fix="map it: data.columns: {prompt: <name of the column>}",
        )
    messages = isinstance(prompt, list) and all(isinstance(m, dict) and "role" in m for m in prompt) and prompt
    if not messages:
        raise UserError("data", f"{where()}: 'prompt' must be a non-empty text or a list of chat messages")
    for number, message in enumerate(prompt, 1):
        content = message.get("content")
        calls = message.get("tool_calls")
        has_content = isinstance(content, str | list) or (content is None and calls)
        if not (has_content and isinstance(message["role"], str)):
            raise UserError(
                "data",
                f"{where()}: 'prompt', message {number}: must have a text as 'role', and a text or parts as 'content'",
            )
    return record
