r"""Answers made of several statements: named values, cases, congruences, families over the integers, ``\pm``.

Computer algebra reads none of these as the question means them: it accepts ``(2,1)`` for ``x=1, y=2``, and cannot read
a congruence, a piecewise definition or ``2k\pi, k \in \mathbb{Z}``. Each is split here, and its parts are compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from gspo_lightning.rewards.math.families import Family, equal_families
from gspo_lightning.rewards.math.notation import canonical

Same = Callable[[str, str], bool]
"""True if an answer (second argument) equals a record's (first)."""

_TEXT = r"\\(?:text|mathrm|textrm|mbox)\s*\{"
_SPACE = r"(?:\s|\\[,;:! ]|\\q?quad(?![a-z])|~)*"
NAMED = re.compile(r"^\s*(?:\\text\s*\{[^{}]*\}\s*)?\\?[a-zA-Z]+(?:_\{?\w+\}?)?(?:\([a-z]\))?\s*=\s*(?=[^=<>]+$)")
"""Name to which a value is assigned: ``x =``, ``f(x) =``, ``\\text{Area} =``."""
_OR = rf"{_TEXT}\s*(?:and|or)\s*\}}|\\(?:lor|land|vee|wedge)(?![a-z])|\b(?:and|or)\b"
_AND = re.compile(rf",?{_SPACE}(?:{_OR}){_SPACE}")
_EQUATION = re.compile(r"([A-Za-z]{1,2}(?:_\{?\w+\}?)?(?:\s*\(\s*[a-z]\s*\))?)\s*=([^=<>]+)")
_POINT = re.compile(rf"\(([^()]*)\){_SPACE}={_SPACE}\((.*)\)")
_COLUMNS = re.compile(
    rf"\\begin\{{([pb]matrix)\}}(?P<names>[A-Za-z0-9_{{}}\s\\&]*?)\\end\{{\1\}}{_SPACE}={_SPACE}"
    r"\\begin\{([pb]matrix)\}(?P<values>.*?)\\end\{\3\}",
    re.DOTALL,
)
"""Vector of names that is equal to a vector of values."""
_POINT_NAMED = re.compile(r"(?:\\[,;:! ]|\s)*([A-Z]'?(?:_\{?\w+\}?)?)\s*=?\s*(\([^()]*(?:\([^()]*\)[^()]*)*\))")
_ROWS = re.compile(
    r"(?:([^=]*)=\s*)?(?:\\\{\s*)?\\begin\{(cases|array|aligned|align\*?|gathered|matrix)\}(?:\{[lcr| ]*\})?"
    r"(.*)\\end\{\2\}[\s.]*",
    re.DOTALL,
)
_CONDITION = re.compile(rf"{_TEXT}([^{{}}]*)\}}|\b(?:if|for|when|where)\b|\\[,;:! ]|\\q?quad|~")
_MODULI = 10**5
"""Largest common modulus of congruences that are compared."""
_MODULUS = re.compile(
    rf"(.+?){_SPACE}\(?\s*(?:\\pmod|\\p?bmod|\\mod|\(?\s*(?:\\(?:text|mathrm|operatorname)\s*\{{\s*mod\s*\}}|\bmod))"
    r"\s*\{?\s*(\d{1,9})\s*\}?\s*\)?\s*"
)
_CONGRUENT = re.compile(r"\s*(?:[A-Za-z]\s*(?:\\equiv(?![a-z])|\u2261|=))?(.*)")
_RESIDUE = re.compile(r"(\\pm|\u00b1)?\s*([+-]?\d{1,9})")
_SET = r"(?:\\mathbb\s*\{?\s*(?P<one>[ZN])\s*\}?|\\mathbf\s*\{?\s*(?P<two>[ZN])\s*\}?|(?P<three>[ZN\u2124\u2115]))"
_BLANK = re.compile(rf"{_TEXT}([^{{}}]*)\}}|\\[,;:! ]|\\q?quad(?![a-z])|~|\$|\s+")
_DOMAIN = re.compile(
    r" ?[,;:(|]? ?(?:\\mid )?\(? ?(?:(?:where|for|with|and) )?(?:(?:all|any|every|some) )?"
    r"(?:integers? )?(?:\\forall ?)?"
    rf"(?<![a-zA-Z\\])(?P<letter>[a-zA-Z]) ?(?:\\in ?{_SET}(?P<mark> ?[\^_] ?(?:\{{[^{{}}]*\}}|[+*\d]))?|"
    r",? ?(?:is )?(?:an? )?(?:any )?(?P<sort>positive |natural |non-?negative )?(?:integers?|numbers?)|"
    r"(?<=integer .)|(?<=integers .)) ?\)? ?$"
)
_LISTED = re.compile(
    r"(?<![A-Za-z\\])([a-z]) ?= ?(?:(0) ?, ?1|(?:(1) ?, ?2)) ?(?:, ?[2-4] ?){0,2}, ?(?:\\[lc]?dots|\.\.\.|\u2026) ?$"
)
"""Domain as a list that goes on: ``k = 0, 1, 2, \\ldots``."""
_TAIL = 120
"""Characters at the end of a family that may name the domain of its variable."""
_BUILT = re.compile(r"\\?\{(.*)\\?\}", re.DOTALL)
_PM = re.compile(r"\\pm(?![a-zA-Z])")
_UNEQUAL = re.compile(r"^\s*[A-Za-z]\s*(?:\\neq?(?![a-z])|\u2260)\s*")


