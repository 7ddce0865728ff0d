r"""The value that an equation states: ``m+n = 110`` answers 110, whatever stands left, if m+n was asked for.

The last right side counts, unless the left side is still to be solved for the unknown: ``2x = 10`` and ``|x| = 5`` do
not answer 10 and 5. Of several equations the one for the unknown counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gspo_lightning.rewards.math import library
from gspo_lightning.rewards.math.notation import canonical
from gspo_lightning.rewards.math.numbers import calculated, literal
from gspo_lightning.rewards.math.question import Question
from gspo_lightning.rewards.math.units import quantity

_SUBSCRIPT = r"(?:_(?:\w|\\[a-z]+|\{[^{}]*(?:\{[^{}]*\})?[^{}]*\}))?"
_FONT = r"\\(?:vec|overline|bar|hat|mathbf|mathrm|mathcal|text|operatorname|tilde|widehat)"
_LETTER = rf"(?:{_FONT}\s*\{{[^{{}}]*\}}|\\[a-zA-Z]+|[a-zA-Z]){_SUBSCRIPT}"
NAME = re.compile(
    rf"(?:\\?[a-zA-Z]+|\\(?:text|mathrm|mathbf|vec|hat|bm|boldsymbol|overrightarrow)\s*\{{[^{{}}]*\}}){_SUBSCRIPT}(?:\([^()]*\))?"
    rf"|\([a-z](?:\s*,\s*[a-z])*\)|\|?\\?[a-zA-Z]{{2,}}\|?|\|[A-Z]+\|"
)
"""Left side that an equation may define: ``x``, ``f(x)``, ``x_1``, ``\\text{area}``, ``(x, y)``."""
_QUANTITY = re.compile(
    rf"(?:{_LETTER}\s*)+'*(?:\^\{{?[-+\w() ]*\}}?)?\s*(?:\(.*\)|\[.*\]|'+)|\(.*\)\s*\(.*\)|\[[A-Z]+\]"
    rf"|\\frac\s*\{{\s*(?:d|\\partial)[^{{}}]*\}}\s*\{{\s*(?:d|\\partial)[^{{}}]*\}}.*"
    r"|\\(?:int|sum|prod|lim|det|dim|ker|gcd|min|max|arg|deg|inf|sup|operatorname|angle|triangle|measuredangle"
    r"|text|int)(?![a-zA-Z]).*"
    r"|m\s*\\angle.*|(?:\\#|#).*|[A-Z]{2,}|\\frac\s*\{\s*[A-Z]{2,}\s*\}\s*\{\s*[A-Z]{2,}\s*\}",
    re.DOTALL,
)
"""Left side that names a quantity and is no equation to solve: ``f'(2)``, ``E[X]``, ``\\angle ABC``, ``dy/dx``."""
_RELATION = re.compile(
    r"\bor\b|\\(?:lor|vee)(?![a-zA-Z])|[<>\u2264\u2265\u2260]|!=|\\(?:leq?|geq?|neq?|lt|gt|equiv|to|rightarrow"
    r"|in|subset|cup|cap|mid|sim|cong|begin)(?![a-zA-Z])"
)
_APPROXIMATE = re.compile(r"\s*(?:\\approx(?![a-zA-Z])|\\simeq(?![a-zA-Z])|\u2248)")
_AND = re.compile(
    r"\\(?:text|mathrm|mbox|textrm)\s*\{\s*,?\s*(?:and|so|hence|thus|therefore|then|where|with|giving)\s*\}"
    r"|\\(?:Rightarrow|implies|Longrightarrow|therefore|iff)(?![a-zA-Z])"
    r"|\b(?:and|so|hence|thus|therefore)\b"
)
_CONGRUENT = re.compile(
    r"(.+?)\\equiv(?![a-zA-Z])\s*(\d{1,12})\s*(?:\\[,;:! ]|\\q?quad|\s)*\(?\s*(?:\\pmod|\\p?bmod|\\mod"
    r"|\\text\s*\{\s*mod\s*\}|\bmod)\s*\{?\s*(\d{1,12})\s*\}?\s*\)?\s*"
)
_EMPTY = re.compile(
    r"^(?:\s|\\[,;:! ]|\\q?quad(?![a-zA-Z])|(?<!\\)\$|[,;.](?!\d))+|(?:\s|(?<!\\)\\[,;:! ]|\\q?quad|(?<!\\)\$|[,;.])+$"
)
_COMMAND = re.compile(
    r"\\(?:text|mathrm|operatorname|mbox|textrm)\s*\{[^{}]*\}|\\(?!alpha|beta|gamma|theta|phi|lambda|mu|omega"
    r"|sigma|rho)[a-zA-Z]+|_(?:\{[^{}]*\}|\w)"
)
_LONGEST_CONSTANT = 60
_SOLVED_FOR = {"x", "y", "z"}
"""Letters that stand for an unknown where the prompt names none."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Content of an equation: its value, and its other sides without letters, which must be equal to it."""

    value: str
    numbers: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()
    """Sides with letters that are no name; they must equal a value that has letters."""
    solved: bool = True
    """False if the equation is still to be solved for the unknown."""


