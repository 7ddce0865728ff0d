"""Parse one line of JSON lines as an object, with messages for malformed ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, NoReturn

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import DeepJSONError, load_json

Row = dict[str, Any]
LONGEST_LINE = 1 << 29
"""Most bytes of a line. Records with tests of programs have up to some hundred MB."""


def numbered(file: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Yield every line of a file with its number, from 1.

    Raises:
        UserError: a line is longer than any record: a compressed file of some MB may unpack to a line of many GB.
    """
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        check_length(len(line), f"{name}:{number}")
        yield number, line


def check_length(size: int, where: str) -> None:
    """Refuse a line of more bytes than any record has.

    Raises:
        UserError: the line is too long; names it.
    """
    if size > LONGEST_LINE:
        raise UserError(
            where,
            f"has more than {LONGEST_LINE >> 20} MiB in one line",
            fix="is a line break missing? Leave the record out otherwise",
        )


def parse_line(line: bytes, where: str, *, strict: bool = False) -> Row:
    """Return the object on a line.

    Args:
        line: with or without its end.
        where: file and line, for messages.
        strict: refuse NaN and infinities, which are not JSON.

    Raises:
        UserError: the line holds something else; nothing of it is shown.
    """
    try:
        text = line.decode("utf-8-sig")  # some editors put a byte-order mark first
        row = load_json(text, parse_constant=_refused) if strict else load_json(text)
    except UnicodeDecodeError as error:
        raise no_text(where, error) from None
    except _NotJSONError as error:
        raise UserError(where, f"holds {error}, which is not JSON", fix="write null, or leave the field out") from None
    except ValueError as error:
        raise no_json(where, error, "one object a line") from None
    if not isinstance(row, dict):
        raise UserError(where, f"is a JSON {type(row).__name__}, not an object")
    return row


def no_text(where: str, error: UnicodeDecodeError) -> UserError:
    """Return the error for bytes that are not text."""
    return UserError(where, f"is not UTF-8: {error.reason}", fix="save it as UTF-8")


def no_json(where: str, error: Exception, fix: str) -> UserError:
    """Return the error for a text that is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        problem = f"{error.msg} at column {error.colno}"
    elif isinstance(error, DeepJSONError):
        problem = str(error)
    else:
        problem = type(error).__name__
    return UserError(where, f"is not JSON: {problem}", fix=fix)


class _NotJSONError(ValueError):
    """NaN or an infinity in JSON."""


def _refused(constant: str) -> NoReturn:
    raise _NotJSONError(constant)
