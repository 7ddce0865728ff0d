"""Mutation testing: break the mathematics one place at a time and see whether the unit tests notice.

    python tools/mutants.py                       every mutant of every file below, the report in docs/mutants.md
    python tools/mutants.py --file 'gspo_lightning/objectives/clip.py' --jobs 2
    python tools/mutants.py --sample 100 --seed 1

A mutant is the package with one expression changed. It is run in a process of its own, forked from one that has
imported torch and every other dependency but nothing of the package: the child imports the package afresh through a
finder that serves the changed source, and runs the unit tests of that file until the first one fails. Nothing is
written to the tree and no module is shared between mutants. A run on the unchanged files finds out first which tests
reach which statements: only those can notice, and the quick and the successful ones come first.

What is changed:

* ``sign``: ``+ -``, ``* /``, ``**``, ``//`` and unary minus, also in augmented assignments.
* ``min/max``: ``min max minimum maximum amin amax``, ``clamp`` without one bound, with the other bound, and removed.
* ``comparison``: each by its negation, and ``< <= > >=`` by the one that differs at a tie; ``and or not``, conditions.
* ``constant``: numbers, booleans, words that are compared or looked up, members of an enumeration.
* ``mask``: one side of ``& |``, ``~``, the two branches and the negated condition of ``where``, and every mask negated
  or replaced by "everywhere".
* ``stop-gradient``: ``detach`` and ``no_grad`` removed, and ``detach`` added to every intermediate result that was seen
  to carry a gradient in a run of the tests; not inside comparisons and shape arguments, where it changes nothing.

What is not: docstrings, annotations, decorators, imports, ``__all__``, ``__repr__``, sentences, statements that raise
(their condition is), dtypes and devices.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import fnmatch
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

COVER = {
    "gspo_lightning/objectives/*.py": "tests/objectives",
    "gspo_lightning/advantages.py": "tests/test_advantages.py",
    "gspo_lightning/logprobs.py": "tests/test_logprobs.py",
}
"""Glob of source files -> the unit tests that cover them (comma-separated)."""
NOT_RUN = (
    "tests/objectives/test_objectives_against_trl.py",  # needs an extra; the rest has to be enough
    "test_imports_without_lightning_or_transformers",  # another process: it would see the unchanged source
)
KINDS = ("sign", "min/max", "comparison", "constant", "mask", "stop-gradient")
ACCEPTED = Path(__file__).with_name("accepted_mutants.toml")
REPORT = Path("docs/mutants.md")
ENOUGH = 0.95
PROBE = "_mutants_probe"


# --------------------------------------------------------------------------------------------------------------------
# Mutants


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One changed expression. ``old`` and ``new`` are its lines, without indentation, joined to one."""

    file: str
    line: int
    kind: str
    old: str
    new: str
    source: str = dataclasses.field(repr=False, compare=False)
    statement: int | None = None
    """Line of the statement of a function that holds it; None: it runs when the module is imported."""

    @property
    def key(self) -> str:
        """Stable under everything but a change of the line itself."""
        return f"{self.file}: {self.old} => {self.new}"


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
_MASKS = ("mask", "response_mask", "nonempty", "present", "valid")
_NO_GRADIENT = (
    "valid",
    "advantages_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "reshape_as",
    "expand_as",
    "isfinite",
)
_NO_GRADIENT += ("isinstance", "_check_float", "_check_shape", "tuple", "len", "isnan", "isinf")
_NEVER = ("shape", "dtype", "device", "ndim", "numel", "new_zeros", "to")


