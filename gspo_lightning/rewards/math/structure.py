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
_EQUATION = re.compile(r"([A-Za-z]{1,2}(?:_\{?\w+\}?)?)\s*=([^=<>]+)")
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
    return any((_rows(gold), _congruence(gold), _family(gold), has_signs(gold)))


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
    found, depth, piece = [], 0, ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 0:
            found.append(piece)
            piece = ""
        else:
            piece += character
    return [*found, piece]


def _matched(wanted: list[str], found: list[str], same: Same) -> bool:
    """True if the lists have the same elements, in any order; an answer with far more elements is not read."""
    if len(dict.fromkeys(found)) > 2 * len(dict.fromkeys(wanted)) + 4:
        return False
    return same_elements(wanted, found, same)


def same_elements(ours: list[str], theirs: list[str], same: Same) -> bool:
    """True if each element of one list equals an element of the other, in any order, however often it stands there."""
    ours = list(dict.fromkeys(ours))
    theirs = list(dict.fromkeys(theirs))
    if not all(any(same(a, b) for b in theirs) for a in ours):
        return False
    return all(any(same(a, b) for a in ours) for b in theirs)


# named values -------------------------------------------------------------------------------------------------------


def _names(text: str) -> dict[str, str] | None:
    r"""Parse ``x=1, y=2`` and ``(x,y) = (1,2)`` by name, in order; None unless there are two or more named values."""
    if point := _POINT.fullmatch(text.strip()):
        names, values = [n.strip() for n in point[1].split(",")], [v.strip() for v in _pieces(point[2])]
        if len(names) != len(values) or not all(re.fullmatch(r"[A-Za-z](?:_\{?\w+\}?)?", name) for name in names):
            return None
        found = list(zip(names, values, strict=True))
    elif columns := _COLUMNS.fullmatch(text.strip()):
        names, values = (re.split(r"\\\\|&", columns[group]) for group in ("names", "values"))
        if len(names) != len(values):
            return None
        found = [(name.strip(), value.strip()) for name, value in zip(names, values, strict=True)]
    else:
        inner = re.fullmatch(r"\\?\{(.*?)\\?\}|\((.*)\)", text.strip(), re.DOTALL)
        equations = [
            _EQUATION.fullmatch(re.sub(rf"^{_SPACE}|{_SPACE}$", "", piece))
            for piece in _pieces((inner[1] or inner[2] or "") if inner else text)
        ]
        if not all(equations):
            return _points(text)
        found = [(equation[1], equation[2].strip()) for equation in equations if equation]
    return dict(found) if len(found) > 1 and len(dict(found)) == len(found) else None


def _points(text: str) -> dict[str, str] | None:
    """Parse named points: ``P(1,2), Q(3,4)`` or ``P = (1,2), Q = (3,4)``; None unless there are two or more."""
    found = [_POINT_NAMED.fullmatch(piece.strip(" \\,")) for piece in _pieces(text)]
    names = {match[1]: match[2] for match in found if match}
    return names if len(names) == len(found) > 1 else None


def _by_names(gold: str, given: str, same: Same, order: tuple[str, ...]) -> bool | None:
    """Compare named values; a point lists them in the order of their names, a list in the record's order."""

    def ordered(names: dict[str, str]) -> list[str]:
        return list(order) if set(order) == set(names) else sorted(names)

    wanted, found = _names(gold), _names(given)
    if wanted and found:
        if set(wanted) != set(found):
            return None
        return all(same(value, found[name]) for name, value in wanted.items())
    if wanted:
        point = re.fullmatch(r"\s*\((.*)\)\s*", given)
        values = [value.strip() for value in _pieces(point[1] if point else given)]
        if len(values) != len(wanted) or "=" in given or re.match(r"\s*\\?\{", given):
            return None
        names = ordered(wanted) if point else list(wanted)
        return all(same(wanted[name], value) for name, value in zip(names, values, strict=True))
    if found:
        point = re.fullmatch(r"\s*\((.*)\)\s*", gold)
        if not point or "=" in gold:
            return None if "=" in gold else same(gold, ", ".join(found.values()))
        values = [value.strip() for value in _pieces(point[1])]
        ours = [found[name] for name in ordered(found)]
        return len(values) == len(ours) and all(same(a, b) for a, b in zip(values, ours, strict=True))
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
    wanted, found = _rows(gold), _rows(given)
    if wanted is None or not wanted[1]:
        if found is None or any(len(row) > 1 for row in found[1]) or found[0]:
            return None
        return same(gold, ", ".join(row[0].strip(" ,;") for row in found[1]))
    if all(len(row) == 1 for row in wanted[1]):  # a system of equations
        systems = [", ".join(row[0].strip(" ,;") for row in rows[1]) for rows in (wanted, found) if rows]
        return same(systems[0], systems[1] if found else given)
    if found is None or len(found[1]) != len(wanted[1]) or any(len(row) != 2 for row in (*wanted[1], *found[1])):
        return False
    rest = list(found[1])
    for value, condition in wanted[1]:
        for row in rest:
            if _same_condition(condition, row[1], same) and same(value.strip(" ,"), row[0].strip(" ,")):
                rest.remove(row)
                break
        else:
            return False
    return True


