r"""Sets of real numbers: intervals, inequalities, excluded points, and their unions and intersections.

``]2,5]``, ``2 < x \le 5`` and ``x > 2 \text{ and } x \le 5`` are one set. Each text becomes a test of membership with
the points where it may change; two sets are equal if they agree at these points and between them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

Value = Callable[[str], "Fraction | None"]
"""The value of a constant; None if a text is none."""
Member = Callable[[Fraction], bool]

_TEXT = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]*)\}")
_RELATIONS = (
    (r"(?:greater|more|larger|bigger) than or equal to|no less than|not less than|at least|not smaller than", "\u2265"),
    (r"(?:less|smaller) than or equal to|no (?:more|greater) than|not (?:more|greater) than|at most", "\u2264"),
    (r"(?:strictly )?(?:greater|more|larger|bigger) than|above|exceeds|exceeding", ">"),
    (r"(?:strictly )?(?:less|smaller|fewer) than|below", "<"),
)
_IN_WORDS = tuple((re.compile(rf"(?:\b(?:is|are|must be) )?\b(?:{words})\b"), sign) for words, sign in _RELATIONS)
_SIGNS = {
    "positive": ">0",
    "negative": "<0",
    "nonnegative": "\u22650",
    "non-negative": "\u22650",
    "nonpositive": "\u22640",
}
_SIGNED = re.compile(rf"(?:\b(?:is|are|must be) )?\b({'|'.join(_SIGNS)})\b")
_ALL_REALS = re.compile(
    r"\b(?:all|any|every) (?:real )?(?:numbers?|reals?|values?)(?: of)?(?: (?:that are|which are|is|are))?"
)
_ALL_SIGNED = re.compile(rf"(?:all|any|every) ({'|'.join(_SIGNS)}) (?:real numbers?|reals?|numbers?)")
_SPELLINGS = (
    (re.compile(r"\\leq?(?![a-zA-Z])|<="), "\u2264"),
    (re.compile(r"\\geq?(?![a-zA-Z])|>="), "\u2265"),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\neq?(?![a-zA-Z])|!=|\\not\s*="), "\u2260"),
    (re.compile(r"\\cup(?![a-zA-Z])|\\lor(?![a-zA-Z])|\\vee(?![a-zA-Z])|\bor\b|\bU\b"), "\u222a"),
    (re.compile(r"\\cap(?![a-zA-Z])|\\land(?![a-zA-Z])|\\wedge(?![a-zA-Z])|\band\b|\bbut\b"), "\u2229"),
    (re.compile(r"\\(?:setminus|backslash)(?![a-zA-Z])"), "\u2216"),
    (re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\mathbf\s*\{\s*R\s*\}|\\R(?![a-zA-Z])|\u211d"
    r"|\ball real(?: number)?s?\b|\breals\b|\ball reals\b", re.IGNORECASE), "\u211d"),
    (re.compile(r"\\in(?![a-zA-Z])"), "\u2208"),
    (re.compile(r"\\(?:lvert|rvert|vert|mid)(?![a-zA-Z])"), "|"),
    (re.compile(r"\\(?:emptyset|varnothing)(?![a-zA-Z])"), "\u27e8\u27e9"),
    (re.compile(r"\\infty(?![a-zA-Z])"), "\u221e"),
    (re.compile(r"\\[{}]"), lambda m: "\u27e8" if m[0] == "\\{" else "\u27e9"),
    (re.compile(r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|[\s$~]|\\(?:left|right)(?![a-zA-Z])"), ""),
)  # fmt: skip
_VARIABLE = r"(?:[a-zA-Z]|\\(?:theta|alpha|beta|lambda|mu|phi))"
_BUILDER = re.compile(rf"\u27e8({_VARIABLE})(?:\u2208\u211d)?[|:](.*)\u27e9")
_INTERVAL = re.compile(r"([\[\](])([^,\[\]()]*(?:\([^()]*\))?[^,\[\]()]*)[,;]([^,\[\]]*?)([\])\[])")
_LINEAR = re.compile(
    rf"([+-]?(?:\d+|\\frac\{{\d+\}}\{{\d+\}})?)({_VARIABLE})(?:([+-])(.+))?|(.+?)([+-])(\d*)({_VARIABLE})"
)
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class RealSet:
    """A set: its test of membership, the points where that may change, and the variable it was written in."""

    member: Member
    points: tuple[Fraction, ...]
    variable: str = ""


def equal_sets(gold: str, given: str, value: Value) -> bool | None:
    r"""Compare two sets of reals; None unless both are sets and one is more than a list or a point.

    >>> from gspo_lightning.rewards.math.numbers import calculated
    >>> equal_sets("(2,5]", "]2,5]", calculated), equal_sets("(2,5)", "2 < x < 6", calculated)
    (True, False)
    >>> equal_sets("|k| > 3", "k > 3 or k < -3", calculated), equal_sets("42", "41", calculated)
    (True, None)
    """
    if max(len(gold), len(given)) > _LONGEST:
        return None
    ours = real_set(gold, value)
    candidate = real_set(given, value) if ours else None
    if (
        ours is None
        or candidate is None
        or (ours.variable and candidate.variable and ours.variable != candidate.variable)
    ):
        return None
    points = sorted({*ours.points, *candidate.points})
    merged = [point for i, point in enumerate(points) if i == 0 or not _near(points[i - 1], point)]
    snapped = {point: next(kept for kept in merged if kept == point or _near(kept, point)) for point in points}
    tests = [*merged, *((a + b) / 2 for a, b in itertools.pairwise(merged))]
    tests += [merged[0] - 1, merged[-1] + 1] if merged else [Fraction(0)]
    return all(_member(ours, x, snapped) == _member(candidate, x, snapped) for x in tests)


def _member(result: RealSet, x: Fraction, snapped: dict[Fraction, Fraction]) -> bool:
    """Test a point; a point that is another one's neighbour by rounding stands for it."""
    here = [point for point in result.points if snapped[point] == x]
    return result.member(here[0] if here else x)