class _Parents(ast.NodeVisitor):
    def __init__(self, tree: ast.AST) -> None:
        self.parent: dict[ast.AST, ast.AST] = {c: p for p in ast.walk(tree) for c in ast.iter_child_nodes(p)}

    def chain(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parent:
            node = self.parent[node]
            yield node


class Finder:
    """All mutants of one file."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source
        self.tree = ast.parse(source)
        self.parents = _Parents(self.tree)
        self.members = _enumerations(self.tree)
        self.lines = source.encode().splitlines(keepends=True)
        self.found: dict[str, Mutant] = {}

    def mutants(self, carries_gradient: set[tuple[int, int, int, int]] | None = None) -> list[Mutant]:
        """In the order of the file. ``carries_gradient``: where a ``detach`` can make a difference; None: anywhere."""
        unchanged = ast.dump(self.tree)
        self.found = {}
        for node in self.walk(self.tree):
            for kind, new in self.changes(node):
                self._add(node, kind, new, unchanged)
            if isinstance(node, ast.expr) and self.may_detach(node):
                where = position(node)
                if carries_gradient is None or where in carries_gradient:
                    self._add(node, "stop-gradient", f"({ast.unparse(node)}).detach()", unchanged)
        return sorted(self.found.values(), key=lambda m: m.line)

    def walk(self, node: ast.AST) -> Iterator[ast.AST]:
        """Every node that is code in the sense of the module's docstring."""
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

    def changes(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """(kind, new source) of every change of exactly this node."""
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY and not _is_type_union(node):
            yield "sign", _unparse(ast.BinOp(node.left, _BINARY[type(node.op)](), node.right))
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)) and not self._sets(node):
            other = ast.BitOr() if isinstance(node.op, ast.BitAnd) else ast.BitAnd()
            yield "mask", _unparse(ast.BinOp(node.left, other, node.right))
            yield "mask", _unparse(node.left)
            yield "mask", _unparse(node.right)
        if isinstance(node, ast.AugAssign):
            yield from self._augmented(node)
        if isinstance(node, ast.UnaryOp):
            yield from self._unary(node)
        if isinstance(node, ast.Compare):
            for i, op in enumerate(node.ops):
                for new in _COMPARE[type(op)]:
                    yield (
                        "comparison",
                        _unparse(ast.Compare(node.left, [*node.ops[:i], new(), *node.ops[i + 1 :]], node.comparators)),
                    )
        if isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "comparison", _unparse(ast.BoolOp(other, node.values))
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and self._is_condition(node):
            yield "comparison", f"(not {ast.unparse(node)})"
        if isinstance(node, ast.Constant):
            yield from self._constant(node)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.members:
            for member in self.members[node.value.id]:
                if member != node.attr:
                    yield "constant", f"{node.value.id}.{member}"
        if isinstance(node, ast.Call):
            yield from self._call(node)
        if isinstance(node, ast.expr) and self._is_mask(node):
            yield "mask", f"(~{_unparse(node)})"
            yield "mask", f"({_unparse(node)} | True)"

    def _augmented(self, node: ast.AugAssign) -> Iterator[tuple[str, str]]:
        target, value = ast.unparse(node.target), ast.unparse(node.value)
        if type(node.op) in _BINARY:
            yield "sign", ast.unparse(ast.AugAssign(node.target, _BINARY[type(node.op)](), node.value))
        elif isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            yield "mask", f"{target} {'|' if isinstance(node.op, ast.BitAnd) else '&'}= {value}"
            yield "mask", f"{target} = {value}"
            yield "mask", f"{target} = {target}"

    def _unary(self, node: ast.UnaryOp) -> Iterator[tuple[str, str]]:
        operand = _unparse(node.operand)
        if isinstance(node.op, ast.USub):
            if isinstance(node.operand, ast.Constant) and isinstance(node.operand.value, int):
                yield from (("constant", str(v)) for v in _other_numbers(-node.operand.value, self._axis(node)))
            else:
                yield "sign", operand
        elif isinstance(node.op, ast.Not):
            yield "comparison", f"bool({operand})"
        elif isinstance(node.op, ast.Invert):
            yield "mask", operand

    def _constant(self, node: ast.Constant) -> Iterator[tuple[str, str]]:
        value, parent = node.value, self.parents.parent[node]
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub) and isinstance(value, int):
            return
        if isinstance(value, bool):
            yield "constant", str(not value)
        elif isinstance(value, (int, float)):
            yield from (("constant", repr(v)) for v in _other_numbers(value, self._axis(node)))
        elif isinstance(value, str) and value.isidentifier() and not self._names_an_argument(node):
            yield "constant", repr(_EXTREMES.get(value, f"{value}_"))

    def _call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in _EXTREMES:
            kind = "mask" if name in ("any", "all") else "min/max"
            renamed = (
                ast.Attribute(function.value, _EXTREMES[name])
                if isinstance(function, ast.Attribute)
                else ast.Name(_EXTREMES[name])
            )
            yield kind, ast.unparse(ast.Call(renamed, node.args, node.keywords))
        if name == "clamp" and isinstance(function, ast.Attribute):
            yield "min/max", _unparse(function.value)
            if len(node.args) == 2:
                none = ast.Constant(None)
                yield "min/max", ast.unparse(ast.Call(function, [node.args[0], none], []))
                yield "min/max", ast.unparse(ast.Call(function, [none, node.args[1]], []))
            elif len(node.keywords) == 1:
                keyword = ast.keyword(_EXTREMES[str(node.keywords[0].arg)], node.keywords[0].value)
                yield "min/max", ast.unparse(ast.Call(function, [], [keyword]))
        if name == "where" and len(node.args) == 3:
            condition, yes, no = (_unparse(a) for a in node.args)
            like = ast.unparse(function)
            yield "mask", f"{like}({condition}, {no}, {yes})"
            yield "mask", f"{like}({condition} | True, {yes}, {no})"
            yield "mask", f"{like}({condition} & False, {yes}, {no})"
        detaches = name == "detach" and isinstance(function, ast.Attribute) and not node.args
        if detaches and not self._loses_gradient(node):
            yield "stop-gradient", _unparse(function.value)
        if name == "no_grad" and not node.args:
            yield "stop-gradient", f"{ast.unparse(function).removesuffix('no_grad')}enable_grad()"

    def _is_mask(self, node: ast.expr) -> bool:
        """A mask that is used: a variable or attribute of such a name, or ``rows.valid(x)``."""
        parent = self.parents.parent[node]
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

    def _is_condition(self, node: ast.expr) -> bool:
        parent = self.parents.parent[node]
        if isinstance(parent, (ast.If, ast.IfExp, ast.While)):
            return parent.test is node
        return isinstance(parent, ast.BoolOp)

    def _axis(self, node: ast.expr) -> bool:
        """Whether a number says along which dimension."""
        parent = self.parents.parent[node]
        if isinstance(parent, ast.keyword):
            return parent.arg == "dim"
        return (
            isinstance(parent, ast.Call)
            and isinstance(parent.func, ast.Attribute)
            and parent.args[:1] == [node]
            and parent.func.attr
            in ("squeeze", "unsqueeze", "sum", "gather", "scatter_add", "index_add", "scatter_reduce")
        )

    def _names_an_argument(self, node: ast.Constant) -> bool:
        """Words that only end up in a message: ``check_number("clip_low", ...)``."""
        for parent in self.parents.chain(node):
            if isinstance(parent, (ast.JoinedStr, ast.Subscript)):
                return isinstance(parent, ast.JoinedStr) or "Literal" in ast.unparse(parent)
            if isinstance(parent, ast.Call):
                called = ast.unparse(parent.func).lstrip("_")
                return called.startswith(("check", "clean", "UserError", "getattr")) and parent.args[:1] == [node]
            if isinstance(parent, ast.stmt):
                break
        return False

    def _sets(self, node: ast.BinOp) -> bool:
        """Unions of dictionaries, written with the same operator."""
        return isinstance(self.parents.parent[node], ast.keyword) and "sums" in ast.unparse(self.parents.parent[node])

    def may_detach(self, node: ast.expr) -> bool:
        """An intermediate result: what is assigned, returned, passed or an operand of arithmetic."""
        parent = self.parents.parent[node]
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return False
        if self._loses_gradient(node):
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

    def _loses_gradient(self, node: ast.expr) -> bool:
        """Whether what becomes of it has none anyway: a boolean, a shape, a dtype."""
        for parent in self.parents.chain(node):
            if isinstance(parent, ast.stmt):
                return False
            if isinstance(parent, ast.Compare):
                return True
            if isinstance(parent, ast.Call) and ast.unparse(parent.func).endswith(_NO_GRADIENT):
                return node is not parent.func
        return False

    def _add(self, node: ast.AST, kind: str, new: str, unchanged: str) -> None:
        start, end = _span(self.lines, node)
        whole = self.source.encode()
        source = (whole[:start] + new.encode() + whole[end:]).decode()
        try:
            dump = ast.dump(ast.parse(source))
        except SyntaxError:
            return
        if dump == unchanged or dump in self.found:
            return
        first, last = node.lineno - 1, node.end_lineno  # type: ignore[attr-defined]
        added = source.count("\n") - self.source.count("\n")
        old_lines, new_lines = self.source.splitlines()[first:last], source.splitlines()[first : last + added]
        self.found[dump] = Mutant(
            self.file, first + 1, kind, _joined(old_lines), _joined(new_lines), source, self._statement(node)
        )

    def _statement(self, node: ast.AST) -> int | None:
        inside = [node, *self.parents.chain(node)]
        for i, at in enumerate(inside):
            if isinstance(at, ast.stmt):
                defined = isinstance(at, ast.FunctionDef) and i > 0 and isinstance(inside[i - 1], ast.arguments)
                around = inside[i + 1 :] if defined or not isinstance(at, ast.FunctionDef) else []
                return at.lineno if any(isinstance(p, ast.FunctionDef) for p in around) else None
        return None


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


