"""What the tests reach: which statements, and where gradients flow."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any

from tools.mutants.child import Watch
from tools.mutants.finder import Finder
from tools.mutants.laboratory import Laboratory, Outcome
from tools.mutants.mutant import Mutant
from tools.mutants.syntax import Place, position

PROBE = "_mutants_probe"


@dataclasses.dataclass
class Reach:
    """What a run on the unchanged files shows."""

    gradients: dict[str, set[Place]]
    """File -> where an intermediate result carries a gradient."""
    tests: dict[tuple[str, int], list[str]]
    """(file, line) -> the tests that run this statement; "" for the import of a test module."""
    seconds: dict[str, float]

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that can notice, quick ones first."""
        found = [""] if mutant.statement is None else self.tests.get((mutant.file, mutant.statement), [])
        # What runs at import may change the names of tests, too: "" stands for tests that were not there before.
        return sorted(["", *self.seconds] if "" in found else found, key=lambda t: self.seconds.get(t, 0.0))


def explore(lab: Laboratory, finders: list[Finder], tests: Sequence[str]) -> tuple[Outcome, Reach]:
    """Run the tests on the unchanged files with every place and statement noted."""
    code = {f.file: _probed(f) for f in finders}

    def run() -> dict[str, Any]:
        gradients: dict[str, list[tuple[int, ...]]] = {f.file: [] for f in finders}
        lines: dict[str, dict[int, list[str]]] = {f.file: {} for f in finders}
        watch = Watch(None)

        def note(value: Any, file: str, *where: int) -> Any:
            if len(where) == 1:
                by = lines[file].setdefault(where[0], [])
                if not by or by[-1] != watch.now:
                    by.append(watch.now)
            elif where not in gradients[file] and _carries_gradient(value):
                gradients[file].append(where)
            return value

        setattr(builtins, PROBE, note)
        found: dict[str, Any] = lab.test(code, tests, watch)()
        return found | {"gradients": gradients, "lines": lines, "seconds": watch.seconds}

    outcome = lab.wait(lab.start(run, limit_s=900))
    found = outcome.extra or {"gradients": {}, "lines": {}, "seconds": {}}
    gradients = {file: {tuple(p) for p in places} for file, places in found["gradients"].items()}
    lines = {(f, int(n)): sorted(set(by)) for f, of in found["lines"].items() for n, by in of.items()}
    return outcome, Reach(gradients, lines, found["seconds"])


def _carries_gradient(value: Any) -> bool:
    """Whether ``value`` is a tensor with a gradient, in a place where gradients are recorded."""
    return getattr(value, "requires_grad", None) is True and sys.modules["torch"].is_grad_enabled()


def _probed(finder: Finder) -> CodeType:
    """The file with every place of a possible ``detach`` wrapped in a call of the probe."""
    tree, syntax = ast.parse(finder.source), finder.syntax
    same = dict(zip(ast.walk(syntax.tree), ast.walk(tree), strict=True))
    wanted = {same[n] for n in syntax.walk() if isinstance(n, ast.expr) and syntax.may_detach(n)}

    class Wrap(ast.NodeTransformer):
        def visit(self, node: Any) -> Any:
            chosen, place = node in wanted, [ast.Constant(x) for x in (position(node) if node in wanted else ())]
            self.generic_visit(node)
            if not chosen:
                return node
            call = ast.Call(ast.Name(PROBE, ast.Load()), [node, ast.Constant(finder.file), *place], [])
            return ast.copy_location(call, node)

    tree = Wrap().visit(tree)
    for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
        _note_statements(function, finder.file)
    return compile(ast.fix_missing_locations(tree), finder.file, "exec", dont_inherit=True)


def _note_statements(block: ast.AST, file: str) -> None:
    """Before each statement of a function a call that notes it."""
    for name in ("body", "orelse", "finalbody"):
        noted: list[ast.stmt] = []
        for statement in getattr(block, name, None) or []:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                call = ast.Call(
                    ast.Name(PROBE, ast.Load()), [ast.Constant(x) for x in (None, file, statement.lineno)], []
                )
                noted.append(ast.copy_location(ast.Expr(call), statement))
            if not isinstance(statement, ast.FunctionDef):  # the caller walks over functions
                _note_statements(statement, file)
            noted.append(statement)
        if noted:
            setattr(block, name, noted)