def compared(gold: str, given: str, same: Same, names: tuple[str, ...] = ()) -> bool | None:
    """Return the verdict on an answer if it or the record's has a structure of its own, else None.

    Args:
        gold: the record's answer, in LaTeX's spelling.
        given: the answer, in the same spelling.
        same: compares the parts.
        names: the order of the names of a point that the prompt asks for; without it, that of the alphabet.
    """
    for rule in (_by_rows, _by_congruence, _by_family):
        verdict = rule(gold, given, same)
        if verdict is not None:
            return verdict
    verdict = _by_names(gold, given, same, names)
    return _by_signs(gold, given, same) if verdict is None else verdict


def has_structure(gold: str) -> bool:
    """True if a record's answer can be compared although computer algebra does not read it.

    >>> has_structure(r"x \\equiv 3 \\pmod 7"), has_structure(r"\\frac{1}{")
    (True, False)
    """
    bare = re.sub(r"\\[{}]", "", gold)
    if bare.count("{") != bare.count("}"):
        return False
    return any((_rows(gold), congruence(gold), family(gold), has_signs(gold)))


def elements(text: str) -> list[str]:
    """Split a set or list at the commas outside brackets; names of the elements are removed.

    >>> elements(r"\\{1, (2,3)\\}"), elements("x = 1 or x = 2")
    (['1', '(2,3)'], ['1', '2'])
    """
    inner = re.fullmatch(r"\\?\{(.*?)\\?\}", text.strip(), re.DOTALL)
    pieces = _pieces(inner[1] if inner else text)
    return [stripped for piece in pieces if (stripped := NAMED.sub("", piece).strip())]


def _pieces(text: str) -> list[str]:
    text = _AND.sub(",", text)
    pieces: list[str] = []
    depth = 0
    piece = ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += character
    return [*pieces, piece]


def _matched(expected: list[str], answers: list[str], same: Same) -> bool:
    """True if the lists have the same elements, in any order; an answer with far more elements is not read."""
    if len(dict.fromkeys(answers)) > 2 * len(dict.fromkeys(expected)) + 4:
        return False
    return same_elements(expected, answers, same)


def same_elements(ours: list[str], others: list[str], same: Same) -> bool:
    """True if each element of one list equals an element of the other, in any order, however often it stands there."""
    ours = list(dict.fromkeys(ours))
    others = list(dict.fromkeys(others))
    if not all(any(same(a, b) for b in others) for a in ours):
        return False
    return all(any(same(a, b) for a in ours) for b in others)


# named values -------------------------------------------------------------------------------------------------------


def _names(text: str) -> dict[str, str] | None:
    r"""Parse ``x=1, y=2`` and ``(x,y) = (1,2)`` by name, in order; None unless there are two or more named values."""
    if point := _POINT.fullmatch(text.strip()):
        return _paired(point[1].split(","), _pieces(point[2]), letters=True)
    if columns := _COLUMNS.fullmatch(text.strip()):
        return _paired(*(re.split(r"\\\\|&", columns[group]) for group in ("names", "values")))
    inner = re.fullmatch(r"\\?\{(.*?)\\?\}|\((.*)\)", text.strip(), re.DOTALL)
    equations = [
        _EQUATION.fullmatch(re.sub(rf"^{_SPACE}|{_SPACE}$", "", piece))
        for piece in _pieces((inner[1] or inner[2] or "") if inner else text)
    ]
    if not all(equations):
        return _points(text)
    named = [(equation[1], equation[2]) for equation in equations if equation]
    return _paired([name for name, _ in named], [value for _, value in named])


def _paired(names: list[str], values: list[str], *, letters: bool = False) -> dict[str, str] | None:
    """Return the values by name; None unless there are as many values as different names, two or more."""
    plain = [name.strip() for name in names]
    if len(plain) != len(values) or not 1 < len(plain) == len(set(plain)):
        return None
    if letters and not all(re.fullmatch(r"[A-Za-z](?:_\{?\w+\}?)?", name) for name in plain):
        return None
    return dict(zip(plain, (value.strip() for value in values), strict=True))


