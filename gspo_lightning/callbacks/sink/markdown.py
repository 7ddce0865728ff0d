"""Tables of Markdown that nothing in a cell can break."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["markdown_table"]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], code: Collection[str] = ()) -> str:
    r"""Rows of texts under the names of their columns; those of the columns ``code`` in backticks, and cut if long.

    >>> print(markdown_table(["what", "said"], [["a|b", "1 | 2"]], code={"said"}))
    | what | said |
    |---|---|
    | a\|b | `1 \| 2` |
    """
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = zip(columns, row, strict=True)
        shown = [_code(cell) if name in code else cell.replace("|", "\\|") for name, cell in cells]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def _code(text: str, limit: int = 400) -> str:
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "`" + short.replace("`", "'").replace("|", "\\|").replace("\n", "⏎") + "`" if short else " "