def _near(a: Fraction, b: Fraction) -> bool:
    return abs(a - b) * 10**20 <= max(abs(a), abs(b))


def real_set(text: str, value: Value) -> RealSet | None:
    """Parse a set of reals; None if a text is not one, or only a list of numbers."""
    plain = _TEXT.sub(lambda m: f" {m[1]} ", text).strip(" .")
    plain = (
        re.sub(r"(?<!\\)\{(?=[^{}]*\})(?<![A-Za-z^_}]\{)", r"\\{", plain)
        if "\\{" not in plain and plain.startswith("{")
        else plain
    )
    anonymous = re.match(r"\s*(?:all|any|every)\b", plain) is not None
    plain = _in_signs(plain)
    for pattern, replacement in _SPELLINGS:
        plain = pattern.sub(replacement, plain)
    if not re.search("[<>\u2264\u2265\u2260\u222a\u2229\u2216\u211d\u2208\\[\\]]|\u27e8\u27e9|^\\(.*\\)$", plain):
        return None
    if builder := _BUILDER.fullmatch(plain):
        plain = builder[2]
    result = _union(plain, value)
    return RealSet(result.member, result.points) if result and anonymous else result


def _in_signs(text: str) -> str:
    """Write inequalities in words with signs: ``m is at least 2``, ``all real numbers greater than 2``."""
    if not re.search(r"[a-z]{4}", text) or "\\mathbb" in text:
        return text
    text = " ".join(text.split())
    if match := _ALL_SIGNED.fullmatch(text):
        return f"x{_SIGNS[match[1]]}"
    for pattern, sign in _IN_WORDS:
        text = pattern.sub(sign, text)
    text = _SIGNED.sub(lambda m: _SIGNS[m[1]], text)
    if subject := re.match(r"[a-z]\b", text):
        text = re.sub(r"\b(and|or) ?(?=[<>\u2264\u2265])", rf"\1 {subject[0]}", text)
    return _ALL_REALS.sub("x", text, count=1) if re.search("[<>\u2264\u2265]", text) else text


