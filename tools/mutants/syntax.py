"""The syntax tree of one file, and what a place in it is used for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

Place = tuple[int, int, int, int]
"""First line, first column, last line, last column."""
_MASKS = ("mask", "response_mask", "nonempty", "present", "valid")
_NO_GRADIENT = (
    *("valid", "advantages_like", "zeros_like", "ones_like", "full_like", "reshape_as", "expand_as"),
    *("isfinite", "isnan", "isinf", "isinstance", "_check_float", "_check_shape", "check_level", "tuple", "len"),
)
"""Functions whose result has no gradient, or the gradient of another argument."""
_NEVER = ("shape", "dtype", "device", "ndim", "numel", "new_zeros", "to")
_TAKE_A_DIMENSION = ("squeeze", "unsqueeze", "sum", "gather", "scatter_add", "index_add", "scatter_reduce")


class Syntax:
    """The syntax tree of a file with its parents."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.parent: dict[ast.AST, ast.AST] = {c: p for p in ast.walk(self.tree) for c in ast.iter_child_nodes(p)}
        self.members = _enumerations(self.tree)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parent, grandparent ..."""
        while node in self.parent:
            node = self.parent[node]
            yield node

    def walk(self, node: ast.AST | None = None) -> Iterator[ast.AST]:
        """Every node that is code in the sense of the package's docstring."""
        node = node or self.tree
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            children = value if isinstance(value, list) else [value]
            if name == "body" and children and isinstance(children[-1], ast.Raise):
                continue
            for child in children:
                if isinstance(child, ast.AST) and not _skipped(child):
                    yield from self.walk(child)

    def statement(self, node: ast.AST) -> int | None:
        """The line of the statement of a function that holds ``node``; None: it runs at import."""
        inside = [node, *self.above(node)]
        for i, at in enumerate(inside):
            if isinstance(at, ast.stmt):
                defined = isinstance(at, ast.FunctionDef) and i > 0 and isinstance(inside[i - 1], ast.arguments)
                around = inside[i + 1 :] if defined or not isinstance(at, ast.FunctionDef) else []
                return at.lineno if any(isinstance(p, ast.FunctionDef) for p in around) else None
        return None

    def is_mask(self, node: ast.expr) -> bool:
        """A mask that is used: a variable or attribute of such a name, or ``rows.valid(x)``."""
        parent = self.parent[node]
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Attribute) and node.func.attr == "valid"
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name not in _MASKS or not isinstance(getattr(node, "ctx", None), ast.Load):
            return False
        if isinstance(parent, ast.Attribute):
            return parent.attr not in _NEVER
        if isinstance(parent, ast.Call):
            called = ast.unparse(parent.func)
            return node is not parent.func and not called.startswith(("_check", "super"))
        return not isinstance(parent, (ast.JoinedStr, ast.FormattedValue, ast.Compare))

    def is_condition(self, node: ast.expr) -> bool:
        """What ``if``, ``while`` or ``and`` asks."""
        parent = self.parent[node]
        if isinstance(parent, (ast.If, ast.IfExp, ast.While)):
            return parent.test is node
        return isinstance(parent, ast.BoolOp)

    def is_dimension(self, node: ast.expr) -> bool:
        """Whether a number says along which dimension."""
        parent = self.parent[node]
        if isinstance(parent, ast.keyword):
            return parent.arg == "dim"
        if not (isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute)):
            return False
        return parent.args[:1] == [node] and parent.func.attr in _TAKE_A_DIMENSION

    def names_an_argument(self, node: ast.Constant) -> bool:
        """Words that only end up in a message: ``check_number("clip_low", ...)``."""
        for parent in self.above(node):
            if isinstance(parent, (ast.JoinedStr, ast.Subscript)):
                return isinstance(parent, ast.JoinedStr) or "Literal" in ast.unparse(parent)
            if isinstance(parent, ast.Call):
                called = ast.unparse(parent.func).lstrip("_")
                return called.startswith(("check", "clean", "UserError", "getattr")) and parent.args[:1] == [node]
            if isinstance(parent, ast.stmt):
                break
        return False

    def joins_dictionaries(self, node: ast.BinOp) -> bool:
        """Unions of dictionaries, written with the same operator."""
        return isinstance(self.parent[node], ast.keyword) and "sums" in ast.unparse(self.parent[node])

    def may_detach(self, node: ast.expr) -> bool:
        """An intermediate result: what is assigned, returned, passed or an operand of arithmetic."""
        parent = self.parent[node]
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return False
        if self.loses_gradient(node):
            return False
        if isinstance(node, (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Starred, ast.Lambda)):
            return False
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)):
            return parent.value is node
        if isinstance(parent, ast.Attribute):  # x.exp(), but not self.x
            return isinstance(node, (ast.Call, ast.BinOp)) or parent.attr in ("sum", "square", "gather", "clamp")
        if isinstance(parent, ast.Call):
            return node is not parent.func
        return isinstance(parent, (ast.BinOp, ast.UnaryOp, ast.keyword, ast.Tuple))

    def loses_gradient(self, node: ast.expr) -> bool:
        """Whether what becomes of it has none anyway: a boolean, a shape, a dtype."""
        for parent in self.above(node):
            if isinstance(parent, ast.stmt):
                return False
            if isinstance(parent, ast.Compare):
                return True
            if isinstance(parent, ast.Call) and ast.unparse(parent.func).endswith(_NO_GRADIENT):
                return node is not parent.func
        return False


def _skipped(node: ast.AST) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr, ast.Pass)):
        return True
    if isinstance(node, ast.FunctionDef):
        return node.name == "__repr__"
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Assert)


def _enumerations(tree: ast.Module) -> dict[str, list[str]]:
    """Members of the enumerations of the package that a module imports or defines, by name."""
    found = {"Aggregation": ["SEQUENCE_MEAN", "SEQUENCE_SUM", "TOKEN_MEAN"]}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(b) for b in node.bases):
            found[node.name] = [ast.unparse(n.targets[0]) for n in node.body if isinstance(n, ast.Assign)]
    return found


def position(node: Any) -> Place:
    """Where an expression stands in its file."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
