"""``gspo data convert``: rename the columns of public data sets, and convert between file formats."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.escape import say
from gspo_lightning.core.parsing import load_json
from gspo_lightning.data.corpus.files import checked_prompt, format_of
from gspo_lightning.data.corpus.output import Outputs

Columns = Mapping[str, str | list[str]]
KNOWN_SETS: Mapping[str, Columns] = {
    "gsm8k": {"prompt": "question", "answer": "answer"},
    "math": {"prompt": "problem", "answer": "solution"},
    "dapo17k": {"prompt": "prompt", "answer": "reward_model.ground_truth"},
    "livecodebench": {
        "prompt": ["question_content", "starter_code"],
        "answer": ["public_test_cases", "private_test_cases", "metadata", "starter_code"],
    },
    "taco": {"prompt": ["question", "starter_code"], "answer": ["input_output", "tags", "raw_tags"]},
    "codecontests": {
        "prompt": "description",
        "answer": [
            "public_tests", "private_tests", "generated_tests", "time_limit", "input_file", "output_file", "cf_tags",
        ],
    },
    "aime2024": {"id": "id", "prompt": "problem", "answer": "answer"},
    "math500": {"id": "unique_id", "prompt": "problem", "answer": "answer"},
    "puzzles": {"prompt": "question", "answer": "answer"},
    "verl": {"prompt": "prompt", "answer": "reward_model.ground_truth"},
    "nemo_gym": {
        "prompt": "responses_create_params.input", "answer": "expected_answer",
        "tools": "responses_create_params.tools",
    },
    "verifiers": {"prompt": "question", "answer": "answer", "tools": "info.oai_tools"},
    "verifiers_messages": {"prompt": "prompt", "answer": "answer", "tools": "info.oai_tools"},
    "openrlhf": {"prompt": "input", "answer": "label"},
    "openrlhf_messages": {"prompt": "context_messages", "answer": "label"},
    "openrlhf_sft": {"prompt": "question", "completion": "response"},
    "messages": {"messages": "messages"},
    "ours": {"prompt": "prompt"},
}  # fmt: skip
"""Our name -> theirs, as ``data.columns``; ``verl`` and below are layouts of other frameworks (docs/data.md).

