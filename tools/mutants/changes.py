"""What is changed at one place: (kind, new source)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.mutants.syntax import Syntax

_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_EXTREMES = {"min": "max", "minimum": "maximum", "amin": "amax", "argmin": "argmax", "any": "all", "cummin": "cummax"}
_EXTREMES |= {b: a for a, b in _EXTREMES.items()}

Change = tuple[str, str]


def changes(syntax: Syntax, node: ast.AST) -> Iterator[Change]:
    """(kind, new source) of every change of exactly this node."""
    if isinstance(node, ast.BinOp):
        yield from _of_operator(syntax, node)
    if isinstance(node, ast.AugAssign):
        yield from _of_augmented(node)
    if isinstance(node, ast.UnaryOp):
        yield from _of_unary(syntax, node)
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for new in _COMPARE[type(op)]:
                ops = [*node.ops[:i], new(), *node.ops[i + 1 :]]
                yield "comparison", _unparse(ast.Compare(node.left, ops, node.comparators))
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "comparison", _unparse(ast.BoolOp(other, node.values))
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and syntax.is_condition(node):
        yield "comparison", f"(not {ast.unparse(node)})"
    if isinstance(node, ast.Constant):
        yield from _of_constant(syntax, node)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        for member in syntax.members.get(node.value.id, []):
            if member != node.attr:
                yield "constant", f"{node.value.id}.{member}"
    if isinstance(node, ast.Call):
        yield from _of_call(syntax, node)
    if isinstance(node, ast.expr) and syntax.is_mask(node):
        yield "mask", f"(~{_unparse(node)})"
        yield "mask", f"({_unparse(node)} | True)"


def _of_operator(syntax: Syntax, node: ast.BinOp) -> Iterator[Change]:
    if type(node.op) in _BINARY:
        yield "sign", _unparse(ast.BinOp(node.left, _BINARY[type(node.op)](), node.right))
    elif isinstance(node.op, (ast.BitAnd, ast.BitOr)) and not syntax.joins_dictionaries(node):
        other = ast.BitOr() if isinstance(node.op, ast.BitAnd) else ast.BitAnd()
        yield "mask", _unparse(ast.BinOp(node.left, other, node.right))
        yield "mask", _unparse(node.left)
        yield "mask", _unparse(node.right)


def _of_augmented(node: ast.AugAssign) -> Iterator[Change]:
    target, value = ast.unparse(node.target), ast.unparse(node.value)
    if type(node.op) in _BINARY:
        yield "sign", ast.unparse(ast.AugAssign(node.target, _BINARY[type(node.op)](), node.value))
    elif isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        yield "mask", f"{target} {'|' if isinstance(node.op, ast.BitAnd) else '&'}= {value}"
        yield "mask", f"{target} = {value}"
        yield "mask", f"{target} = {target}"


def _of_unary(syntax: Syntax, node: ast.UnaryOp) -> Iterator[Change]:
    operand = _unparse(node.operand)
    if isinstance(node.op, ast.USub):
        if isinstance(node.operand, ast.Constant) and isinstance(node.operand.value, int):
            yield from (("constant", str(v)) for v in _other_numbers(-node.operand.value, syntax.is_dimension(node)))
        else:
            yield "sign", operand
    elif isinstance(node.op, ast.Not):
        yield "comparison", f"bool({operand})"
    elif isinstance(node.op, ast.Invert):
        yield "mask", operand


def _of_constant(syntax: Syntax, node: ast.Constant) -> Iterator[Change]:
    value, parent = node.value, syntax.parent[node]
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub) and isinstance(value, int):
        return
    if isinstance(value, bool):
        yield "constant", str(not value)
    elif isinstance(value, (int, float)):
        yield from (("constant", repr(v)) for v in _other_numbers(value, syntax.is_dimension(node)))
    elif isinstance(value, str) and value.isidentifier() and not syntax.names_an_argument(node):
        yield "constant", repr(_EXTREMES.get(value, f"{value}_"))


def _of_call(syntax: Syntax, node: ast.Call) -> Iterator[Change]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _EXTREMES:
        method, other = isinstance(function, ast.Attribute), _EXTREMES[name]
        renamed = ast.Attribute(function.value, other) if method else ast.Name(other)  # type: ignore[attr-defined]
        kind = "mask" if name in ("any", "all") else "min/max"
        yield kind, ast.unparse(ast.Call(renamed, node.args, node.keywords))
    if not isinstance(function, ast.Attribute):
        return
    if name == "clamp":
        yield from (("min/max", new) for new in _other_clamps(node, function))
    if name == "where" and len(node.args) == 3:
        condition, yes, no = (_unparse(a) for a in node.args)
        like = ast.unparse(function)
        yield "mask", f"{like}({condition}, {no}, {yes})"
        yield "mask", f"{like}({condition} | True, {yes}, {no})"
        yield "mask", f"{like}({condition} & False, {yes}, {no})"
    if name == "detach" and not node.args and not syntax.loses_gradient(node):
        yield "stop-gradient", _unparse(function.value)
    if name == "no_grad" and not node.args:
        yield "stop-gradient", f"{ast.unparse(function).removesuffix('no_grad')}enable_grad()"


def _other_clamps(node: ast.Call, function: ast.Attribute) -> Iterator[str]:
    yield _unparse(function.value)
    if len(node.args) == 2:
        none = ast.Constant(None)
        yield ast.unparse(ast.Call(function, [node.args[0], none], []))
        yield ast.unparse(ast.Call(function, [none, node.args[1]], []))
    elif len(node.keywords) == 1:
        keyword = ast.keyword(_EXTREMES[str(node.keywords[0].arg)], node.keywords[0].value)
        yield ast.unparse(ast.Call(function, [], [keyword]))


def _other_numbers(value: float, dimension: bool) -> list[float]:
    if dimension:  # of a matrix, -1 and 1 are the same dimension
        return [0] if value in (-1, 1) else [1]
    if isinstance(value, int):
        return [value + 1, value - 1, *([-value] if abs(value) > 1 else [])]
    return [1.0, -1.0] if value == 0 else [2 * value, -value]


def _unparse(node: ast.expr) -> str:
    simple = (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript)
    return ast.unparse(node) if isinstance(node, simple) else f"({ast.unparse(node)})"
