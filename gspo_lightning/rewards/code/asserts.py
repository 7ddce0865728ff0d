"""Assert statements as tests, split into the program's calls and the conditions on their results.

Only the calls run beside the program. ``assert f([1, 2]) == 3`` becomes the call ``f([1, 2])`` and the expected value
3, which stays outside. A computed condition, as in ``assert abs(f(1) - 0.5) < 1e-6``, is evaluated in a second sandbox,
which holds the results of the calls and no program. A test that needs more is a script (``scripts.py``).
"""

from __future__ import annotations

import ast
import builtins
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_NOTHING = object()
STANDARD = sys.stdlib_module_names
_PARSER = threading.Lock()  # Python 3.11 counts the depth of a tree once for all threads: two at once raise SystemError


class UnsupportedTestError(ValueError):
    """A test that cannot be split; the message says why."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """A test: ``calls`` is an expression whose value (a tuple, one item a call) the program must give.

    If ``literal`` is True, the first item must equal ``expected``. Otherwise ``condition`` is evaluated by itself, with
    the results named ``_0``, ``_1`` ... ``setup`` is the code that the calls need, ``condition_setup`` the condition's.
    ``source`` is the whole original test, for results that are not plain data.
    """

    calls: str
    setup: str
    literal: bool
    expected: Any = None
    condition: str = ""
    condition_setup: str = ""
    results: int = 1
    source: str = ""
    steps: tuple[tuple[int, str], ...] = ()
    """The statements of ``setup``, each with its place in the test: a process runs it once for all assertions."""


def read_python(text: str) -> list[ast.stmt]:
    """Parse a text into statements; safe to call from several threads.

    Raises:
        UnsupportedTestError: the text is not Python.
    """
    try:
        with _PARSER:
            return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnsupportedTestError(f"the test is not Python: {error}") from error


def parse(test: str, setup: str = "", entry_point: str | None = None) -> list[Assertion]:
    """Parse the assertions of a test.

    Args:
        test: assert statements, preceded by the code they need (imports, helper functions).
        setup: more code they need.
        entry_point: the function under test; None takes every called function that is not otherwise known.

    Raises:
        UnsupportedTestError: not Python, no assert, no call of the program, or more than asserts and definitions.
    """
    body = [*read_python(setup), *read_python(test)]
    names = _entries(body, entry_point)
    bound_names = set[str]().union(*(bound_anywhere(statement) for statement in body))
    unknown = _names(body) - set(dir(builtins)) - STANDARD - names - bound_names
    if unknown:
        raise UnsupportedTestError(f"the test uses {min(unknown)} of the program")
    helpers: list[ast.stmt] = []
    passed: set[str] = set()
    assertions: list[Assertion | None] = []
    for statement in body:
        if isinstance(statement, ast.Assert):
            arguments = _names([node for node in ast.walk(statement) if _is_call(node, names)])
            assertions.append(_assertion(statement, helpers, names, passed))
            passed |= arguments
            continue
        if any(_is_call(node, names) for node in ast.walk(statement)):
            raise UnsupportedTestError(f"the test calls the program outside an assert (line {statement.lineno})")
        if not _defines_only(statement):
            raise UnsupportedTestError(f"the test does more than assert and define (line {statement.lineno})")
        helpers.append(statement)
    if not assertions:
        raise UnsupportedTestError("the test has no assert")
    return [a for a in assertions if a is not None]


def check_function(test: str, entry_point: str) -> str:
    """Rewrite HumanEval's ``def check(candidate): ...`` as plain statements about the entry point.

    Raises:
        UnsupportedTestError: there is no such function.
    """
    body = read_python(test)
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
    bound_names = set[str]().union(*(bound(statement) for statement in body))
    called_names = [called(statement) - bound_names for statement in body]
    unknown = set[str]().union(*called_names) - set(dir(builtins))
    if unknown:
        return unknown
    # a task may be called sum or max: the name that every assert calls
    in_asserts = [names for s, names in zip(body, called_names, strict=True) if isinstance(s, ast.Assert)]
    return set.intersection(*in_asserts) if in_asserts else set()


def called(statement: ast.stmt) -> set[str]:
    """Return the names called in a statement."""
    return {n.func.id for n in ast.walk(statement) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _assertion(statement: ast.Assert, helpers: list[ast.stmt], names: set[str], passed: set[str]) -> Assertion | None:
    """Split one assert; None if it does not test the program (``assert True, "fine so far"``).

    ``passed`` are the names in earlier calls of the program, which may have changed what they stand for.
    """
    source = f"{_needed_text([statement], helpers)}\n{ast.unparse(statement)}"
    taken = _TakeCalls(names)  # replaces the calls in the statement itself
    condition = taken.visit(statement.test)
    variables = {name for s in helpers if isinstance(s, ast.Assign | ast.AnnAssign) for name in bound(s)}
    arguments = _names(taken.calls) | passed
    shared = arguments & _names([condition]) & variables
    if shared:
        raise UnsupportedTestError(f"line {statement.lineno} looks at {min(shared)} after a call that may change it")
    if not taken.calls:
        if any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(statement.test)):
            raise UnsupportedTestError(f"line {statement.lineno} uses the program other than by a call")
        return None
    if taken.nested:
        raise UnsupportedTestError(f"line {statement.lineno} calls the program inside a loop or a function")
    results = {f"_{i}" for i in range(len(taken.calls))}
    bound_names = set(dir(builtins)).union(results, *(bound(s) for s in helpers))
    free = _names([condition]) - bound_names - _bound_inside(condition)
    if free - STANDARD:
        raise UnsupportedTestError(
            f"line {statement.lineno} compares with {min(free - STANDARD)}, which is the program's"
        )
    if _foreign(helpers) & _names([condition]):
        raise UnsupportedTestError(f"line {statement.lineno} compares by a package")
    steps = _needed(taken.calls, helpers)
    setup = "\n".join(text for _, text in steps)
    calls = "(" + "".join(f"{ast.unparse(call)}, " for call in taken.calls) + ")"
    expected = _literal(condition)
    if expected is not _NOTHING:
        return Assertion(calls, setup, literal=True, expected=expected, source=source, steps=steps)
    condition_setup = _needed_text([condition], [*imports(free), *helpers])
    return Assertion(
        calls,
        setup,
        literal=False,
        condition=ast.unparse(condition),
        condition_setup=condition_setup,
        results=len(taken.calls),
        source=source,
        steps=steps,
    )


class _TakeCalls(ast.NodeTransformer):
    """Transformer that replaces the program's calls by ``_0``, ``_1`` and so on."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.calls = list[ast.expr]()
        self.nested = False

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
    """Return the value that ``_0`` must equal if the condition says only that, else ``_NOTHING``."""
    if isinstance(condition, ast.Compare) and len(condition.ops) == 1 and isinstance(condition.ops[0], ast.Eq):
        sides = [condition.left, condition.comparators[0]]
        for side, other in (sides, sides[::-1]):
            if isinstance(side, ast.Name) and side.id == "_0":
                try:
                    return ast.literal_eval(other)
                except (ValueError, TypeError, RecursionError):
                    return _NOTHING
    return _NOTHING