Sets with the same columns cannot be told apart: name the set.
"""
_OPTIONAL = ("answer", "tools")
"""Words that records of another framework may lack: verifiers of its own decide what they hold."""
_TELLING: Mapping[str, Collection[str]] = {
    "verl": ("prompt", "reward_model"),
    "nemo_gym": ("responses_create_params",),
    "verifiers": ("question", "answer", "info"),
    "verifiers_messages": ("prompt", "answer", "info"),
    "openrlhf_messages": ("context_messages",),
    "openrlhf": ("input", "label"),
    "openrlhf_sft": ("question", "response"),
    "livecodebench": ("question_content", "public_test_cases", "private_test_cases"),
    "taco": ("question", "input_output", "starter_code"),
    "codecontests": ("description", "public_tests", "generated_tests"),
    "math500": ("unique_id", "problem", "solution", "answer"),
    "math": ("problem", "solution", "level", "type"),
    "aime2024": ("problem", "solution", "answer"),
    "puzzles": ("question", "answer", "family"),
    "gsm8k": ("question", "answer"),
    "ours": ("prompt",),
    "messages": ("messages",),
}
"""Columns by which a set is recognised; the first match is taken, so more specific sets stand first."""
DESCRIPTION = "Write records with the columns of ours (prompt, answer ...) from a file of a public set, or of your own."
Row = tuple[Callable[[], str], Any]
"""Record, preceded by a function that returns its name in messages."""


def recognised(names: Collection[str]) -> str | None:
    """Return the known set with these columns; None if there is none.

    >>> recognised({"question", "answer"}), recognised({"problem", "solution", "level", "type"}), recognised({"text"})
    ('gsm8k', 'math', None)
    """
    return next((name for name, columns in _TELLING.items() if set(columns) <= set(names)), None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "--input",
        nargs="+",
        type=Path,
        required=True,
        metavar="FILE",
        help="any that prompts are read from",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=".jsonl or .parquet")
    parser.add_argument("--set", choices=KNOWN_SETS, help="whose columns they are (default: told by their names)")
    parser.add_argument(
        "--columns", metavar="JSON", help='for others: our word -> theirs, as data.columns, {"prompt": "question"}'
    )


def run(options: argparse.Namespace) -> None:
    """Convert the input files.

    Raises:
        UserError: an option or a record is wrong, or the columns match no known data set.
    """
    for number, path in enumerate(options.input):
        if not path.is_file():
            raise UserError("--input", f"{path} {'is a folder' if path.is_dir() else 'does not exist'}")
        if any(path.samefile(other) for other in options.input[:number]):
            raise UserError("--input", f"{path} is given twice", fix="name each file once")
    kind = format_of(options.output, "--output")
    if options.set and options.columns:
        raise UserError("--columns", "says what --set says already", fix="give one of them")
    columns = _columns(options.columns) if options.columns else None
    with Outputs([options.output], options.input) as outputs:
        records = _records(options.input, columns, options.set)
        count = _write(outputs.path(options.output), kind, records)
    say(f"{options.output}: {count:,} records")


def _columns(text: str) -> Mapping[str, Any]:
    try:
        columns = load_json(text)
    except ValueError as error:
        raise UserError("--columns", f"is not JSON: {error}", fix='write \'{"prompt": "question"}\'') from error
    is_mapping = isinstance(columns, dict) and columns
    if not is_mapping or not all(isinstance(column, str | list) for column in columns.values()):
        raise UserError("--columns", "is not a mapping of names", fix='write \'{"prompt": "question"}\'')
    return dict(columns)


def _records(paths: Sequence[Path], columns: Mapping[str, Any] | None, named: str | None) -> Iterator[Row]:
    from gspo_lightning.data.corpus.files import SUFFIXES, suffix_of
    from gspo_lightning.data.prompts.formats import place_of, read_rows
    from gspo_lightning.data.prompts.prompt_set import absent_columns, map_columns  # torch

    for path in paths:
        if not suffix_of(str(path)):
            raise UserError("--input", f"{path.name} is not a file of records", fix=f"one of {', '.join(SUFFIXES)}")
        rows = read_rows(str(path))
        if not rows:
            raise UserError(path.name, "holds no records")
        names = list(rows[0])
        mapping = columns or KNOWN_SETS[named or _set_of(path, names)]
        absent = absent_columns(rows, mapping)
        if columns is None:  # a known set, whose records may do without some
            optional = {name for name, _ in absent if name in _OPTIONAL}
            mapping = {name: column for name, column in mapping.items() if name not in optional}
            absent = [(name, column) for name, column in absent if name not in optional]
        if absent:
            name, column = absent[0]
            near, _, _ = did_you_mean(column, names).partition("?")
            hint = f" ({near}?)" if near.startswith("did you mean") else ""
            raise UserError(path.name, f"no record has the column {column!r} for {name!r}{hint}", fix="--columns JSON")
        for number, row in enumerate(rows):
            record = map_columns(row, mapping)
            where = partial(place_of, rows, number, path.name)
            if "messages" in mapping:
                _check_conversation(record, where)
            else:
                checked_prompt(record, "prompt", where, "--columns JSON")
            yield where, record


def _check_conversation(record: Mapping[str, Any], where: Callable[[], str]) -> None:
    from gspo_lightning.data.prompts.demonstrations import read_demonstrations

    read_demonstrations([record], lambda _: where())


def _set_of(path: Path, names: Sequence[str]) -> str:
    known_set = recognised(names)
    if known_set is None:
        problem = f"has the columns of no set that is known: {', '.join(sorted(names)[:20])}"
        raise UserError(path.name, problem, fix='--columns \'{"prompt": "<one of them>", "answer": "<another>"}\'')
    say(f"{path.name}: the columns of {known_set}")
    return known_set


def _write(path: Path, kind: str, records: Iterator[Row]) -> int:
    count = 0
    with tqdm(desc="convert", unit=" records", unit_scale=True) as bar:
        if kind == ".jsonl":
            with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                for where, record in records:
                    file.write(_line(record, where) + "\n")
                    bar.update(1)
                    count += 1
            return count
        return _write_table(path, [record for _, record in records])


def _write_table(path: Path, records: Sequence[Mapping[str, Any]]) -> int:
    """Write records with every column that one of them has; ``Table.from_pylist`` takes those of the first."""
    import pyarrow
    import pyarrow.lib
    import pyarrow.parquet

    names = dict.fromkeys(name for record in records for name in record)
    columns = {}
    for name in names:
        try:
            columns[name] = pyarrow.array([record.get(name) for record in records])
        except (pyarrow.lib.ArrowException, UnicodeEncodeError, OverflowError) as error:
            problem = f"a column cannot have one type in Parquet: {name!r}: {str(error).splitlines()[0]}"
            raise UserError("--output", problem, fix="write .jsonl") from error
    try:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    except pyarrow.lib.ArrowNotImplementedError as error:  # objects that are empty in every record
        raise UserError("--output", f"Parquet cannot hold the records: {error}", fix="write .jsonl") from error
    return len(records)


def _line(record: Any, where: Callable[[], str]) -> str:
    try:
        return json.dumps(record, ensure_ascii=False, default=_text, allow_nan=False)
    except TypeError as error:
        raise UserError(where(), str(error), fix="write .parquet") from error
    except ValueError as error:
        raise UserError(where(), "holds NaN or an infinity, which are not JSON", fix="write null instead") from error


def _text(value: Any) -> str:
    """Return the text of a value of a type that JSON lacks; bytes, such as a picture, have none."""
    if isinstance(value, bytes):
        raise TypeError("holds bytes, which are not JSON")
    return str(value)