def _split(text: str, marks: str) -> list[str]:
    """Split at marks outside brackets, which for intervals need not match in kind."""
    pieces: list[str] = []
    depth = 0
    start = 0
    interval = re.compile(r"[\[\](][^\[\]()<>]*[,;][^\[\]()<>]*[\])\[]")
    position = 0
    while position < len(text):
        if depth == 0 and (match := interval.match(text, position)):
            position = match.end()
            continue
        character = text[position]
        depth += (character in "({\u27e8") - (character in ")}\u27e9")
        if character in marks and depth == 0:
            pieces.append(text[start:position])
            start = position + 1
        position += 1
    return [*pieces, text[start:]]


def _union(text: str, value: Value) -> RealSet | None:
    pieces = _split(text, "\u222a")
    if len(pieces) > 1:
        return _joined([_intersection(piece, value) for piece in pieces], any)
    return _intersection(text, value)


def _intersection(text: str, value: Value) -> RealSet | None:
    pieces = _split(text, "\u2229")
    if len(pieces) > 1:
        return _joined([_list(piece, value) for piece in pieces], all)
    return _list(text, value)


def _list(text: str, value: Value) -> RealSet | None:
    """Parse relations with commas between them: all hold, or, if that is impossible, one of them does."""
    text = text.strip(",;")
    if exclusion := re.fullmatch(rf"({_VARIABLE})\u2260(.+)", text):
        values = [value(piece) for piece in re.sub(rf"{_VARIABLE}\u2260", "", exclusion[2]).split(",")]
        resolved = [number for number in values if number is not None]
        return _without(None, resolved, exclusion[1]) if len(resolved) == len(values) else None
    pieces = _split(text, ",;")
    if len(pieces) == 1:
        return _atom(text, value)
    result = [_list(piece, value) if "\u2260" in piece else _atom(piece, value) for piece in pieces]
    both = _joined(result, all)
    if both is None or _inhabited(both):
        return both
    return _joined(result, any)


def _inhabited(result: RealSet) -> bool:
    points = sorted(result.points)
    between = [(a + b) / 2 for a, b in itertools.pairwise(points)]
    return any(map(result.member, [*points, *between, points[0] - 1, points[-1] + 1])) if points else True


def _joined(result: list[RealSet | None], how: Callable[[list[bool]], bool]) -> RealSet | None:
    sets = [item for item in result if item is not None]
    names = {item.variable for item in sets if item.variable}
    if len(sets) != len(result) or len(names) > 1:
        return None
    points = tuple(point for item in sets for point in item.points)
    return RealSet(lambda x: how([item.member(x) for item in sets]), points, next(iter(names), ""))


def _without(whole: RealSet | None, values: list[Fraction], variable: str) -> RealSet:
    base = whole or RealSet(lambda x: True, ())
    return RealSet(lambda x: base.member(x) and x not in values, (*base.points, *values), variable or base.variable)


def _atom(text: str, value: Value) -> RealSet | None:
    if len(text) > 1 and text[0] == "(" and text[-1] == ")" and re.search("[<>\u2264\u2265]", text):
        return _union(text[1:-1], value)
    if belongs := re.fullmatch(rf"({_VARIABLE})\u2208(.+)", text):
        result = _union(belongs[2], value)
        return RealSet(result.member, result.points, belongs[1]) if result else None
    minus = _split(text, "\u2216")
    if len(minus) == 2:
        whole = _union(minus[0], value)
        values = _finite(minus[1], value)
        if values is not None and whole is not None:
            return _without(whole, values, "")
        rest = _union(minus[1], value)
        if whole is None or rest is None:
            return None
        return RealSet(lambda x: whole.member(x) and not rest.member(x), (*whole.points, *rest.points))
    if text == "\u211d":
        return RealSet(lambda x: True, ())
    if half := re.fullmatch("\u211d[\\^_]\\{?([+-])\\}?", text):
        above = half[1] == "+"
        return RealSet(lambda x: (x > 0) if above else (x < 0), (Fraction(0),))
    if point := re.fullmatch(rf"({_VARIABLE})=([^=<>]+)", text):
        number = value(point[2])
        return RealSet(lambda x: x == number, (number,), point[1]) if number is not None else None
    if (values := _finite(text, value)) is not None:
        return RealSet(lambda x: x in values, tuple(values))
    if match := _INTERVAL.fullmatch(text):
        return _interval(match, value)
    return _relation(text, value)


