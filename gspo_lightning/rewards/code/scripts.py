"""Scripts: tests that cannot be split (loops, variables, ``try``, objects), run unchanged, away from the program.

The script runs in a sandbox of its own, where the program's names are stand-ins: calling one sends the arguments to the
program's sandbox and returns its result (docs/sandbox.md).
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable

from gspo_lightning.rewards.code.asserts import (
    STANDARD,
    UnsupportedTestError,
    bound,
    bound_anywhere,
    called,
    imports,
    read_python,
)
from gspo_lightning.rewards.sandbox.examination import Script

_SOLUTION = ("solution", "main")
"""Module names under which tests import the program (KodCode, pytest-style sets)."""


_SHARED = ("patch", "monkeypatch", "tempfile", "tmp_path", "write_text", "write_bytes", "makedirs", "mkdir")


def script_of(test: str, setup: str = "", entry_point: str | None = None, prefix: str = "") -> Script:
    """Build a script from a test, with the names of the program that it uses.

    Args:
        test: the test's code.
        setup: code before it.
        entry_point: the function under test; in the test, an expression like ``Solution().add`` is ``candidate``.
        prefix: code in front of the program; helpers that it defines are trusted, and not the program's.

    Raises:
        UnsupportedTestError: not Python, no use of the program, or it catches the program's own exceptions.
    """
    body = read_python(f"{setup}\n{test}")
    names = {} if entry_point is None else {_name(entry_point): entry_point}
    kept: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and statement.module in _SOLUTION and not statement.level:
            names |= {alias.asname or alias.name: alias.name for alias in statement.names if alias.name != "*"}
        elif not (isinstance(statement, ast.Import) and statement.names[0].name in _SOLUTION):
            kept.append(statement)
    kept = [*_helpers(prefix, names), *kept]
    bound_names = set(dir(builtins)).union({"__name__"}, *(bound_anywhere(s) for s in kept))
    free = _loaded(kept) - bound_names - names.keys()
    modules = (free & STANDARD) - {name for statement in kept for name in called(statement)}
    kept = [*imports(modules), *kept]
    names |= {name: name for name in free - modules}
    if not names:
        raise UnsupportedTestError("the test uses nothing of the program")
    for node in (n for statement in kept for n in ast.walk(statement)):
        if isinstance(node, ast.ExceptHandler) and node.type is not None and _loaded([node.type]) & names.keys():
            raise UnsupportedTestError(f"line {node.lineno} catches an exception of the program's own")
    _refuse_shared_state(kept)
    text = "\n".join(ast.unparse(statement) for statement in kept)
    return Script(text, names, frozenset(name for name in names if name[:1].isupper()))


def _refuse_shared_state(body: Iterable[ast.stmt]) -> None:
    """Refuse tests that share files or patches with the program, which runs in another process and folder.

    Raises:
        UnsupportedTestError: the test writes files, or replaces what the program would use.
    """
    for node in (n for statement in body for n in ast.walk(statement)):
        word = ""
        if isinstance(node, ast.Name):
            word = node.id
        elif isinstance(node, ast.arg):
            word = node.arg
        elif isinstance(node, ast.Attribute):
            word = node.attr
        writes = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
        replaces = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and word in ("stdin", "input")
        if word in _SHARED or writes or replaces:
            culprit = word or "open"
            raise UnsupportedTestError(
                f"the test shares files or patches with the program ({culprit}), which cannot be"
            )


def _name(entry_point: str) -> str:
    return entry_point if entry_point.isidentifier() else "candidate"


def _helpers(prefix: str, names: Iterable[str]) -> list[ast.stmt]:
    """Return the prompt's definitions other than the functions that the program must define."""
    try:
        body = read_python(prefix)
    except UnsupportedTestError:
        return []  # such as the beginning of an expression
    return [s for s in body if not bound(s) & set(names)]


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
