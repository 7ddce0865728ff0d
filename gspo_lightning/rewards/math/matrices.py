r"""Matrices that are named instead of written out: ``I_2``, ``\operatorname{diag}(1, 2)``; arrays in brackets."""

from __future__ import annotations

import re

_MATRIX = re.compile(r"\\begin\{[pbBvV]?matrix\}(.*?)\\end\{[pbBvV]?matrix\}", re.DOTALL)
_DIAGONAL = re.compile(r"\\(?:operatorname|text|mathrm)\s*\{\s*diag\s*\}\s*\(([^()]*)\)|\bdiag\s*\(([^()]*)\)")
_IDENTITY = re.compile(
    r"(?<![A-Za-z\\])(?:[IE]|\\(?:mathbf|mathrm|mathbb|text"
    r"|bm)\s*\{\s*[I1]\s*\})(?:_\{?(\d)(?:\s*\\times\s*\d)?\}?|(?![A-Za-z_]))"
)
_ARRAY = re.compile(
    r"(?:\\left)?\s*[(\[]\s*\\begin\{array\}\s*\{[lcr| ]*\}(.*?)\\end\{array\}\s*(?:\\right)?\s*[)\]]", re.DOTALL
)
_NESTED = re.compile(r"^\s*\[\s*(\[[^\[\]]*\](?:\s*,\s*\[[^\[\]]*\])+)\s*\]\s*$")
"""Matrix as a list of rows: ``[[1, 2], [3, 4]]``."""
_MOST = 6


def written_out(gold: str, given: str) -> tuple[str, str]:
    r"""Write the matrices of two answers out, if one of them has a matrix; the other gives an identity its size.

    >>> written_out(r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", "I")[1]
    '\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}'
    >>> written_out("x + 1", "I")
    ('x + 1', 'I')
    """
    texts = [_ARRAY.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", text) for text in (gold, given)]
    texts = [_NESTED.sub(_rows, text) for text in texts]
    texts = [_DIAGONAL.sub(_diagonal, text) for text in texts]
    sizes = [_size(text) for text in texts]
    size = sizes[0] or sizes[1]
    if size is None:
        return texts[0], texts[1]
    first, second = (_IDENTITY.sub(lambda m: _identity(int(m[1] or size)), text) for text in texts)
    return first, second


def _rows(match: re.Match[str]) -> str:
    rows = [row.replace(",", "&") for row in re.findall(r"\[([^\[\]]*)\]", match[1])]
    return "\\begin{pmatrix}" + "\\\\".join(rows) + "\\end{pmatrix}"


def _size(text: str) -> int | None:
    """Return the number of rows of the first square matrix of a text."""
    for match in _MATRIX.finditer(text):
        rows = [row for row in match[1].split("\\\\") if row.strip()]
        if 1 < len(rows) <= _MOST and all(row.count("&") == len(rows) - 1 for row in rows):
            return len(rows)
    return None


def _diagonal(match: re.Match[str]) -> str:
    return _with_diagonal([value.strip() for value in (match[1] or match[2] or "").split(",")]) or match[0]


def _identity(size: int) -> str:
    return _with_diagonal(["1"] * min(size, _MOST))


def _with_diagonal(values: list[str]) -> str:
    if not 1 < len(values) <= _MOST or not all(values):
        return ""
    rows = [["0"] * len(values) for _ in values]
    for place, value in enumerate(values):
        rows[place][place] = value
    body = "\\\\".join("&".join(row) for row in rows)
    return f"\\begin{{pmatrix}}{body}\\end{{pmatrix}}"