def _points(text: str) -> dict[str, str] | None:
    """Parse named points: ``P(1,2), Q(3,4)`` or ``P = (1,2), Q = (3,4)``; None unless there are two or more."""
    matches = [_POINT_NAMED.fullmatch(piece.strip(" \\,")) for piece in _pieces(text)]
    names = {match[1]: match[2] for match in matches if match}
    return names if len(names) == len(matches) > 1 else None


def _by_names(gold: str, given: str, same: Same, order: tuple[str, ...]) -> bool | None:
    """Compare named values; a point lists them in the order of their names, a list in the record's order."""

    def ordered(names: dict[str, str]) -> list[str]:
        return list(order) if set(order) == set(names) else sorted(names)

    expected = _names(gold)
    result = _names(given)
    if expected and result:
        if set(expected) != set(result):
            return None
        return all(same(value, result[name]) for name, value in expected.items())
    if expected:
        point = re.fullmatch(r"\s*\((.*)\)\s*", given)
        values = [value.strip() for value in _pieces(point[1] if point else given)]
        if len(values) != len(expected) or "=" in given or re.match(r"\s*\\?\{", given):
            return None
        names = ordered(expected) if point else list(expected)
        return all(same(expected[name], value) for name, value in zip(names, values, strict=True))
    if result:
        point = re.fullmatch(r"\s*\((.*)\)\s*", gold)
        if not point or "=" in gold:
            return None if "=" in gold else same(gold, ", ".join(result.values()))
        values = [value.strip() for value in _pieces(point[1])]
        coordinates = [result[name] for name in ordered(result)]
        return len(values) == len(coordinates) and all(map(same, values, coordinates))
    return None


# cases --------------------------------------------------------------------------------------------------------------


def _rows(text: str) -> tuple[str, list[list[str]]] | None:
    """Return the name defined by an environment of rows, and its rows."""
    match = _ROWS.fullmatch(text.strip())
    if match is None:
        return None
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", match[3]) if row.strip()]
    aligned = match[2] != "cases" and match[2] != "array"
    return match[1] or "", [[row.replace("&", "")] if aligned else row.split("&") for row in rows]


def _by_rows(gold: str, given: str, same: Same) -> bool | None:
    expected = _rows(gold)
    result = _rows(given)
    if expected is None or not expected[1]:
        if result is None or any(len(row) > 1 for row in result[1]) or result[0]:
            return None
        return same(gold, _system(result[1]))
    if all(len(row) == 1 for row in expected[1]):
        return same(_system(expected[1]), _system(result[1]) if result else given)
    if result is None or len(result[1]) != len(expected[1]):
        return False
    if any(len(row) != 2 for row in (*expected[1], *result[1])):
        return False
    rest = list(result[1])
    for value, condition in expected[1]:
        for row in rest:
            if _same_condition(condition, row[1], same) and same(value.strip(" ,"), row[0].strip(" ,")):
                rest.remove(row)
                break
        else:
            return False
    return True


def _system(rows: list[list[str]]) -> str:
    """Return the equations of a system as a list."""
    return ", ".join(row[0].strip(" ,;") for row in rows)


def _same_condition(gold: str, given: str, same: Same) -> bool:
    expected = _condition(gold)
    result = _condition(given)
    if canonical(expected) == canonical(result):
        return True
    if "otherwise" in (expected, result) or not re.search(r"[<>]|\\[lg]e", expected):
        return False
    return same(expected, result)


def _condition(text: str) -> str:
    """Return a condition without fonts and words such as "if"."""
    plain = _CONDITION.sub(lambda m: f" {m[1]} " if m[1] else " ", text.replace("$", ""))
    plain = re.sub(r"\b(?:if|for|when|where|is)\b", " ", plain).strip(" ,.\n")
    return re.sub(r"^(?:else|otherwise)$", "otherwise", plain)


# congruences ---------------------------------------------------------------------------------------------------------


def congruence(text: str) -> tuple[frozenset[int], int] | None:
    r"""Return the residues and modulus of ``x \equiv 1, 3 \pmod 8``."""
    match = _MODULUS.fullmatch(text.strip())
    if match is None or int(match[2]) < 1 or not re.search(r"\\equiv|\u2261", match[1]):
        return None
    modulus = int(match[2])
    residues = set[int]()
    for piece in _pieces(match[1]):
        statement = _CONGRUENT.fullmatch(piece.strip())
        residue = _RESIDUE.fullmatch(re.sub(rf"^{_SPACE}|{_SPACE}$", "", statement[1])) if statement else None
        if residue is None:
            return None
        residues |= {int(residue[2]) % modulus} | ({-int(residue[2]) % modulus} if residue[1] else set())
    return frozenset(residues), modulus