def _same_condition(gold: str, given: str, same: Same) -> bool:
    ours, theirs = (
        _CONDITION.sub(lambda m: f" {m[1]} " if m[1] else " ", text.replace("$", "")) for text in (gold, given)
    )
    ours, theirs = (re.sub(r"\b(?:if|for|when|where|is)\b", " ", text).strip(" ,.\n") for text in (ours, theirs))
    ours, theirs = (re.sub(r"^(?:else|otherwise)$", "otherwise", text) for text in (ours, theirs))
    if canonical(ours) == canonical(theirs):
        return True
    return "otherwise" not in (ours, theirs) and bool(re.search(r"[<>]|\\[lg]e", ours)) and same(ours, theirs)


# congruences ---------------------------------------------------------------------------------------------------------


def _congruence(text: str) -> tuple[frozenset[int], int] | None:
    r"""Return the residues and modulus of ``x \equiv 1, 3 \pmod 8``."""
    match = _MODULUS.fullmatch(text.strip())
    if match is None or int(match[2]) < 1 or not re.search(r"\\equiv|\u2261", match[1]):
        return None
    modulus, residues = int(match[2]), set[int]()
    for piece in _pieces(match[1]):
        statement = _CONGRUENT.fullmatch(piece.strip())
        residue = _RESIDUE.fullmatch(re.sub(rf"^{_SPACE}|{_SPACE}$", "", statement[1])) if statement else None
        if residue is None:
            return None
        residues |= {int(residue[2]) % modulus} | ({-int(residue[2]) % modulus} if residue[1] else set())
    return frozenset(residues), modulus


def _by_congruence(gold: str, given: str, same: Same) -> bool | None:
    wanted = _congruence(gold)
    if wanted is None:
        return None
    family = _family(given)
    if family is not None:
        residues, modulus = wanted
        ours = Family(
            tuple(f"{residue}+{modulus}{family.variable}" for residue in sorted(residues)), family.variable, "Z"
        )
        return equal_families(ours, family)
    found = _congruence(given if re.search(r"\\equiv|\u2261", given) else f"x \\equiv {given}")
    if found is None:
        return False
    common = math.lcm(wanted[1], found[1])
    return wanted == found or (common <= _MODULI and _modulo(*wanted, common) == _modulo(*found, common))


def _modulo(residues: frozenset[int], modulus: int, multiple: int) -> set[int]:
    """Return residues modulo a multiple of their modulus."""
    return {residue + step for residue in residues for step in range(0, multiple, modulus)}


# families ------------------------------------------------------------------------------------------------------------


def _family(text: str) -> Family | None:
    r"""Return the terms and the variable of ``2k\pi, k \in \mathbb{Z}``; ``\pm`` stands for two terms."""
    built = _BUILT.fullmatch(text.strip())
    text = built[1].rstrip("\\") if built else text.strip()
    text = re.sub(" +", " ", _BLANK.sub(lambda m: f" {m[1]} " if m[1] else " ", text)).strip()
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
    return "N" if natural or match["sort"] else "Z"


def _terms(body: str) -> tuple[str, ...]:
    return tuple(value for element in elements(body) for value in _signed(element))


def _uses(body: str, letter: str) -> bool:
    return re.search(rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])|(?<![a-zA-Z\\]){letter}\\", body) is not None


def _by_family(gold: str, given: str, same: Same) -> bool | None:
    """Compare families by their elements; the integer variable may have any name."""
    wanted = _family(gold)
    if wanted is None:
        return None
    found = _family(given)
    if found is None:
        if (congruence := _congruence(given)) is not None:
            residues, modulus = congruence
            terms = tuple(f"{residue}+{modulus}k" for residue in sorted(residues))
            return equal_families(wanted, Family(terms, "k", "Z"))
        letters = [other for other in "knmlt" if _uses(given, other) and not _uses(gold, other)]
        unnamed = letters[0] if len(letters) == 1 and not _uses(given, wanted.variable) else wanted.variable
        if not _uses(given, unnamed):
            return False
        found = Family(_terms(given), unnamed)
    verdict = equal_families(wanted, found)
    if verdict is not None:
        return verdict
    name = rf"(?<![a-zA-Z\\]){found.variable}(?![a-zA-Z])"
    theirs = [re.sub(name, wanted.variable, term) for term in found.terms]
    return found.domain in ("", wanted.domain) and _matched(list(wanted.terms), theirs, same)


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
    wanted, found = (
        [value for one in elements(_UNEQUAL.sub("", text)) for value in _signed(_UNEQUAL.sub("", one))]
        for text in (gold, given)
    )
    return _matched(wanted, found, same)