def _needed(parts: Iterable[ast.AST], helpers: list[ast.stmt]) -> tuple[tuple[int, str], ...]:
    """Return the helper statements that bind a used name, and those they need themselves, each with its place."""
    used = _names(parts)
    kept: list[tuple[int, str]] = []
    for place, statement in reversed(list(enumerate(helpers))):
        if bound(statement) & used:
            used |= _names([statement])
            kept.insert(0, (place, ast.unparse(statement)))
    return tuple(kept)


def _needed_text(parts: Iterable[ast.AST], helpers: list[ast.stmt]) -> str:
    return "\n".join(text for _, text in _needed(parts, helpers))


def imports(names: Iterable[str]) -> list[ast.stmt]:
    """Return import statements for modules that a test uses and leaves to the program to import."""
    return [ast.Import([ast.alias(name)]) for name in sorted(names)]


def _foreign(helpers: Iterable[ast.stmt]) -> set[str]:
    """Return the names imported from packages outside the standard library."""
    names = set[str]()
    for statement in helpers:
        modules = [a.name for a in statement.names] if isinstance(statement, ast.Import) else []
        modules += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
        if any(module.partition(".")[0] not in STANDARD for module in modules):
            names |= bound(statement)
    return names


def _bound_inside(expression: ast.expr) -> set[str]:
    """Return the names bound by comprehensions and functions in an expression."""
    stored = {n.id for n in ast.walk(expression) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in ast.walk(expression) if isinstance(n, ast.arg)}


def bound_anywhere(statement: ast.stmt) -> set[str]:
    """Return the names a statement binds at any depth, including arguments and caught exceptions."""
    names = bound(statement)
    for node in ast.walk(statement):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
    return names


def _names(parts: Iterable[ast.AST]) -> set[str]:
    return {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}


def _defines_only(statement: ast.stmt) -> bool:
    """True if a statement only binds names and can be left out where they are not used."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name | ast.Tuple) for target in statement.targets)
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant | ast.Name)
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.AnnAssign | ast.Pass
    return isinstance(statement, kinds)


def bound(statement: ast.stmt) -> set[str]:
    """Return the names a statement defines."""
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def _is_call(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _is_metadata(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and bound(statement) == {"METADATA"}
