"""Bodies of functions: a local is named by what its value is, an assignment binds one thing (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import collections
import functools
from collections.abc import Iterator

import pytest

from tests import ROOT

WORDS = {
    "found", "said", "told", "asked", "own", "one", "theirs", "known", "wanted", "mine", "seen", "heard", "made",
    "shown", "what",
}  # fmt: skip
"""Words that say how a value came about, or whose it is, but not what it is."""
NAME_IT = "name it by what the value is: rows, metrics, refusal, prefix, budget"
SPLIT_IT = "write one assignment a line"
LEFT: dict[str, tuple[int, int]] = {
    "core": (2, 0), "loop/experience": (1, 2), "policy/packing": (7, 2), "report": (3, 8), "report/view": (22, 24),
    "rollouts": (17, 10), "rollouts/conversations": (3, 6), "rollouts/recording": (6, 6),
    "rollouts/sampler": (15, 37), "rollouts/vllm": (14, 13),
}  # fmt: skip
"""Room -> words and pairs of tuples that it had when the rule came; lower the numbers as they go. All others have 0."""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function, those within functions and classes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def stored_names(function: ast.AST) -> Iterator[ast.Name]:
    """Yield the names that a function assigns, without those of the functions and classes in it."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child
        yield from stored_names(child)


def word_complaints(tree: ast.AST) -> Iterator[str]:
    """Yield each private word, once for each function that stores it."""
    for function in functions(tree):
        lines = {name.id: name.lineno for name in reversed(list(stored_names(function)))}
        for word in sorted(WORDS & lines.keys()):
            yield f"{lines[word]}: {function.name} has a local `{word}`: {NAME_IT}"


def tuple_complaints(tree: ast.AST) -> Iterator[str]:
    """Yield each assignment of several values to several targets that is not a swap."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and not is_swap(target, node.value):
                yield f"{node.lineno}: {ast.unparse(node)[:80]}: {SPLIT_IT}"


def is_swap(target: ast.Tuple, value: ast.Tuple) -> bool:
    """True if the same expressions stand on both sides."""
    return {ast.unparse(element) for element in target.elts} == {ast.unparse(element) for element in value.elts}


@functools.cache
def room_complaints() -> dict[str, tuple[list[str], list[str]]]:
    """Return for each room of the package the complaints about words and about tuples."""
    rooms: dict[str, tuple[list[str], list[str]]] = collections.defaultdict(lambda: ([], []))
    package = ROOT / "gspo_lightning"
    for file in sorted(package.rglob("*.py")):
        folders = file.relative_to(package).parts[:-1]
        words, tuples = rooms["/".join(folders[:2]) or "."]
        tree = ast.parse(file.read_text("utf-8"))
        words += [f"{file.relative_to(ROOT)}:{complaint}" for complaint in word_complaints(tree)]
        tuples += [f"{file.relative_to(ROOT)}:{complaint}" for complaint in tuple_complaints(tree)]
    return rooms


def test_locals_are_named_by_what_they_are_and_assignments_bind_one_thing() -> None:
    rooms = room_complaints()
    assert len(rooms) > 40
    complaints = []
    for room, (words, tuples) in rooms.items():
        most_words, most_tuples = LEFT.get(room, (0, 0))
        if len(words) > most_words:
            complaints += [f"{room} has {len(words)} such locals, {most_words} at most:", *words]
        if len(tuples) > most_tuples:
            complaints += [f"{room} has {len(tuples)} such assignments, {most_tuples} at most:", *tuples]
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.thorough
def test_rooms_that_are_left_exist() -> None:
    assert LEFT.keys() <= room_complaints().keys()


@pytest.mark.parametrize(
    "body",
    [
        "found = f()", "for one in f(): pass", "if (known := f()): pass", "return [own for own in f()]",
        "def g():\n        said = 1", "with f() as (what, x): pass",
    ],
)  # fmt: skip
def test_private_word_is_found(body: str) -> None:
    [complaint] = word_complaints(ast.parse(f"def f():\n    {body}"))
    assert "name it by what the value is" in complaint


@pytest.mark.parametrize("body", ["rows = found()", "self.known = 1", "f(own=1)", "x.found = 2", "owned = 1"])
def test_other_names_are_no_private_words(body: str) -> None:
    assert not list(word_complaints(ast.parse(f"def f(one):\n    {body}")))


@pytest.mark.parametrize("line", ["a, b = 1, 2", "a, self.b = self.b, None", "a = b, c = 1, 2", "a, b = c, (d, e)"])
def test_tuple_of_assignments_is_found(line: str) -> None:
    [complaint] = tuple_complaints(ast.parse(line))
    assert SPLIT_IT in complaint


@pytest.mark.parametrize("line", ["a, b = b, a", "a, b = f()", "a[0], a[1] = a[1], a[0]", "pair = 1, 2", "a, *b = c"])
def test_swaps_and_unpacking_are_no_tuples_of_assignments(line: str) -> None:
    assert not list(tuple_complaints(ast.parse(line)))