def statement(given: str, question: Question, *, several: bool) -> Statement | None:
    r"""Return the value that an answer states; None if it is no equation that states a single one.

    Args:
        given: the answer.
        question: the prompt, for the unknown and the expression asked for.
        several: the record's answer has several values, so that a list of equations is left alone.

    >>> statement("m+n = 110", Question(), several=False).value, statement("2x = 10", Question(), several=False).solved
    ('110', False)
    >>> statement("2x = 10, x = 5", Question(), several=False).value
    '5'
    """
    if match := _CONGRUENT.fullmatch(given):
        small = int(match[2]) < int(match[3]) and not several and re.search("[A-Za-z]", _COMMAND.sub("", match[1]))
        return Statement(match[2]) if small else None
    if "=" not in given:
        return None
    chains = [split(piece, "=") for piece in _statements(given)]
    if len(chains) > 1:
        chains = [] if several else _for_unknown(chains, question)
    if len(chains) != 1 or len(chains[0]) < 2:
        return None
    return _stated(chains[0], question)


def _stated(chain: list[str], question: Question) -> Statement | None:
    head, *middle = chain
    last = _APPROXIMATE.split(chain[-1])[0]
    open_sides = [side for side in chain if not is_quantity(side)]
    if _RELATION.search(" ".join(open_sides)) or not last or not all(chain):
        return None
    if not any(map(has_letters, chain)):  # 10 = 3 + 7
        last = next((side for side in (last, *chain) if literal(quantity(side).value)), last)
        return Statement(last, tuple(side for side in chain if "$" not in side))
    reversed_name = len(chain) == 2 and NAME.fullmatch(last) and has_letters(last)
    if reversed_name and not (has_letters(head) and is_quantity(head)):
        return _stated(chain[::-1], question)
    if to_solve(head, question):
        return Statement(last, solved=False)
    others = [head, *middle[:-1]]
    numbers = tuple(side for side in others if not has_letters(side) and "$" not in side)
    expressions = tuple(
        side for side in others if has_letters(side) and not is_quantity(side) and not _named_by(side, question)
    )
    return Statement(last, numbers, expressions)


def is_quantity(side: str) -> bool:
    """True if a left side names a quantity: a letter, a function's value, an angle, a derivative."""
    return NAME.fullmatch(side) is not None or _QUANTITY.fullmatch(side) is not None


def to_solve(side: str, question: Question) -> bool:
    """True if a left side is an expression in the unknown that the prompt does not ask for as such."""
    if is_quantity(side) or _named_by(side, question):
        return False
    letters = set(re.findall("[A-Za-z]", _COMMAND.sub(" ", side)))
    if question.unknown:
        return question.unknown in letters
    return len(letters) == 1 and letters <= _SOLVED_FOR


def _named_by(side: str, question: Question) -> bool:
    """True if the prompt names an expression other than as a side of an equation."""
    if not question.text:
        return False
    expected = canonical(side)
    text = canonical(question.text)
    at = text.find(expected)
    while at >= 0 and len(expected) > 1:
        before = text[at - 1 : at]
        behind = text[at + len(expected) : at + len(expected) + 1]
        if not re.match(r"[=<>+*/^]", behind) and not re.match(r"[=<>+*/^-]", before):
            return True
        at = text.find(expected, at + 1)
    return False


def has_letters(text: str) -> bool:
    """True if a text has a letter that stands for something, or words: more than numbers and operations."""
    if calculated(text) is not None:
        return False
    rest = re.sub(
        r"\\(?:frac|sqrt|cdot|times|div|pi|left|right|circ|binom|sin|cos|tan|log|ln|degree|pm|quad"
        r"|overline)(?![a-zA-Z])"
        r"|\\[,;:! ]",
        " ",
        text,
    )
    return re.search(r"[A-Za-z]", rest) is not None


def constant_of(text: str) -> Fraction | None:
    """Return the value of a constant, written out or by the library; None if a text is none."""
    if (number := calculated(text)) is not None:
        return number
    return library.constant(text) if not has_letters(text) and len(text) < _LONGEST_CONSTANT else None


def _statements(text: str) -> list[str]:
    pieces = [piece for part in _AND.split(text) for chunk in split(part, ",") for piece in split(chunk, ";")]
    return [cut for piece in pieces if (cut := _EMPTY.sub("", piece))]


def _for_unknown(chains: list[list[str]], question: Question) -> list[list[str]]:
    """Return the equation for the unknown among several; nothing if it is not clear which one that is."""
    if not all(len(chain) > 1 for chain in chains):
        return []
    if question.unknown:
        named = [chain for chain in chains if chain[0] == question.unknown]
    else:
        named = [chain for chain in chains if NAME.fullmatch(chain[0])]
        requested = [chain for chain in chains if _named_by(chain[0], question)]
        named = requested if len(requested) == 1 else named
    return named if len(named) == 1 else []


def split(text: str, mark: str) -> list[str]:
    r"""Split a text at a mark outside brackets; the pieces are stripped.

    >>> split("P(X=2) = 3/8", "="), split(r"\frac{a}{b} , (1,2)", ",")
    (['P(X=2)', '3/8'], ['\\frac{a}{b}', '(1,2)'])
    """
    pieces: list[str] = []
    depth = 0
    start = 0
    for position, character in enumerate(text):
        if character in "([{" or text.startswith("\\langle", position):
            depth += 1
        elif character in ")]}" or text.startswith("\\rangle", position):
            depth = max(0, depth - 1)
        elif character == mark and depth == 0 and not _belongs(text, position):
            pieces.append(text[start:position])
            start = position + 1
    pieces.append(text[start:])
    return [_EMPTY.sub("", piece) for piece in pieces]


def _belongs(text: str, position: int) -> bool:
    """True if a mark is a part of something else: a relation, a command, a number with separators."""
    before = text[position - 1 : position]
    separator = text[position] == "," and before.isdigit() and re.match(r",\d{3}(?!\d)", text[position:])
    return before in ("<", ">", "!", "\\") or bool(separator)
