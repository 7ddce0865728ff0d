"""Markdown tables whose cells are escaped."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gspo_lightning.escape import cell
from gspo_lightning.escape import code as code_of

__all__ = ["markdown_table"]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], code: Collection[str] = ()) -> str:
    r"""Return a Markdown table; cells of the columns ``code`` are put in backticks, and cut if long.

    >>> print(markdown_table(["what", "said"], [["a|b", "1 | 2"]], code={"said"}))
    | what | said |
    |---|---|
    | a\|b | `1 \| 2` |
    """
    lines = [f"| {' | '.join(map(cell, columns))} |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = zip(columns, row, strict=True)
        shown = [code_of(text, 400) if name in code else cell(text) for name, text in cells]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)
