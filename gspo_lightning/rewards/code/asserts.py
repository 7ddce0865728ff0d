"""Tests that are assert statements, taken apart: the calls of the program, and what must hold of their results.

Only the calls are run beside the program. ``assert f([1, 2]) == 3`` becomes the call ``f([1, 2])`` and the expected
value 3, which stays outside; where more has to be computed, as in ``assert abs(f(1) - 0.5) < 1e-6``, that is done in a
second sandbox which holds the results of the calls and no program.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Assertion", "UnsupportedTestError", "check_function", "parse"]

_NOTHING = object()


class UnsupportedTestError(ValueError):
    """A test that cannot be taken apart; the message says why."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """A test: ``calls`` is the expression whose value (a tuple, one item a call) the program must give.

    If ``literal`` is True, the first item must equal ``expected``. Otherwise ``condition`` is evaluated by itself, with
    the results named ``_0``, ``_1`` ... ``setup`` is the code that the calls need, ``condition_setup`` the condition's.
    """

    calls: str
    setup: str
    literal: bool
    expected: Any = None
    condition: str = ""
    condition_setup: str = ""
    results: int = 1


def parse(test: str, setup: str = "", entry_point: str | None = None) -> list[Assertion]:
    """The assertions of a test.

    Args:
        test: assert statements, and whatever they need (imports, helper functions) before them.
        setup: more of what they need.
        entry_point: the function under test; None takes every function that is called but not known.

    Raises:
        UnsupportedTestError: no Python, no assert, no call of the program, or calls inside loops and functions.
    """
    try:
        body = [*ast.parse(setup).body, *ast.parse(test).body]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnsupportedTestError(f"the test is no Python: {error}") from error
    helpers = [s for s in body if not isinstance(s, ast.Assert)]
    names = _entries(body, entry_point)
    for statement in helpers:
        if any(_is_call(node, names) for node in ast.walk(statement)):
            raise UnsupportedTestError(f"the test calls the program outside an assert (line {statement.lineno})")
    found = [_assertion(s, helpers, names) for s in body if isinstance(s, ast.Assert)]
    if not found:
        raise UnsupportedTestError("the test has no assert")
    return [a for a in found if a is not None]


def check_function(test: str, entry_point: str) -> str:
    """HumanEval's ``def check(candidate): ...`` as plain statements about the entry point.

    Raises:
        UnsupportedTestError: there is no such function.
    """
    try:
        body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnsupportedTestError(f"the test is no Python: {error}") from error
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "check" and len(statement.args.args) == 1:
            candidate = statement.args.args[0].arg
            before = [s for s in body if s is not statement and not _is_metadata(s)]
            renamed = _Rename({candidate: ast.Name(entry_point, ast.Load())})
            return "\n".join(ast.unparse(renamed.visit(s)) for s in [*before, *statement.body])
    raise UnsupportedTestError("the test defines no check(candidate)")


def _entries(body: list[ast.stmt], entry_point: str | None) -> set[str]:
    if entry_point is not None:
        return {entry_point}
    known = set(dir(builtins)).union(*(_bound(s) for s in body))
    return {
        node.func.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in known
    }


def _assertion(statement: ast.Assert, helpers: list[ast.stmt], names: set[str]) -> Assertion | None:
    """One assert; None if it says nothing about the program (``assert True, "fine so far"``)."""
    taken = _TakeCalls(names)
    condition = taken.visit(statement.test)
    if not taken.calls:
        if any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(statement.test)):
            raise UnsupportedTestError(f"line {statement.lineno} uses the program other than by a call")
        return None
    if taken.nested:
        raise UnsupportedTestError(f"line {statement.lineno} calls the program inside a loop or a function")
    setup = _needed(taken.calls, helpers)
    calls = "(" + "".join(f"{ast.unparse(call)}, " for call in taken.calls) + ")"
    expected = _literal(condition)
    if expected is not _NOTHING:
        return Assertion(calls, setup, literal=True, expected=expected)
    return Assertion(
        calls, setup, False, None, ast.unparse(condition), _needed([condition], helpers), len(taken.calls)
    )  # fmt: skip


class _TakeCalls(ast.NodeTransformer):
    """Puts ``_0``, ``_1`` ... in the place of the program's calls."""

    def __init__(self, names: set[str]) -> None:
        self.names, self.calls, self.nested = names, list[ast.expr](), False

    def visit(self, node: ast.AST) -> Any:
        if _is_call(node, self.names):
            assert isinstance(node, ast.expr)
            self.calls.append(node)
            return ast.Name(f"_{len(self.calls) - 1}", ast.Load())
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            self.nested |= any(_is_call(inner, self.names) for inner in ast.walk(node))
        return self.generic_visit(node)


class _Rename(ast.NodeTransformer):
    def __init__(self, names: dict[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.names.get(node.id, node)


def _literal(condition: ast.expr) -> Any:
    """The value that ``_0`` must equal, if that is all that the condition says."""
    if isinstance(condition, ast.Compare) and len(condition.ops) == 1 and isinstance(condition.ops[0], ast.Eq):
        sides = [condition.left, condition.comparators[0]]
        for one, other in (sides, sides[::-1]):
            if isinstance(one, ast.Name) and one.id == "_0":
                try:
                    return ast.literal_eval(other)
                except (ValueError, TypeError, RecursionError):
                    return _NOTHING
    return _NOTHING


def _needed(parts: Iterable[ast.AST], helpers: list[ast.stmt]) -> str:
    """The helper statements that bind a name that is used, and those that they need themselves."""
    wanted = {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}
    kept: list[ast.stmt] = []
    for statement in reversed(helpers):
        if _bound(statement) & wanted:
            wanted |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
            kept.insert(0, statement)
    return "\n".join(ast.unparse(s) for s in kept)


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    found = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return found


def _is_call(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _is_metadata(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and _bound(statement) == {"METADATA"}
