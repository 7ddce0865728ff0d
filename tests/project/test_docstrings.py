"""First lines of docstrings say what a thing is or does (CONTRIBUTING.md), in the words of the field."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests import ROOT

BANNED = {
    r"(What|How|Where|When|Who|Which|Whether)\b": "no relative clause as a sentence: name the noun, or say True if",
    r"(It|Its|They|Their|Those|That)\b": "the noun that a pronoun stands for is elsewhere",
    r"(Of|As|By|From|Without|Because)\b": "a phrase is no sentence: say the noun or the verb first",
    r"One more\b": "say one more of what",
}
"""Beginning of a first line -> why it is not used."""


def complaints(source: str) -> Iterator[str]:
    """Yield each first line of a module, class or function that begins in a banned way, and why."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        for pattern, why in BANNED.items():
            if re.match(pattern, first):
                yield f"{getattr(node, 'lineno', 1)}: {first!r}: {why}"


def test_first_lines_name_what_they_are_about() -> None:
    files = sorted((ROOT / "gspo_lightning").rglob("*.py"))
    assert len(files) > 500
    found = [f"{file.relative_to(ROOT)}:{line}" for file in files for line in complaints(file.read_text("utf-8"))]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line", ["What decides it.", "They have been started.", "Of a run.", "One more update.", "Whether it works."]
)
def test_a_banned_beginning_is_found(line: str) -> None:
    assert len(list(complaints(f'def f():\n    """{line}"""'))) == 1
    assert not list(complaints('def f():\n    """Inputs for choosing a weight transport."""'))
