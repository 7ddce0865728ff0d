"""Escape untrusted text (prompts, answers, files, errors of servers) for terminals, pages and pictures.

Nothing here imports torch: reward workers send requests to servers, too.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move a cursor, colour a terminal, reverse text or end a line; all but tab and line feed."""
_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")


def visible(text: object) -> str:
    r"""Escape control characters as Python writes them, all but tab and line feed.

    >>> print(visible("\x1b[31mred\r\n[/INST] \u202eleft"))
    \x1b[31mred
    [/INST] \u202eleft
    """
    return _CONTROL.sub(lambda m: m[0].encode("unicode_escape").decode(), str(text).replace("\r\n", "\n"))


def whole(text: str) -> str:
    r"""Escape each half of a character (a lone surrogate), which no tokenizer, file or socket takes.

    Decoded tokens have none. They come from JSON (``"\\ud83d"``) that a policy, a client or a server wrote, and are
    escaped wherever such JSON is read; the tokens of a policy stay as they are.

    >>> whole("6\ud83d7 \U0001f600")
    '6\\ud83d7 😀'
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def whole_values(value: Any) -> Any:
    r"""Return JSON values with :func:`whole` texts and names.

    Raises:
        RecursionError: they are nested in some hundred levels.

    >>> whole_values({"a\ud83d": ["\ude00", 1, None]})
    {'a\\ud83d': ['\\ude00', 1, None]}
    """
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Mapping):
        return {whole_values(name): whole_values(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(whole_values, value)) if type(value) in (list, tuple) else value
    return value


# terminals -------------------------------------------------------------------------------------------------------


def say(*texts: object, file: TextIO | None = None, flush: bool = False) -> None:
    """Print text that may be untrusted; the only ``print`` of this package."""
    print(*map(visible, texts), file=sys.stdout if file is None else file, flush=flush)


def terminal(*, soft_wrap: bool = False) -> Console:
    """Return Rich's console for tables and lines, without markup or emoji, with control characters made visible."""
    from rich.console import Console

    class _Plain(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(visible(text), **options)

    return _Plain(soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)


def show_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback as ``sys.excepthook`` does, for exceptions whose message may hold untrusted text."""
    say("".join(traceback.format_exception(kind, error, trace)), file=sys.stderr)


class _Record(logging.LogRecord):
    def getMessage(self) -> str:  # noqa: N802 (logging's name)
        return visible(super().getMessage())


@contextlib.contextmanager
def escaped_logs() -> Iterator[None]:
    """Make control characters visible in log lines and warnings of all packages."""
    record_factory = logging.getLogRecordFactory()
    format_warning = warnings.formatwarning
    logging.setLogRecordFactory(_Record)
    warnings.formatwarning = lambda *args, **options: visible(format_warning(*args, **options))
    try:
        yield
    finally:
        logging.setLogRecordFactory(record_factory)
        warnings.formatwarning = format_warning


# Markdown --------------------------------------------------------------------------------------------------------


def cell(text: object) -> str:
    r"""Escape text for a line or a table cell of Markdown.

    >>> print(cell("<b>|*a_b* _c_\nd"))
    &lt;b&gt;\|\*a_b\* \_c\_ d
    """
    line = visible(text).replace("\n", " ").replace("\t", " ")
    escaped = _MARKDOWN.sub(r"\\\g<0>", line)
    return re.sub(r"&(?=[#\w])", "&amp;", escaped).replace("<", "&lt;").replace(">", "&gt;")


def code(text: object, limit: int | None = None, *, table: bool = True) -> str:
    r"""Format text as code on one line, shortened to ``limit``.

    Args:
        text: shown as it is, but for backticks, line feeds and control characters.
        limit: characters; None: as many as there are.
        table: it stands in a table, where a bar has to be escaped even in code.

    >>> print(code("a|`b`\n"), code("a|b", table=False))
    `a\|'b'⏎` `a|b`
    """
    full = str(text)
    cut = full if limit is None or len(full) <= limit else full[: limit - 1] + "…"
    short = visible(cut).replace("`", "'").replace("\n", "⏎")
    if table:  # in a table, a bar ends a cell even in code, unless exactly one backslash precedes it
        short = re.sub(r"(?<=\\)\|", "¦", short).replace("|", "\\|")
    return f"`{short}`" if short else " "


def fenced(text: object, language: str = "") -> str:
    """Return text in a fence that the text cannot end.

    >>> print(fenced("```", "text"))
    ````text
    ```
    ````
    """
    content = visible(text)
    longest_run = max(map(len, re.findall("`+", content)), default=0)
    fence = "`" * max(3, 1 + longest_run)
    return f"{fence}{language}\n{content}\n{fence}"
