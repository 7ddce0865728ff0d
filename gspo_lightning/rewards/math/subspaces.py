r"""Bases, spans and lines, of which each has many descriptions: any basis of a plane answers "find a basis".

Which of these a record means is said by the prompt: a basis or span is compared as a space, eigenvectors each up to a
factor. ``(1,2,3) + t(1,0,-1)`` is a point and directions, and compared as the set of points it runs through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.equations import split
from gspo_lightning.rewards.math.identity import number_at, rank
from gspo_lightning.rewards.math.lists import vector
from gspo_lightning.rewards.math.question import Question

_ASKED = (
    r"\b(?:find|give|determine|compute|state|describe|write|what (?:is|are))\s+(?:down\s+)?"
    r"(?:(?:an?|the|all|one|two)\s+)?(?:(?!(?:onto|on|to|in|of|from|for|with)\b)[\w-]+\s+){0,2}?"
)
_SPACE = re.compile(
    _ASKED + r"(?:bas[ie]s|span|(?:null|eigen|column|row|solution)[- ]?spaces?|kernel|orthogonal complement)\b"
    r"(?!\s+(?:elements?|members?|vectors?)\b)",
    re.IGNORECASE,
)
_EACH = re.compile(_ASKED + r"(?:eigenvectors?|(?:direction|normal) vectors?)\b(?!\s+from\b)", re.IGNORECASE)
_EIGENBASIS = re.compile(
    r"\bbas[ie]s\b[^.?!]{0,40}\b(?:of|by|from|with)\s+(?:the\s+)?(?:\w+\s+){0,2}?eigenvectors\b", re.IGNORECASE
)
"""A basis that no other one of its space replaces."""
_EXACT = re.compile(
    r"\b(?:unit|orthonormal|orthogonal(?! complement)|normali[sz]ed|norm|length|coordinates?|components?|entry|entries"
    r"|dual|lattice|jordan|gram)\b",
    re.IGNORECASE,
)
"""Words of a prompt that asks for one of the many bases or vectors."""
_WRAPPED = re.compile(
    r"\s*(?:[A-Z]\s*=\s*)?(?:\\(?:operatorname|text|mathrm)\s*\{\s*span\s*\}|\\?span(?![a-z]))?\s*"
    r"(?:\\left)?\s*(?:\\\{(.*?)(?:\\right)?\s*\\\}|(\(\s*[(\\].*[)}]\s*\)))\s*",
    re.DOTALL,
)
_DOMAIN = re.compile(
    r"(?:\\[,;:! ]|\\q?quad(?![a-z])|[\s,;(|:]|\\(?:mid|text\s*\{\s*(?:for|where|with)?\s*\}))+"
    r"[a-z](?:\s*,\s*[a-z])?\s*(?:\\in(?![a-z])\s*\\?(?:mathbb\s*\{?\s*)?(?P<set>[RZ])\s*\}?|\\neq?(?![a-z])\s*0)\s*\)?\s*$"
)
_COLUMN = r"\\begin\{[pbv]?matrix\}.*?\\end\{[pbv]?matrix\}|\\langle.*?\\rangle|\([^()]*,[^()]*\)"
_TERM = re.compile(rf"\s*([+-]?)\s*(\d*\s*[a-z](?:_\{{?\d\}}?)?)?\s*(?:\\cdot\s*)?({_COLUMN})\s*", re.DOTALL)
_NAMED = re.compile(r"\s*(?:(?:\\vec|\\mathbf)\s*\{?\s*[a-z]\s*\}?|[a-z]|\(\s*[a-z](?:\s*,\s*[a-z])+\s*\))\s*=\s*")
_MOST = 8
_LONGEST = 400

Vector = list[complex]


@dataclass(frozen=True, slots=True)
class Flat:
    """A point and the directions that can be added to it: by integer multiples if ``integer``, else by any."""

    point: Vector
    directions: list[Vector]
    integer: bool = False


def equal_subspaces(gold: str, given: str, question: Question) -> bool | None:
    r"""Compare vectors as the prompt means them, or two flats; None if the texts are neither.

    >>> equal_subspaces(r"\{(1,-1,0),(1,0,-1)\}", r"\{(1,-1,0),(0,1,-1)\}", Question("Find a basis."))
    True
    >>> equal_subspaces(r"(1,2)+t(1,0), t\in\mathbb{R}", r"(3,2)+s(2,0), s\in\mathbb{R}", Question())
    True
    """
    if max(len(gold), len(given)) > _LONGEST:
        return None
    ours = flat(gold)
    candidate = flat(given) if ours else None
    if ours is not None and candidate is not None:
        return _same_flat(ours, candidate)
    if not question.text or _EXACT.search(question.text):
        return None
    space = _SPACE.search(question.text) is not None and not _EIGENBASIS.search(question.text)
    if not space and not _EACH.search(question.text) and not _EIGENBASIS.search(question.text):
        return None
    expected = _vectors(gold)
    result = _vectors(given) if expected else None
    if not expected or not result or len({len(item) for item in (*expected, *result)}) > 1:
        return None
    if len(expected) != len(result):
        return False
    if not space:
        if any(rank([item]) == 0 for item in result):
            return False  # the zero vector is a multiple of every vector
        return all(any(rank([a, b]) == 1 for b in result) for a in expected) and all(
            any(rank([a, b]) == 1 for a in expected) for b in result
        )
    return rank(expected) == rank(result) == rank([*expected, *result]) == len(result)


def is_flat(text: str) -> bool:
    """True if a text is a point with directions, or the span of vectors."""
    return len(text) <= _LONGEST and (flat(text) is not None or ("span" in text and bool(_vectors(text))))


def _vectors(text: str) -> list[Vector] | None:
    """Return the vectors of a set, list, span or combination; None if a text is none of these."""
    text = _without_domain(text)[0]
    wrapped = _WRAPPED.fullmatch(text)
    inner = text if wrapped is None else wrapped[1] or wrapped[2][1:-1]
    pieces = split(inner, ",")
    if len(pieces) > _MOST:
        return None
    numbers = [_numbers(piece) for piece in pieces]
    vectors = [item for item in numbers if item]
    if len(vectors) == len(pieces):
        return vectors
    terms = _terms(inner)
    letters = {factor for factor, _ in terms if factor}
    free = terms and len(letters) == len(terms)
    return [direction for _, direction in terms] if free else None


def flat(text: str) -> Flat | None:
    """Parse a point and directions, or coordinates that are linear in one letter; None for anything else."""
    body, domain = _without_domain(text)
    body = body.strip()
    terms = _terms(_NAMED.sub("", body, count=1)) if "=" not in body or _NAMED.match(body) else None
    letters = [factor for factor, _ in terms or () if factor]
    if len(letters) != len(set(letters)):
        return None  # two terms with one letter are one direction
    if terms and any(factor for factor, _ in terms) and any(not factor for factor, _ in terms):
        if domain == "0":
            return None  # one point of it is missing
        points = [item for factor, item in terms if not factor]
        directions = [item for factor, item in terms if factor]
        return Flat(points[0], directions, domain == "Z") if len(points) == 1 else None
    if terms and domain in ("R", "Z") and all(factor for factor, _ in terms):
        return Flat([0j] * len(terms[0][1]), [item for _, item in terms], domain == "Z")
    return _coordinates(body, integer=domain == "Z") if domain in ("R", "Z") else None


def _without_domain(text: str) -> tuple[str, str]:
    """Return a text without the sets its letters run through, and the first one, ``0`` if 0 alone is excepted."""
    domain = ""
    while match := _DOMAIN.search(text):
        domain = match["set"] or domain or "0"
        text = text[: match.start()]
    return text, domain


def _terms(text: str) -> list[tuple[str, Vector]]:
    """Return the letters and the vectors of a sum, a letter's number multiplied in; empty if a text is none."""
    terms: list[tuple[str, Vector]] = []
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None or match.end() == position or len(terms) == _MOST or (terms and not match[1]):
            return []
        coordinates = _numbers(match[3])
        if coordinates is None:
            return []
        letter = (match[2] or "").lstrip("0123456789")
        number = (match[2] or "").removesuffix(letter)
        multiple = int(number or 1) * (-1 if match[1] == "-" else 1)
        terms.append((letter.strip(), [multiple * x for x in coordinates]))
        position = match.end()
    return terms if len({len(coordinates) for _, coordinates in terms}) == 1 else []


