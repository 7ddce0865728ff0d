"""Read the problems of a suite from a folder of files or from the hub."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.data.corpus.files import SUFFIXES
from gspo_lightning.data.prompts.files import open_prompts, read_prompts
from gspo_lightning.data.prompts.prompt_set import Record, map_columns
from gspo_lightning.training.suites.suite import Suite

_WINDOW = re.compile(r"(\d{4}(?:-\d\d){0,2})?\.\.(\d{4}(?:-\d\d){0,2})?")


@dataclass(frozen=True)
class Problem:
    """One problem: its id in the data, the prompt for the model, and the columns for the reward."""

    id: str
    prompt: str
    columns: Mapping[str, Any]

    @property
    def names(self) -> set[str]:
        """Names that may stand for this problem in a list of faulty ones: its id, and its title with hyphens."""
        title = str(self.columns.get("title") or "").strip().lower()
        return {self.id, re.sub(r"[^a-z0-9]+", "-", title).strip("-")}

    @property
    def sha256(self) -> str:
        """Hash of the prompt, so that answers are never graded against another wording."""
        return hashlib.sha256(self.prompt.encode()).hexdigest()

    @property
    def told(self) -> dict[str, Any]:
        """Columns for the reward, in the order of their names."""
        return {name: self.columns[name] for name in sorted(self.columns) if name not in ("id", "prompt")}

    @cached_property
    def record_sha256(self) -> str:
        """Hash of the columns given to a reward, so that verdicts from different answers are never compared.

        Computed once: records may hold megabytes of tests.
        """
        return hashlib.sha256(json.dumps(self.told, default=repr).encode()).hexdigest()


def data_file(suite: Suite, folder: Path) -> Path:
    """Return the file of a suite's records: ``FOLDER/<suite>.jsonl`` etc., or the only one in ``FOLDER/<suite>/``.

    Raises:
        UserError: no file or several; says which names were looked for.
    """
    if not folder.is_dir():
        raise UserError("--data", f"{folder} is not a folder")
    candidates = [folder / f"{suite.name}{suffix}" for suffix in SUFFIXES]
    files = [file for file in candidates if file.is_file()]
    subfolder = folder / suite.name
    if not files and subfolder.is_dir():
        files = sorted(file for file in subfolder.iterdir() if file.is_file() and file.suffix in SUFFIXES)
        files = [file for file in files if file.stem in ("problems", "test")] or files
    if len(files) != 1:
        raise UserError(
            "--data",
            f"{folder} holds {len(files) or 'no'} file{'s' if files else ''} of the suite {suite.name!r}",
            fix=f"write {suite.name}.jsonl or {suite.name}.parquet, or a folder {suite.name} with one such file",
        )
    return files[0]


def read_problems(suite: Suite, folder: Path | None, window: str = "") -> list[Problem]:
    """Read the problems of a suite, in the order of the data. If no record has an id, they are numbered from 1.

    Args:
        suite: the suite.
        folder: of files; None takes the suite's own data source.
        window: a name of :attr:`Suite.windows`, or ``FROM..TO`` (both ends included, each may be left out).

    Raises:
        UserError: the data are missing, a record has no id or prompt, two have one id, or a window has no problem.
    """
    if folder is None and not suite.data:
        raise UserError("--data", f"the suite {suite.name!r} does not say where its data are", fix="give a folder")
    source = str(data_file(suite, folder)) if folder is not None else suite.data
    source_name = Path(source).name if isinstance(source, str) else type(source).__name__
    columns = {"prompt": "prompt", **suite.columns}
    id_column = str(columns.pop("id", "id"))
    combined = {name: source_columns for name, source_columns in columns.items() if isinstance(source_columns, list)}
    plain = {name: source_column for name, source_column in columns.items() if name not in combined}
    records: Sequence[Record] = read_prompts(open_prompts(source, plain))
    if combined:
        records = [map_columns(record, combined) for record in records]
    numbered = not any(name in record for record in records for name in (id_column, "id"))
    if window:
        records = _within(records, suite, window)
    template = _template(suite)
    problems: dict[str, Problem] = {}
    for number, record in enumerate(records, 1):
        where = f"{source_name}, record {number}"
        value = number if numbered else record.get(id_column, record.get("id"))
        if value is None or value == "":
            raise UserError(where, f"has no {id_column!r}, and others have", fix="give each an id")
        identifier = str(value)
        if identifier in problems:
            raise UserError(where, f"has the id of another one: {identifier[:80]!r}")
        problems[identifier] = Problem(identifier, _message(template, record, suite.name, where), record)
    return list(problems.values())


def _message(template: Template, record: Mapping[str, Any], suite: str, where: str) -> str:
    """Return the user's message: the suite's prompt, filled with a record."""
    if not isinstance(record["prompt"], str):
        raise UserError(where, "its prompt is a conversation; a suite writes one message itself")
    try:
        return template.render(record)
    except (TemplateError, TypeError, ValueError) as error:
        raise UserError(f"suite {suite}: prompt", f"cannot be filled for {where}: {first_line(error)}") from error


def _template(suite: Suite) -> Template:
    """Compile the prompt in a sandbox, as for chat templates: a suite's file is data."""
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    try:
        return environment.from_string(suite.prompt)
    except TemplateError as error:
        raise UserError(f"suite {suite.name}: prompt", f"is not a template: {first_line(error)}") from error


def _within(records: Sequence[Mapping[str, Any]], suite: Suite, window: str) -> list[Mapping[str, Any]]:
    """Return the records whose date is in a window, both ends included."""
    if suite.date is None:
        raise UserError("--suite", f"{suite.name} has no dates, so no window {window!r}")
    ends = _WINDOW.fullmatch(suite.windows.get(window, window))
    if ends is None or not any(ends.groups()):
        names = ", ".join(suite.windows) or "none"
        raise UserError(
            "--suite", f"{window!r} is not a window of {suite.name}; named are {names}", fix="or write 2024-10..2025-02"
        )
    first = ends[1] or "0000"
    last = ends[2] or "9999"
    dated = [(str(record.get(suite.date) or ""), record) for record in records]
    undated = sum(not re.match(r"\d{4}-\d\d", date) for date, _ in dated)
    if undated:
        raise UserError(f"suite {suite.name}", f"{undated} records have no date in {suite.date!r}")
    # texts compare as their dates do; an end without a day (2024-10) is compared with months
    inside = [record for date, record in dated if date[: len(first)] >= first and date[: len(last)] <= last]
    if not inside:
        raise UserError("--suite", f"{suite.name} has no problem in {window!r}")
    return inside
