r"""Chemical formulas, ions, equations of reactions, and names of compounds of two elements: ``carbon dioxide``."""

from __future__ import annotations

import re
from collections import Counter

_SYMBOLS = (
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb "
    "Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au "
    "Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm"
)
_ELEMENT = "|".join(sorted(_SYMBOLS.split(), key=len, reverse=True))
_FORMULA = re.compile(rf"(?:\d*(?:(?:{_ELEMENT})\d*|\((?:(?:{_ELEMENT})\d*)+\)\d*)+)(?:\^\d*[+-])?")
_FONT = re.compile(r"\\(?:ce|text|mathrm|textrm|mathbf|rm|operatorname)(?![a-z])")
_ARROW = re.compile(
    r"<?-+>|\\(?:long)?(?:right|leftright)arrow(?![a-z])|\\to(?![a-z])|\\rightleftharpoons(?![a-z])|\u2192|="
)
_REACTS = re.compile(r"[A-Z][a-z]|[A-Z)]_?\{?\d|[-\u2192]|\\[a-z]*(?:arrow|harpoons)")
"""What tells a reaction with an equality sign from an equation of quantities, ``V = 2S``."""
_PLUS = re.compile(r"(?<!\^)(?<!\^\d)\+")
"""A plus between two substances, which is no charge."""
_LONGEST = 200
_MARKED = re.compile(r"\\(?:ce|text|mathrm|textrm)|_")
_NONMETALS = {
    "hydrogen": "H", "boron": "B", "carbon": "C", "nitrogen": "N", "oxygen": "O", "fluorine": "F", "silicon": "Si",
    "phosphorus": "P", "sulfur": "S", "sulphur": "S", "chlorine": "Cl", "arsenic": "As", "selenium": "Se",
    "bromine": "Br", "iodine": "I", "xenon": "Xe",
}  # fmt: skip
_IDES = {
    "hydride": "H", "boride": "B", "carbide": "C", "nitride": "N", "oxide": "O", "fluoride": "F", "silicide": "Si",
    "phosphide": "P", "sulfide": "S", "sulphide": "S", "chloride": "Cl", "bromide": "Br", "iodide": "I",
}  # fmt: skip
_COUNTS = ("mono", "di", "tri", "tetra", "penta", "hexa", "hepta", "octa", "nona", "deca")
_COUNT = rf"(?:({'|'.join(_COUNTS)}|mon|tetr|pent|hex|hept|oct|non|dec))?"
_NAME = re.compile(rf"{_COUNT}({'|'.join(_NONMETALS)}) {_COUNT}({'|'.join(_IDES)})")


def compound(text: str) -> str | None:
    r"""Return the formula of a substance without fonts and subscripts; None if a text is neither formula nor name.

    >>> compound(r"\text{H}_2\text{O}"), compound(r"\ce{H2O}"), compound("carbon dioxide"), compound("Hello")
    ('H2O', 'H2O', 'CO2', None)
    """
    plain = _FONT.sub("", text)
    if match := _NAME.fullmatch(" ".join(re.sub("[{}]", "", plain).lower().split())):
        return f"{_NONMETALS[match[2]]}{_count(match[1])}{_IDES[match[4]]}{_count(match[3])}"
    plain = re.sub(r"[_\s{}$]|\\[,;:! ]", "", plain)
    return plain if len(plain) < 60 and _FORMULA.fullmatch(plain) else None


def same_compound(gold: str, given: str) -> bool | None:
    """Compare two substances; None unless both are one, and at least one is marked as a formula or a name."""
    if not any(_MARKED.search(text) or " " in text.strip() for text in (gold, given)):
        return None
    ours = compound(gold)
    candidate = compound(given) if ours else None
    return ours == candidate if ours and candidate else None


def same_reaction(gold: str, given: str) -> bool | None:
    r"""Compare the equations of two reactions, the substances of a side in any order; None if one text is none.

    >>> same_reaction(r"2H_2 + O_2 \to 2H_2O", r"\ce{O2 + 2H2 -> 2H2O}"), same_reaction("x \\to y", "x \\to y")
    (True, None)
    """
    ours = reaction(gold)
    candidate = reaction(given) if ours else None
    return ours == candidate if ours and candidate else None


def reaction(text: str) -> list[Counter[str]] | None:
    """Return how many of each substance stand on the two sides of an equation; None if a text is none."""
    sides = _ARROW.split(_FONT.sub("", text))
    if len(sides) != 2 or len(text) > _LONGEST or ("=" in text and not _REACTS.search(_FONT.sub("", text))):
        return None
    result = []
    for side in sides:
        substances: Counter[str] = Counter()
        for term in _PLUS.split(re.sub(r"[_\s{}$]|\\[,;:! ]|\((?:s|l|g|aq)\)", "", side)):
            counted = re.fullmatch(r"(\d{0,3})(.+)", term)
            if counted is None or _FORMULA.fullmatch(counted[2]) is None:
                return None
            substances[counted[2]] += int(counted[1] or 1)
        result.append(substances)
    return result


def _count(prefix: str | None) -> str:
    if not prefix:
        return ""
    number = next(i for i, word in enumerate(_COUNTS, 1) if word.startswith(prefix))
    return str(number) if number > 1 else ""