def _is_type_union(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.BitOr) and isinstance(node.right, ast.Constant)


def _enumerations(tree: ast.Module) -> dict[str, list[str]]:
    """Members of the enumerations of the package that a module imports or defines, by name."""
    found = {"Aggregation": ["SEQUENCE_MEAN", "SEQUENCE_SUM", "TOKEN_MEAN"]}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(b) for b in node.bases):
            found[node.name] = [ast.unparse(n.targets[0]) for n in node.body if isinstance(n, ast.Assign)]
    return found


def _other_numbers(value: float, axis: bool) -> list[float]:
    if axis:  # of a matrix, -1 and 1 are the same dimension
        return [0] if value in (-1, 1) else [1]
    if isinstance(value, int):
        return [value + 1, value - 1, *([-value] if abs(value) > 1 else [])]
    return [1.0, -1.0] if value == 0 else [2 * value, -value]


def _unparse(node: ast.expr) -> str:
    simple = (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript)
    return ast.unparse(node) if isinstance(node, simple) else f"({ast.unparse(node)})"


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines)


def _span(lines: Sequence[bytes], node: Any) -> tuple[int, int]:
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def position(node: Any) -> tuple[int, int, int, int]:
    """Where an expression stands in its file."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


# --------------------------------------------------------------------------------------------------------------------
# Running the tests in a child


class _Served(importlib.abc.MetaPathFinder):
    """Serves other code for some files below ``root``."""

    def __init__(self, root: Path, changed: dict[str, CodeType]) -> None:
        self.root = root
        self.changed = {f.removesuffix(".py").removesuffix("/__init__").replace("/", "."): f for f in changed}
        self.code = changed

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.changed:
            return None
        file = self.changed[fullname]
        code = self.code[file]

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return code

        place = self.root / file
        return importlib.util.spec_from_file_location(fullname, place, loader=Loader(fullname, str(place)))


class _Watch:
    """A pytest plug-in: only these tests, in this order; which one runs, how long it takes, which one failed first."""

    def __init__(self, wanted: Sequence[str] | None) -> None:
        self.place = None if wanted is None else {name: i for i, name in enumerate(wanted)}
        self.now, self.failed = "", ""
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [i for i in items if not any(name in i.nodeid for name in NOT_RUN)]
        if self.place is not None:
            place = {i: self.place.get(i.nodeid, self.place.get("", -1)) for i in items}
            items[:] = sorted((i for i in items if place[i] >= 0), key=lambda i: place[i])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid


@dataclasses.dataclass
class Job:
    """A child at work."""

    pid: int
    output: Path
    deadline: float
    started: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """``verdict``: killed, survived, time-out or broken (no test ran)."""

    verdict: str
    by: str = ""
    seconds: float = 0.0
    extra: Any = None


class Laboratory:
    """Forks children that run tests on a changed package."""

    def __init__(self, root: Path, limit_s: float) -> None:
        self.root, self.limit_s = root, limit_s
        self.scratch = Path(tempfile.mkdtemp(prefix="mutants-"))
        self.count = 0

    def prepare(self, tests: Sequence[str]) -> None:
        """Import here what the tests import from elsewhere, so that no child has to."""

        def collect() -> dict[str, Any]:
            before = dict(os.environ)
            _pytest(tests, ["--collect-only"], [])
            outside = [n for n, m in list(sys.modules.items()) if self._is_foreign(m)]
            return {"modules": outside, "environ": {k: v for k, v in os.environ.items() if before.get(k) != v}}

        found = self.wait(self.start(collect, limit_s=300)).extra
        if found is None:
            raise SystemExit(f"mutants: the tests cannot be collected: {', '.join(tests)}")
        os.environ.update({k: v for k, v in found["environ"].items() if not k.startswith("PYTEST")})
        for name in found["modules"]:
            try:
                importlib.import_module(name)
            except Exception:  # a lazy module of a dependency that is not there
                continue
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)

    def _is_foreign(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return file is not None and ("site-packages" in file or not Path(file).is_relative_to(self.root))

    def test(self, changed: dict[str, CodeType], tests: Sequence[str], watch: _Watch) -> Callable[[], Any]:
        """What a child does: run ``tests`` with ``changed`` files."""

        def run() -> dict[str, Any]:
            sys.meta_path.insert(0, _Served(self.root, changed))
            return {"code": _pytest(tests, ["-x"], [watch]), "by": watch.failed}

        return run

    def start(self, task: Callable[[], Any], *, limit_s: float | None = None) -> Job:
        """Fork. The child writes its result as JSON and ends at once."""
        self.count += 1
        output = self.scratch / f"{self.count}.json"
        now = time.monotonic()
        pid = os.fork()
        if pid:
            return Job(pid, output, now + (limit_s or self.limit_s), now)
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            os.chdir(self.root)
            sys.path.insert(0, str(self.root))
            output.with_suffix(".part").write_text(json.dumps(task()))
            output.with_suffix(".part").replace(output)
        finally:
            os._exit(0)

    def poll(self, job: Job) -> Outcome | None:
        """None while it runs."""
        pid, _ = os.waitpid(job.pid, os.WNOHANG)
        seconds = time.monotonic() - job.started
        if pid == 0:
            if time.monotonic() < job.deadline:
                return None
            os.killpg(job.pid, signal.SIGKILL)
            os.waitpid(job.pid, 0)
            return Outcome("time-out", seconds=seconds)
        if not job.output.exists():
            return Outcome("killed", "the process ended", seconds)
        found = json.loads(job.output.read_text())
        job.output.unlink()
        code = found.get("code") if isinstance(found, dict) else None
        # pytest: 0 passed, 1 failed, 2 interrupted (an import failed), 5 nothing collected
        verdict = {0: "survived", 1: "killed", 2: "killed", 3: "killed"}.get(code, "broken")  # type: ignore[arg-type]
        return Outcome(verdict, found.get("by", "") or "import", seconds, found)

    def wait(self, job: Job) -> Outcome:
        """Block until it ends."""
        while (outcome := self.poll(job)) is None:
            time.sleep(0.02)
        return outcome


def _pytest(tests: Sequence[str], options: Sequence[str], plugins: list[Any]) -> int:
    import pytest

    try:
        from hypothesis import Phase, settings
    except ImportError:
        pass
    else:  # the same examples for every mutant, and no search for the smallest one
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
        settings.load_profile("mutants")
    ignored = [f"--ignore={name}" for name in NOT_RUN if name.endswith(".py")]
    common = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:doctest", "--no-header", *ignored]
    return int(pytest.main([*tests, *common, *options], plugins=plugins))


# --------------------------------------------------------------------------------------------------------------------
# What the tests reach


@dataclasses.dataclass
class Reach:
    """What a run on the unchanged files shows."""

    gradients: dict[str, set[tuple[int, int, int, int]]]
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
        watch = _Watch(None)

        def note(value: Any, file: str, *where: int) -> Any:
            if len(where) == 1:
                by = lines[file].setdefault(where[0], [])
                if not by or by[-1] != watch.now:
                    by.append(watch.now)
            elif getattr(value, "requires_grad", False) and where not in gradients[file]:
                gradients[file].append(where)
            return value

        setattr(builtins, PROBE, note)
        found = lab.test(code, tests, watch)()
        return found | {"gradients": gradients, "lines": lines, "seconds": watch.seconds}

    outcome = lab.wait(lab.start(run, limit_s=900))
    found = outcome.extra or {"gradients": {}, "lines": {}, "seconds": {}}
    gradients = {file: {tuple(p) for p in places} for file, places in found["gradients"].items()}
    lines = {(f, int(n)): sorted(set(by)) for f, of in found["lines"].items() for n, by in of.items()}
    return outcome, Reach(gradients, lines, found["seconds"])


def _probed(finder: Finder) -> CodeType:
    """The file with every place of a possible ``detach`` wrapped in a call of the probe."""
    tree = ast.parse(finder.source)
    same = dict(zip(ast.walk(finder.tree), ast.walk(tree), strict=True))
    wanted = {same[n] for n in finder.walk(finder.tree) if isinstance(n, ast.expr) and finder.may_detach(n)}

    class Wrap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
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


# --------------------------------------------------------------------------------------------------------------------
# The whole run


@dataclasses.dataclass
class Result:
    """A mutant and what became of it."""

    mutant: Mutant
    outcome: Outcome
    reason: str | None = None


def run_all(lab: Laboratory, work: list[tuple[Mutant, Reach]], jobs: int, say: Callable[[str], None]) -> list[Result]:
    """Every mutant in a child of its own, ``jobs`` at a time."""
    wins: dict[str, Counter[str]] = {}
    results: list[Result | None] = [None] * len(work)
    queue, running = list(enumerate(work)), {}
    while queue or running:
        while queue and len(running) < jobs:
            index, (mutant, reach) = queue.pop(0)
            tests = reach.of(mutant)
            if not tests:
                results[index] = Result(mutant, Outcome("survived", "no test runs this line"))
                say(f"no test runs  {mutant.key}")
                continue
            won = wins.setdefault(mutant.file, Counter())
            tests.sort(key=lambda t: -won[t] / (0.01 + reach.seconds.get(t, 0.0)))
            code = compile(mutant.source, mutant.file, "exec", dont_inherit=True)
            files = list(dict.fromkeys(t.partition("::")[0] for t in tests if t))
            running[index] = lab.start(lab.test({mutant.file: code}, files, _Watch(tests)))
        for index, job in list(running.items()):
            if (outcome := lab.poll(job)) is None:
                continue
            del running[index]
            mutant = work[index][0]
            results[index] = Result(mutant, outcome)
            wins[mutant.file][outcome.by] += 1
            done = sum(r is not None for r in results)
            if outcome.verdict != "killed" or done % 50 == 0:
                say(f"{done}/{len(work)} {outcome.verdict} in {outcome.seconds:.1f} s  {mutant.key}")
        time.sleep(0.01)
    return [r for r in results if r is not None]


def accepted(path: Path) -> dict[str, str]:
    """Key of a mutant -> why it may survive."""
    if not path.exists():
        return {}
    groups = tomllib.loads(path.read_text()).get("accepted", [])
    return {key: group["reason"].strip() for group in groups for key in group["mutants"]}


def report(results: list[Result], heading: dict[str, str], stale: Sequence[str]) -> str:
    """The Markdown page."""
    rows = ["| file | mutants | killed | time-out | survived, equivalent | survived, a gap | killed of the rest |"]
    rows.append("|---|---|---|---|---|---|---|")
    files = list(dict.fromkeys(r.mutant.file for r in results))
    for file in [*files, None]:
        part = [r for r in results if file is None or r.mutant.file == file]
        rows.append(f"| {f'`{file}`' if file else '**all**'} | {_counts(part)} |")
    kinds = ["| kind | mutants | killed | time-out | survived, equivalent | survived, a gap | killed of the rest |"]
    kinds.append("|---|---|---|---|---|---|---|")
    kinds += [f"| {k} | {_counts([r for r in results if r.mutant.kind == k])} |" for k in KINDS]
    lines = ["# Mutation testing", "", (__doc__ or "").partition("\n\n    python")[0].strip(), ""]
    lines += [
        "Made by `make mutants`; what is changed and what is not stands in `tools/mutants.py`. An equivalent mutant",
        "computes the same; it is listed with the reason, and left out of the last column.",
        "",
    ]
    lines += [f"* {name}: {value}" for name, value in heading.items()]
    lines += ["", *rows, "", *kinds, ""]
    gaps = [r for r in results if r.outcome.verdict in ("survived", "broken") and r.reason is None]
    lines += ["## Survivors that are gaps", "", *(_listing(gaps) or ["None.", ""])]
    lines += ["## Survivors that compute the same", ""]
    for reason in dict.fromkeys(r.reason for r in results if r.reason is not None):
        lines += [f"{reason}", "", *_listing([r for r in results if r.reason == reason])]
    slow = [r for r in results if r.outcome.verdict == "time-out"]
    lines += ["## Time-outs (counted as killed)", "", *(_listing(slow) or ["None.", ""])]
    if stale:
        lines += ["## Accepted, but not found any more", "", *(f"* `{key}`" for key in stale), ""]
    return "\n".join(lines).rstrip() + "\n"


def _counts(part: list[Result]) -> str:
    count = Counter(r.outcome.verdict if r.reason is None else "equivalent" for r in part)
    gaps = count["survived"] + count["broken"]
    killed = count["killed"] + count["time-out"]
    share = f"{100 * killed / (killed + gaps):.1f} %" if killed + gaps else "-"
    return f"{len(part)} | {count['killed']} | {count['time-out']} | {count['equivalent']} | {gaps} | {share}"


def _listing(part: list[Result]) -> list[str]:
    if not part:
        return []
    lines = ["```diff"]
    for r in part:
        lines += [f"@@ {r.mutant.file}:{r.mutant.line} {r.mutant.kind}", f"- {r.mutant.old}", f"+ {r.mutant.new}"]
    return [*lines, "```", ""]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 unless fewer than 95 % of the mutants that are not equivalent were killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--sample", type=int, help="only so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--file", action="append", help="only files that match this glob; may be repeated")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be repeated")
    parser.add_argument("--only-accepted", action="store_true", help="only mutants of the table of accepted survivors")
    parser.add_argument("--list", action="store_true", help="print the mutants and do not run them")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="of the repository")
    parser.add_argument("--cover", action="append", help="GLOB=TESTS, instead of the built-in table; may be repeated")
    parser.add_argument("--accepted", type=Path, default=ACCEPTED, help="table of accepted survivors (TOML)")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds per mutant")
    parser.add_argument("--report", type=Path, help=f"Markdown; {REPORT} when everything is run, else none")
    args = parser.parse_args(argv)
    root = args.root.resolve()
    cover = dict(c.split("=", 1) for c in args.cover) if args.cover else COVER
    files = {str(p.relative_to(root)): t.split(",") for g, t in cover.items() for p in sorted(root.glob(g))}
    if args.file:
        files = {f: t for f, t in files.items() if any(fnmatch.fnmatch(f, g) for g in args.file)}
    if not files:
        parser.error("no file matches")

    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(root))
    began = time.monotonic()
    lab = Laboratory(root, args.limit)
    lab.prepare(sorted({t for tests in files.values() for t in tests}))
    known = accepted(args.accepted)
    work: list[tuple[Mutant, Reach]] = []
    for tests in dict.fromkeys(tuple(t) for t in files.values()):
        finders = [Finder(f, (root / f).read_text()) for f, t in files.items() if tuple(t) == tests]
        outcome, reach = explore(lab, finders, tests)
        if outcome.verdict != "survived":
            print(f"mutants: the tests do not pass on the unchanged files: {outcome.verdict} {outcome.by}")
            return 2
        work += [(m, reach) for finder in finders for m in finder.mutants(reach.gradients[finder.file])]
    total, keys = len(work), {m.key for m, _ in work}
    if args.kind:
        work = [w for w in work if w[0].kind in args.kind]
    if args.only_accepted:
        work = [w for w in work if w[0].key in known]
    if args.sample is not None and args.sample < len(work):
        chosen = sorted(random.Random(args.seed).sample(range(len(work)), args.sample))
        work = [work[i] for i in chosen]
    if args.list:
        print("\n".join(f"{m.kind:14}{m.file}:{m.line}\n    - {m.old}\n    + {m.new}" for m, _ in work))
        return 0
    print(f"{len(work)} of {total} mutants of {len(files)} files, {args.jobs} at a time", flush=True)

    results = run_all(lab, work, args.jobs, lambda line: print(line, flush=True))
    for result in results:
        if result.outcome.verdict == "survived":
            result.reason = known.get(result.mutant.key)
    wrong = [r.mutant.key for r in results if r.mutant.key in known and r.outcome.verdict != "survived"]
    everything = len(work) == total and not args.file
    stale = [*(k for k in known if everything and k not in keys), *wrong]
    minutes = (time.monotonic() - began) / 60
    options = " ".join(sys.argv[1:] if argv is None else argv)
    heading = {
        "command": f"`python tools/mutants.py{' ' + options if options else ''}`, {minutes:.1f} minutes",
        "mutants": f"{len(work)} of {total}" + ("" if len(work) < total else " (all)"),
        "versions": ", ".join([f"Python {platform.python_version()}", *_versions("torch", "hypothesis", "pytest")]),
    }
    path = args.report or (root / REPORT if everything and root == Path.cwd().resolve() else None)
    if path is not None:
        path.write_text(report(results, heading, stale))
    counts = Counter("equivalent" if r.reason else r.outcome.verdict for r in results)
    killed, gaps = counts["killed"] + counts["time-out"], counts["survived"] + counts["broken"]
    for r in results:
        if r.outcome.verdict in ("survived", "broken") and r.reason is None:
            place = f"{r.mutant.file}:{r.mutant.line} {r.mutant.kind}"
            print(f"{r.outcome.verdict} {place}\n- {r.mutant.old}\n+ {r.mutant.new}")
    for key in stale:
        print(f"accepted without need: {key}")
    share = killed / max(killed + gaps, 1)
    print(
        f"killed {killed} of {killed + gaps} ({100 * share:.1f} %), equivalent {counts['equivalent']}, {dict(counts)}"
    )
    return 0 if share >= ENOUGH else 1


def _versions(*names: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
