r"""Lists, sets, points and vectors, compared element by element.

The order of a list counts if the prompt asks for one, and how often a value stands in it if the prompt asks for that or
both lists repeat a value; a set in braces has neither. A point, ``\langle 1, 2 \rangle``, a column and ``i + 2j`` are
one vector.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gspo_lightning.rewards.math.equations import split
from gspo_lightning.rewards.math.numbers import calculated
from gspo_lightning.rewards.math.question import Question
from gspo_lightning.rewards.math.structure import same_elements

Same = Callable[[str, str], bool]
_MOST = 12
"""Most elements that are compared one by one."""
_BRACES = re.compile(r"\s*\\?\{(.*?)\\?\}\s*", re.DOTALL)
_AND = re.compile(r",?\s*(?:\\(?:text|mathrm|mbox|textrm)\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*")
_NAME = re.compile(r"^\s*\\?[a-zA-Z]+(?:_\{?\w+\}?)?\s*=\s*(?=[^=<>]+$)")
_POINT = re.compile(
    r"\s*(?:[A-Z]'?\s*=?\s*)?(\(|\[|\\langle(?![a-z])|\\left\\langle|<)(.*?)(\)|\]|\\rangle(?![a-z])"
    r"|>)(?:\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?)?\s*",
    re.DOTALL,
)
_FACTOR = re.compile(
    r"\s*([+-]?(?:\d+|\\frac\{[^{}]*\}\{[^{}]*\}))\s*(?:\\cdot\s*)?(\(.*\)|\\begin.*|\\langle.*)", re.DOTALL
)
_MATRIX = re.compile(r"\s*\\begin\{([pbBvV]?matrix|array)\}(?:\{[lcr|]*\})?(.*?)\\end\{\1\}\s*", re.DOTALL)
_BASIS = re.compile(
    r"([+-]?)((?:[^+\-{}()]|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\([^()]*\))*?)\\?(?:mathbf|hat|vec|bm|boldsymbol"
    r"|textbf)\s*\{?\s*\\?(?:mathbf\s*\{)?\s*([ijk])(?:math)?\s*\}{0,2}"
)
_SPACE = re.compile(r"\s+|\\[,;:! ]")


def by_lists(gold: str, given: str, same: Same, question: Question) -> bool | None:
    """Compare points, vectors and lists; None if the two are not of one kind.

    Args:
        gold: the record's answer, in LaTeX's spelling.
        given: the answer, in the same spelling.
        same: compares two elements.
        question: the prompt, which may ask for an order or for multiplicities.
    """
    point = vector(gold)
    if point is not None:
        candidate = vector(given) or _multiple(given)
        if candidate is None or max(len(point), len(candidate)) > _MOST:
            return None
        if question.names and (order := _named(given, question)) is not None:
            candidate = order
        if len(candidate) == 2 and len(point) == 3 and _by_basis(given) is not None:
            candidate = [*candidate, "0"]  # i + j in space
        if len(point) == 2 and len(candidate) == 3 and _by_basis(gold) is not None:
            point = [*point, "0"]
        return len(point) == len(candidate) and all(map(same, point, candidate))
    expected = _elements(gold)
    result = _elements(given) or (_chain(given) if question.ordered else None)
    if expected is None or len(expected) > _MOST:
        return None
    if result is None:
        return _single_of_several(expected, _NAME.sub("", given), same)
    if len(result) > _MOST:
        return None
    braces = [_BRACES.fullmatch(text) is not None for text in (gold, given)]
    if question.ordered and not any(braces) and len(expected) > 1:
        return len(expected) == len(result) and all(map(_alike(same), expected, result))
    repeats = all(len(set(values)) < len(values) for values in (expected, result))
    if len(expected) < 2 and not braces[0]:
        return None
    if not braces[0] and (question.counted or repeats) and len(expected) != len(result):
        return False
    return _matched(expected, result, _alike(same), counted=not braces[0] and (question.counted or repeats))


def _chain(text: str) -> list[str] | None:
    """Return the members of a chain of one relation, which lists them in order: ``0.5 < 0.6 < 2``."""
    for sign in (r"<|\\lt(?![a-z])", r">|\\gt(?![a-z])"):
        members = [piece.strip() for piece in re.split(sign, text)]
        values = [calculated(member) for member in members]
        numbers = [number for number in values if number is not None]
        if len(members) > 2 and len(numbers) == len(members):
            return members if numbers == sorted(numbers, reverse=sign.startswith(">")) else None
    return None


def _multiple(text: str) -> list[str] | None:
    r"""Return the coordinates of a vector with a number in front: ``\frac15(3, 4)``."""
    match = _FACTOR.fullmatch(text)
    coordinates = vector(match[2]) if match else None
    return [f"{match[1]}\\cdot({item})" for item in coordinates] if match and coordinates else None


def _single_of_several(expected: list[str], given: str, same: Same) -> bool | None:
    """Return False if an answer is one of several different values, None if it is none of them, or all."""
    equal = {same(value, given) for value in expected}
    return False if equal == {True, False} else None


def _alike(same: Same) -> Same:
    """Compare elements; a set is never equal to its only element."""

    def compare(ours: str, candidate: str) -> bool:
        braces = [_BRACES.fullmatch(text) is not None for text in (ours, candidate)]
        return braces[0] == braces[1] and same(ours, candidate)

    return compare


def _matched(expected: list[str], result: list[str], same: Same, *, counted: bool) -> bool:
    """True if two lists have the same elements in any order; ``counted``: each as often."""
    if not counted:
        return same_elements(expected, result, same)
    rest = list(result)
    for value in expected:
        match = next((other for other in rest if same(value, other)), None)
        if match is None:
            return False
        rest.remove(match)
    return not rest


def _elements(text: str) -> list[str] | None:
    """Return the elements of a set in braces or of a list with commas; None for anything else."""
    inner = _BRACES.fullmatch(text) if re.match(r"\s*\\?\{.*\\?\}\s*$", text, re.DOTALL) else None
    if inner is None and re.match(r"\s*[(\[]|.*\\begin|.*[<>]|.*\\(?:cup|cap|le|ge|in|ne|mid)(?![a-z])", text):
        return None
    body = _AND.sub(",", inner[1] if inner else text)
    pieces = [piece for part in split(body, ",") for piece in split(part, ";")]
    values = [_NAME.sub("", piece).strip() for piece in pieces]
    return values if all(values) and (inner or len(values) > 1) else None


def vector(text: str) -> list[str] | None:
    r"""Return the coordinates of a point, a vector in angle brackets, a single row or column, or ``i + 2j``.

    >>> vector(r"\langle 1, 2\rangle"), vector(r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"), vector("A(1, 2)")
    (['1', '2'], ['1', '2'], ['1', '2'])
    >>> vector(r"\mathbf{i} - 2\mathbf{k}"), vector("1, 2"), vector("(1, 2]")
    (['1', '0', '-2'], None, None)
    """
    if match := _MATRIX.fullmatch(text):
        rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", match[2]) if row.strip()]
        cells = [cell.strip() for row in rows for cell in row.split("&")]
        single = len(rows) == 1 or len(cells) == len(rows)
        return cells if single and len(cells) > 1 and all(cells) else None
    if (match := _POINT.fullmatch(text)) and (match[1][-1:] + match[3][-1:]) in ("()", "ee", "<>"):
        cells = split(match[2], ",")
        plain = not re.search(r"[<>=]|\\cup|^[^(]*\)", match[2])
        return cells if len(cells) > 1 and all(cells) and plain else None
    return _by_basis(text)


def _by_basis(text: str) -> list[str] | None:
    plain = _SPACE.sub("", text)
    if "=" in plain or not re.search(r"\\(?:mathbf|hat|vec|bm|boldsymbol|textbf)", plain) or len(plain) > 200:
        return None
    result: dict[str, str] = {}
    position = 0
    while position < len(plain):
        match = _BASIS.match(plain, position)
        if match is None or match.end() == position or match[3] in result:
            return None
        factor = match[2].removesuffix("\\cdot").removesuffix("*") or "1"
        result[match[3]] = f"{'-' if match[1] == '-' else ''}{factor}"
        position = match.end()
    names = "ijk" if "k" in result else "ij"
    return [result.get(name, "0") for name in names]


def _named(given: str, question: Question) -> list[str] | None:
    """Return named values in the order of the names that the prompt asks for; None if they are not named."""
    pairs = dict(re.findall(r"([A-Za-z](?:_\{?\w+\}?)?)\s*=\s*([^,;=]+)", given))
    return [pairs[name] for name in question.names] if set(pairs) == set(question.names) else None