def _by_congruence(gold: str, given: str, same: Same) -> bool | None:
    expected = congruence(gold)
    if expected is None:
        return None
    answer = family(given)
    if answer is not None:
        return equal_families(of_residues(*expected, answer.variable), answer)
    result = congruence(given if re.search(r"\\equiv|\u2261", given) else f"x \\equiv {given}")
    if result is None:
        return False
    common = math.lcm(expected[1], result[1])
    return expected == result or (common <= _MODULI and _modulo(*expected, common) == _modulo(*result, common))


def of_residues(residues: frozenset[int], modulus: int, variable: str = "k") -> Family:
    """Return the family of all integers with given residues."""
    return Family(tuple(f"{residue}+{modulus}{variable}" for residue in sorted(residues)), variable, "Z")


def _modulo(residues: frozenset[int], modulus: int, multiple: int) -> set[int]:
    """Return residues modulo a multiple of their modulus."""
    return {residue + step for residue in residues for step in range(0, multiple, modulus)}


# families ------------------------------------------------------------------------------------------------------------


def family(text: str) -> Family | None:
    r"""Return the terms and the variable of ``2k\pi, k \in \mathbb{Z}``; ``\pm`` stands for two terms."""
    built = _BUILT.fullmatch(text.strip())
    text = built[1].rstrip("\\") if built else text.strip()
    text = re.sub(" +", " ", _BLANK.sub(lambda m: f" {m[1]} " if m[1] else " ", text)).strip()
    text = _LISTED.sub(lambda m: f"{m[1]} \\in \\mathbb{{N}}_{'0' if m[2] else '+'}", text)
    start = max(0, len(text) - _TAIL)
    domain = _DOMAIN.search(text, start)
    if domain is None:
        return None
    body = text[: domain.start()].strip(" ,;")
    if not _uses(body, domain["letter"]):
        return None
    return Family(_terms(body), domain["letter"], _domain(domain))


def _domain(match: re.Match[str]) -> str:
    """Return the set that a family's variable runs through."""
    positive = "+" in (match["mark"] or "") or (match["sort"] or "").startswith("positive")
    natural = any(name in ("N", "\u2115") for name in (match["one"], match["two"], match["three"]))
    if positive:
        return "N+"
    if "0" in (match["mark"] or ""):
        return "N0"
    return "N" if natural or match["sort"] else "Z"


def _terms(body: str) -> tuple[str, ...]:
    return tuple(value for element in elements(body) for value in _signed(element))


def _uses(body: str, letter: str) -> bool:
    return re.search(rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])|(?<![a-zA-Z\\]){letter}\\", body) is not None


def _by_family(gold: str, given: str, same: Same) -> bool | None:
    """Compare families by their elements; the integer variable may have any name."""
    expected = family(gold)
    if expected is None:
        return None
    answer = family(given)
    if answer is None:
        if (classes := congruence(given)) is not None:
            return equal_families(expected, of_residues(*classes))
        letters = [other for other in "knmlt" if _uses(given, other) and not _uses(gold, other)]
        unnamed = letters[0] if len(letters) == 1 and not _uses(given, expected.variable) else expected.variable
        if not _uses(given, unnamed):
            return False
        answer = Family(_terms(given), unnamed)
    verdict = equal_families(expected, answer)
    if verdict is not None:
        return verdict
    name = rf"(?<![a-zA-Z\\]){answer.variable}(?![a-zA-Z])"
    renamed = [re.sub(name, expected.variable, term) for term in answer.terms]
    return answer.domain in ("", expected.domain) and _matched(list(expected.terms), renamed, same)


# signs ---------------------------------------------------------------------------------------------------------------


def has_signs(text: str) -> bool:
    r"""True if a text has a ``\pm``."""
    return _PM.search(text) is not None


def _signed(text: str) -> list[str]:
    r"""Return the values of ``1 \pm \sqrt{2}``; signs are independent, but ``\mp`` is the opposite of ``\pm``."""
    if "\\mp" in text:
        pairs = (("+", "-"), ("-", "+"))
        return [_PM.sub(plus, text).replace("\\mp", minus) for plus, minus in pairs]
    values = [""]
    for index, piece in enumerate(_PM.split(text)):
        values = [value + sign + piece for value in values for sign in (("+", "-") if index else ("",))][:16]
    return [re.sub(r"^\s*\+", "", value) for value in values]


def _by_signs(gold: str, given: str, same: Same) -> bool | None:
    """Compare values with signs; None if no sign in the record's answer stands for two."""
    if not has_signs(gold) or bool(_UNEQUAL.match(gold)) != bool(_UNEQUAL.match(given)):
        return None
    expected = _all_signed(gold)
    answers = _all_signed(given)
    return _matched(expected, answers, same)


def _all_signed(text: str) -> list[str]:
    """Return the values of all elements of a list, with both signs of each."""
    plain = _UNEQUAL.sub("", text)
    return [value for element in elements(plain) for value in _signed(_UNEQUAL.sub("", element))]
