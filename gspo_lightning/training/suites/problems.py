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
    found = [file for suffix in SUFFIXES if (file := folder / f"{suite.name}{suffix}").is_file()]
    inside = folder / suite.name
    if not found and inside.is_dir():
        found = sorted(f for f in inside.iterdir() if f.is_file() and f.suffix in SUFFIXES)
        found = [f for f in found if f.stem in ("problems", "test")] or found
    if len(found) != 1:
        raise UserError(
            "--data",
            f"{folder} holds {len(found) or 'no'} file{'s' if found else ''} of the suite {suite.name!r}",
            fix=f"write {suite.name}.jsonl or {suite.name}.parquet, or a folder {suite.name} with one such file",
        )
    return found[0]


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
    where = Path(source).name if isinstance(source, str) else type(source).__name__
    columns = {"prompt": "prompt", **suite.columns}
    named = str(columns.pop("id", "id"))
    several = {ours: theirs for ours, theirs in columns.items() if isinstance(theirs, list)}
    plain = {ours: theirs for ours, theirs in columns.items() if ours not in several}
    records: Sequence[Record] = read_prompts(open_prompts(source, plain))
    records = [map_columns(record, several) for record in records] if several else records
    numbered = not any(name in record for record in records for name in (named, "id"))
    if window:
        records = _within(records, suite, window)
    problems, seen, template = [], set[str](), _template(suite)
    for number, record in enumerate(records, 1):
        identifier = number if numbered else record.get(named, record.get("id"))
        if identifier is None or identifier == "":
            raise UserError(f"{where}, record {number}", f"has no {named!r}, and others have", fix="give each an id")
        if str(identifier) in seen:
            raise UserError(f"{where}, record {number}", f"has the id of another one: {str(identifier)[:80]!r}")
        seen.add(str(identifier))
        problems.append(
            Problem(str(identifier), _asked(template, record, suite.name, f"{where}, record {number}"), record)
        )
    return problems


def _asked(template: Template, record: Mapping[str, Any], suite: str, where: str) -> str:
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
    if suite.date is None:
        raise UserError("--suite", f"{suite.name} has no dates, so no window {window!r}")
    found = _WINDOW.fullmatch(suite.windows.get(window, window))
    if found is None or not any(found.groups()):
        known = ", ".join(suite.windows) or "none"
        raise UserError(
            "--suite", f"{window!r} is not a window of {suite.name}; named are {known}", fix="or write 2024-10..2025-02"
        )
    first, last = found[1] or "0000", found[2] or "9999"
    dated = [(str(record.get(suite.date) or ""), record) for record in records]
    if undated := sum(not re.match(r"\d{4}-\d\d", date) for date, _ in dated):
        raise UserError(f"suite {suite.name}", f"{undated} records have no date in {suite.date!r}")
    kept = [record for date, record in dated if date[: len(first)] >= first and date[: len(last)] <= last]
    if not kept:
        raise UserError("--suite", f"{suite.name} has no problem in {window!r}")
    return kept