def _numbers(text: str) -> Vector | None:
    """Return the coordinates of a vector of constants."""
    coordinates = vector(text.strip())
    if coordinates is None or len(coordinates) > _MOST:
        return None
    values = [library.constant(item) for item in coordinates if len(item) < 60]
    numbers = [complex(value) for value in values if value is not None]
    return numbers if len(numbers) == len(coordinates) else None


def _coordinates(text: str, *, integer: bool) -> Flat | None:
    r"""Parse ``(3+5t, 2-4t)`` or ``x = 3+5t, y = 2-4t``."""
    pieces = vector(_NAMED.sub("", text, count=1)) if text.count("=") <= 1 else None
    if pieces is None:
        equations = [re.fullmatch(r"\s*([a-z])\s*=([^=]+)", piece) for piece in split(text, ",")]
        named = {match[1]: match[2] for match in equations if match}
        if len(named) != len(equations) or len(named) < 2:
            return None
        pieces = [named[name] for name in sorted(named)]
    if len(pieces) > _MOST or any(len(piece) > 60 for piece in pieces):
        return None
    readings = [library.parse(piece, boxed=True) for piece in pieces]
    expressions = [items[0] for items in readings if items and hasattr(items[0], "free_symbols")]
    letters = {symbol for item in expressions for symbol in item.free_symbols}
    if len(expressions) != len(pieces) or len(letters) != 1:
        return None
    letter = letters.pop()
    rows = [[number_at(item, {letter: x}) for item in expressions] for x in (0.0, 1.0, 3.0)]
    values = [[x for x in row if x is not None] for row in rows]
    if any(len(row) != len(pieces) for row in values):
        return None
    direction = [b - a for a, b in zip(values[0], values[1], strict=True)]
    bent = [abs(a + 3 * d - c) > 1e-9 for a, d, c in zip(values[0], direction, values[2], strict=True)]
    return None if any(bent) else Flat(values[0], [direction], integer)


def _same_flat(ours: Flat, candidate: Flat) -> bool:
    if len(ours.point) != len(candidate.point) or ours.integer != candidate.integer:
        return False
    between = [b - a for a, b in zip(ours.point, candidate.point, strict=True)]
    if ours.integer:
        return _same_steps(ours, candidate, between)
    size = rank(ours.directions)
    if size != rank(candidate.directions):
        return False
    return size == rank([*ours.directions, *candidate.directions, between])


def _same_steps(ours: Flat, candidate: Flat, between: Vector) -> bool:
    """True if two flats of integer multiples have one direction, up to its sign, and their points whole steps apart."""
    if len(ours.directions) != 1 or len(candidate.directions) != 1:
        return False
    step = ours.directions[0]
    other = candidate.directions[0]
    if not any(all(abs(a - sign * b) < 1e-9 for a, b in zip(step, other, strict=True)) for sign in (1, -1)):
        return False
    place = max(range(len(step)), key=lambda i: abs(step[i]))
    times = round((between[place] / step[place]).real) if step[place] else 0
    return all(abs(d - times * s) < 1e-9 for d, s in zip(between, step, strict=True))