def _finite(text: str, value: Value) -> list[Fraction] | None:
    if not (text.startswith("\u27e8") and text.endswith("\u27e9")):
        return None
    values = [value(piece) for piece in text[1:-1].split(",") if text[1:-1]]
    resolved = [number for number in values if number is not None]
    return resolved if len(resolved) == len(values) else None


def _interval(match: re.Match[str], value: Value) -> RealSet | None:
    opening, low, high, closing = match.groups()
    lower = None if low in ("-\u221e", "\u2212\u221e") else value(low)
    upper = None if high in ("\u221e", "+\u221e") else value(high)
    infinite = "\u221e" in low, "\u221e" in high
    if (lower is None and not infinite[0]) or (upper is None and not infinite[1]):
        return None
    if (
        (lower is not None and upper is not None and lower >= upper)
        or (infinite[0] and opening == "[")
        or (infinite[1] and closing == "]")
    ):
        return None

    def member(x: Fraction) -> bool:
        above = lower is None or x > lower or (x == lower and opening == "[")
        return above and (upper is None or x < upper or (x == upper and closing == "]"))

    return RealSet(member, tuple(end for end in (lower, upper) if end is not None))


_TESTS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "\u2264": lambda a, b: a <= b,
    "\u2265": lambda a, b: a >= b,
}


@dataclass(frozen=True, slots=True)
class _Side:
    """A side of an inequality: slope * x + constant, in bars if ``bars``."""

    slope: Fraction
    constant: Fraction
    variable: str = ""
    bars: bool = False

    def at(self, x: Fraction) -> Fraction:
        result = self.slope * x + self.constant
        return abs(result) if self.bars else result


def _relation(text: str, value: Value) -> RealSet | None:
    pieces = re.split("([<>\u2264\u2265])", text)
    sides = [_side(piece, value) for piece in pieces[::2]]
    signs = pieces[1::2]
    resolved = [side for side in sides if side is not None]
    names = {side.variable for side in resolved if side.variable}
    if not signs or len(signs) > 2 or len(resolved) != len(sides) or len(names) != 1:
        return None
    if any(side.variable and not side.bars and not _is_name(side) for side in resolved):
        return None  # 2x > 6 is still to be solved
    points = [point for a, b in itertools.pairwise(resolved) for point in _meetings(a, b)]

    def member(x: Fraction) -> bool:
        values = [side.at(x) for side in resolved]
        return all(_TESTS[sign](a, b) for a, sign, b in zip(values, signs, values[1:], strict=False))

    return RealSet(member, tuple(points), next(iter(names)))


def _is_name(side: _Side) -> bool:
    return side.slope == 1 and side.constant == 0


def _meetings(a: _Side, b: _Side) -> list[Fraction]:
    result = []
    for sign in (1, -1):
        slope = a.slope - sign * b.slope
        if slope:
            result.append((sign * b.constant - a.constant) / slope)
    bars = a.bars or b.bars
    return result if bars else result[:1]


def _side(text: str, value: Value) -> _Side | None:
    if len(text) > 2 and text[0] == text[-1] == "|" and "|" not in text[1:-1]:
        inner = _side(text[1:-1], value)
        return _Side(inner.slope, inner.constant, inner.variable, bars=True) if inner else None
    if (number := value(text)) is not None:
        return _Side(Fraction(0), number)
    match = _LINEAR.fullmatch(text)
    if match is None:
        return None
    variable_first = match[2] is not None
    factor = match[1] if variable_first else f"{match[6]}{match[7]}"
    rest = match[4] if variable_first else match[5]
    slope = value(factor) if factor not in ("", "+", "-") else Fraction(f"{factor}1")
    constant = value(rest) if rest else Fraction(0)
    if slope is None or constant is None:
        return None
    subtracted = variable_first and match[3] == "-"
    return _Side(slope, -constant if subtracted else constant, match[2] or match[8])
