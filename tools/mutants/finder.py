"""All mutants of one file."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from tools.mutants.changes import changes
from tools.mutants.mutant import Mutant
from tools.mutants.syntax import Place, Syntax, position


class Finder:
    """Changes every place of a file, one at a time."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source, self.syntax = file, source, Syntax(source)
        self._bytes = source.encode().splitlines(keepends=True)

    def mutants(self, carries_gradient: set[Place]) -> list[Mutant]:
        """In the order of the file, each a different program.

        Args:
            carries_gradient: where a ``detach`` can make a difference.
        """
        found: dict[str, Mutant] = {}
        unchanged = ast.dump(self.syntax.tree)
        for node in self.syntax.walk():
            wanted = list(changes(self.syntax, node))
            if isinstance(node, ast.expr) and self.syntax.may_detach(node) and position(node) in carries_gradient:
                wanted.append(("stop-gradient", f"({ast.unparse(node)}).detach()"))
            for kind, new in wanted:
                mutant = self._changed(node, kind, new)
                try:
                    program = ast.dump(ast.parse(mutant.source))
                except SyntaxError:
                    continue
                if program != unchanged:
                    found.setdefault(program, mutant)
        return sorted(found.values(), key=lambda m: m.line)

    def _changed(self, node: Any, kind: str, new: str) -> Mutant:
        start, end = _span(self._bytes, node)
        whole = self.source.encode()
        source = (whole[:start] + new.encode() + whole[end:]).decode()
        first, last = node.lineno - 1, node.end_lineno
        added = source.count("\n") - self.source.count("\n")
        old_lines, new_lines = self.source.splitlines()[first:last], source.splitlines()[first : last + added]
        statement = self.syntax.statement(node)
        return Mutant(self.file, first + 1, kind, _joined(old_lines), _joined(new_lines), source, statement)


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines)


def _span(lines: Sequence[bytes], node: Any) -> tuple[int, int]:
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
