r"""Hints of a prompt about its answer: listed options, the unit or the unknown asked for, order, signs of letters.

A record's answer alone does not say whether ``(a) 4`` is an option or a part, whether 2 is an angle in degrees, or
whether ``1, 1, 2`` counts a root twice. Prompts are read by patterns, once each; an unknown wording says nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gspo_lightning.rewards.math.unit_names import Unit, unit_of

_READ = 4000
"""Characters at the end of a prompt that are read."""
_LABEL = r"(?<![A-Za-z0-9\\])(?:\\(?:textbf|text|mathbf|mathrm)\s*\{\s*)?\(?"
_OPTIONS = re.compile(rf"{_LABEL}A\s*[).:].*?{_LABEL}B\s*[).:]", re.DOTALL)
_CHOICE = re.compile(
    r"\b(?:choose|pick|select)\b|\bwhich (?:one )?of the following\b|\bmultiple.choice\b", re.IGNORECASE
)
_UNIT = re.compile(
    r"\b(?:in|as an?|to the nearest)\s+((?!an?\b"
    r"|the\b)[A-Za-z\u00b5\u03bc\u2126\u03a9$\\][A-Za-z0-9\u00b5\u03bc\u2126\u03a9"
    r"\u00b2\u00b3/^\\{}\u00b7 -]{0,40}?)\$?(?=\s*(?:[?.,;:)!]|$|\b(?:and|to|of|if|when|does|do|is|are|was|will"
    r"|must|should)\b))"
)
_HOW_MANY = re.compile(
    r"\b[Hh]ow many\s+([A-Za-z]+(?:\s+per\s+[A-Za-z]+)?)\b|\b[Ww]hat\s+(percent(?:age)?)\b|\b(percentage)\s+of\b"
)
_ORDER = re.compile(
    r"\b(?:in|with|by)\s+(?:\w+\s+)?(?:order|sequence)\b|\bordered\b|\b(?:in)?(?:a|de)scending\b|\bincreasing order\b"
    r"|\bfrom\s+(?:the\s+)?(?:least|lowest|smallest|greatest|largest|highest|shortest|longest|first|earliest|latest)\s+to\b"
    r"|\b(?:order|sort|rank|arrange)\s+(?:the|these|them)\b|\bsequence\b|\bfirst\s+(?:\w+\s+)?terms\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"\bmultiplicit|\bwith repetition|\brepeated|\bmode\b|\bdata\b", re.IGNORECASE)
_TUPLE = re.compile(r"\(\s*([A-Za-z](?:_\{?\w+\}?)?(?:\s*,\s*[A-Za-z](?:_\{?\w+\}?)?)+)\s*\)")
_POSITIVE = re.compile(
    r"\b(?:all|the|both|any|each)?\s*(?:letters?|variables?|parameters?|quantities|numbers|constants|unknowns"
    r"|symbols)\s+"
    r"(?:\w+\s+){0,3}?(?:are|is|represents?|denotes?|stands? for|takes?)\s+(?:\w+\s+){0,3}?(?:positive"
    r"|nonnegative|non-negative)"
    r"|\bpositive (?:real )?(?:letters|variables|parameters|constants|unknowns|numbers|reals)\b"
    r"|\b(?:assum\w+|for|with|where|let|given|if)\b[^.;\n]{0,40}?\b(?:is|are|all)?\s*positive\b"
    r"|(?<![A-Za-z\\])[a-z](?:\s*,\s*[a-z])*\s*>\s*0",
    re.IGNORECASE,
)
_SYMBOL = re.compile(
    r"\b(?:symbols?|elements?|genotypes?|alleles?|chemical|compound|formula|substance|abbreviations?|segments?)\b",
    re.IGNORECASE,
)
_SOLVE = re.compile(
    r"\b[Ss]olve\b[^.;?\n]{0,80}?\bfor\s+\$?([A-Za-z]|\\[a-z]+)(?![A-Za-z])|"
    r"\b(?:[Ff]ind|[Dd]etermine|[Ww]hat is|[Cc]ompute|[Cc]alculate|[Gg]ive|[Ss]tate)\s+(?:(?:all|the|every"
    r"|any)\s+)?(?:\w+\s+)?"
    r"(?:(?:values?|solutions?|roots?)\s+(?:of|for)\s+)?\$?([A-Za-z]|\\[a-z]+)\$?(?=\s*(?:[.?,;:!]|$|\b(?:if"
    r"|when|such|that|given|where|so|in)\b))"
)
_CONSTANTS = re.compile(
    r"\bantiderivative|\bindefinite integral|\bgeneral solution|\bprimitive\b|\bdifferential equation"
    r"|\\int(?!\s*_)|\u222b",
    re.IGNORECASE,
)
_BASES = {"bin": 2, "ter": 3, "oct": 8, "dec": 10, "hex": 16}
_BASE = re.compile(
    r"\b(?:in|to|into)\s+base[\s-]*(\d{1,2})\b"
    r"|\b(?:in|to|into|as an?)\s+(binary|ternary|octal|decimal|hex(?:adecimal)?)\b",
    re.IGNORECASE,
)
_FORM = re.compile(r"\b(factor(?:i[sz]e)?|expand)\b(?! of| theorem)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """Hints of a prompt about its answer; everything is empty for an unknown wording.

    ``unit`` is the unit asked for, ``unknown`` the letter to solve for, ``names`` the names of a point in the order
    asked for. ``base`` is that of the numbers asked for, 0 if the prompt names none. ``form`` is ``factored`` or
    ``expanded`` if the task is to bring an expression into that form.
    """

    text: str = ""
    options: bool = False
    unit: Unit = ()
    unknown: str = ""
    names: tuple[str, ...] = ()
    ordered: bool = False
    counted: bool = False
    positive: bool = False
    symbol: bool = False
    constants: bool = False
    form: str = ""
    base: int = 0


@lru_cache(maxsize=256)  # the samples of a group follow each other
def read_question(prompt: str) -> Question:
    """Read a prompt.

    >>> read_question("How far is it, in km?").unit, read_question("Solve 2x = 4 for x.").unknown
    ((('km', 1),), 'x')
    >>> read_question("Find (r, h).").names, read_question("(A) 1 (B) 2").options
    (('r', 'h'), True)
    """
    text = prompt[-_READ:]
    if not text.strip():
        return Question()
    unknown = [match[1] or match[2] for match in _SOLVE.finditer(text)]
    point = list(_TUPLE.finditer(text))
    form = _FORM.search(text)
    return Question(
        text=text,
        options=_OPTIONS.search(text) is not None or _CHOICE.search(text) is not None,
        unit=_unit(text),
        unknown=unknown[-1] if unknown else "",
        names=tuple(re.sub(r"\s", "", point[-1][1]).split(",")) if point else (),
        ordered=_ORDER.search(text) is not None,
        counted=_COUNTED.search(text) is not None,
        positive=_POSITIVE.search(text) is not None,
        symbol=_SYMBOL.search(text) is not None,
        constants=_CONSTANTS.search(text) is not None,
        base=_base(text),
        form={"f": "factored", "e": "expanded"}[form[1][0].lower()] if form else "",
    )


def _base(text: str) -> int:
    """Return the last base that a prompt asks for."""
    result = list(_BASE.finditer(text))
    if not result:
        return 0
    name = result[-1][1] or result[-1][2]
    return int(name) if name.isdigit() else _BASES[name.lower()[:3]]


def _unit(text: str) -> Unit:
    """Return the last unit that a prompt asks for."""
    result: Unit = ()
    matches = [*_HOW_MANY.finditer(text), *_UNIT.finditer(text)]
    for match in sorted(matches, key=lambda item: item.start()):
        words = next(group for group in match.groups() if group)
        result = unit_of(words.strip(" $")) or result
    return result
