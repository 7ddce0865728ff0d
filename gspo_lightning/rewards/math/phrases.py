r"""Phrases that announce, conclude, doubt or deny an answer: English, as language models write it."""

from __future__ import annotations

import re


def one_of(*phrases: str) -> str:
    """Return a pattern for any of these phrases as whole words."""
    return rf"\b(?:{'|'.join(phrases)})\b"


def _compiled(*parts: str) -> re.Pattern[str]:
    return re.compile("".join(parts), re.IGNORECASE)


NEGATIONS = (
    r"(?:\b(?:nicht|keineswegs|niet|n['\u2019](?:est|est pas|\u00e9tait)(?: pas| jamais)?|no (?:es|son"
    r"|puede ser|era)|nunca es|"
    r"n[\u00e3a]o (?:\u00e9|e)|non (?:\u00e8|e)|nie jest|inte|ikke|de\u011fil|\u043d\u0435)(?!\w)|"
    r"\u4e0d\u662f|\u4e0d\u70ba|\u4e0d\u4e3a|\u4e0d\u7b49\u4e8e|\u5e76\u975e|\u800c\u975e)"
)
"""Negations of other languages in front of a value; models answer in the language they are asked in."""
NEGATIONS_BEHIND = (
    r"(?:\s*(?:\u3067\u306f\u3042\u308a\u307e\u305b\u3093|\u3067\u306f\u306a\u3044|\u3058\u3083\u306a\u3044|de\u011fil|"
    r"\uc774 \uc544\ub2c8|\uac00 \uc544\ub2c8|\u0928\u0939\u0940\u0902))"
)
"""Negations of languages that put them behind a value."""
ANNOUNCED = _compiled(
    r"(?:(?:final|correct|right)\s+)?(?:answer|option|choice)(?:\s+(?:to|of|for)\b[^.\n:]{0,60}?)?(?:",
    r"\s*(?:is|=|:)[\s*_:]*",
    r"(?:therefore|thus|then|so|simply|exactly|given by|option|choice|equal to|:)?[\s*_:]*",
    r"|\s*[*_]+\s*:?[\s*_]*\n+\s*)",
    r"|####[ :]*|<answer>\s*",
)
"""Announcement of an answer: ``The answer is``, ``**Answer:**``, ``####``, ``<answer>``."""
_NOUNS = (
    "ntwort", "espuesta", "\u00e9ponse", "esposta", "isposta", "oluci\u00f3n", "\u00f6sung", "\u0442\u0432\u0435\u0442",
    "\u7b54\u6848", "\u7b54\u3048",
)  # fmt: skip
_ELSEWHERE = _compiled(
    rf"(?:{'|'.join(_NOUNS)})\s*(?:(?:ist|lautet|es|est|\u00e9|\u00e8)(?!\w)|[:\uff1a\u662f\u4e3a\u70ba\u306f])[\s*_:]*"
)


def announcements(text: str) -> list[re.Match[str]]:
    """Return the announcements of an answer in a text, in English or, if there is none, in another language."""
    matches = list(ANNOUNCED.finditer(text))
    if not matches and any(noun in text for noun in _NOUNS):
        matches = list(_ELSEWHERE.finditer(text))
    return matches


FINAL = _compiled(r"final answer is(?=[:\s]*[^\s:])")
UNSURE = _compiled(
    one_of("maybe", "perhaps", r"guess\w*", "unsure", "not sure", "not certain", "don'?t know", "do not know"),
    r"|\btake your pick\b|\bcandidates?\b|\boptions:",
)
"""Doubt anywhere in a sentence."""
DOUBT_BEFORE = _compiled(
    one_of(
        "may be", "possibly", "might", "could", "unless", "either", "neither", "one of", "any of", "some of", "or so",
        "pick", "between", "at most", "at least", "(?:more|less|fewer|greater|larger|smaller) than", "near", "nearly",
        "around", "roughly", "unlike", r"suppos\w+", r"assum\w+", "if", "whether", "otherwise", "alternatively",
        "rule out", "both",
    )
)  # fmt: skip
"""Doubt that counts only close before a value: "the most that could be reached is 42" commits."""
DOUBT_BEHIND = _compiled(
    one_of(
        "unless", "or so", "otherwise", "alternatively", "if", "at (?:most|least)", "or (?:less|more)", "maybe",
        "perhaps", "possibly", "one of", "your pick",
    )
)  # fmt: skip
SECOND_THOUGHT = _compiled(
    one_of(
        "fails?", "failed", "wrong", "incorrect", "mistake", "hmm+", "wait", "cannot", "can'?t", "not", "no", "however",
        r"contradict\w*", "unsure", "oops", "sorry",
    )
)  # fmt: skip
"""Words that withdraw an answer when a later sentence uses them."""
CONDITION = _compiled(r"^\s*", one_of("let", "suppose", "assume", "if", "given", "say", "consider", "try"))
_SMALL = r"(?:\s+(?:it'?s|be|same as|the|a|an|equal to|equal|is|or|and|number|value|option|[A-E](?=\s+or)))*"
DENIED = _compiled(
    rf"(?:{NEGATIONS}\s*[\s(\"'*$]*$)|(?:\b(?:not|never|nor|neither|cannot|without|unlike|any \w+ but)|n['\u2019]t",
    r"|\\neq?(?![a-z])|\\not(?![a-z])|\u2260)",
    _SMALL,
    r"\s*[\s(\"'*]*$",
)
"""Denial of the value that follows."""
DENIED_AFTER = _compiled(
    rf"^[\s*)\"'.$\]]*(?:{NEGATIONS_BEHIND}|\((?:is )?(?:wrong|incorrect|false|not)\b)|^[\s*)\"'.$\]]*(?:is|was"
    rf"|are|were|does|would be|seems)\s*",
    r"(?:n['\u2019]t|not|wrong|incorrect|false|impossible|invalid|too)\b",
)
_CONCLUDES = _compiled(
    "(?:",
    one_of(
        "is", "are", "was", "equals?", "gives?", "gets?", "got", "yields?", "makes?", "has", "have", "be", "becomes",
        "only", "totals?", "totalling", "therefore", "thus", "hence", "so", "which", "conclude", "implies", "means",
        "finds?", "leaves",
    ),
    r"|=|:|\u2192|=>)\s*(?:that\s+|then\s+|exactly\s+|it'?s\s+|equal to\s+|just\s+)?[\s*$\u20ac\u00a3(\[]*$",
)  # fmt: skip
JOINED = _compiled(
    r"[\s*_$]*(?:(?:,|;|/|\||\\)?\s*(?:\bor\b|\band\b)|,|;|/|\||\\text\{\s*(?:or|and)\s*\})",
    r"[\s*_$]*(?:also\s+)?(?:[a-z](?:_\{?\w\}?)?\s*=\s*)?[\s$]*",
)
"""Text between the values of a list."""
RANGE = _compiled(r"\d\s*(?:\bto\b|\bup to\b|\.\.+)\s*\$?\d|\d\s*[-\u2013]\s*\d+\s*$")


def before_value(text: str, position: int) -> str:
    """Return the 80 characters of a sentence before a value, which can be about it."""
    return text[max(0, position - 80) : position]


def concludes(text: str) -> bool:
    """True if a text ends with an introduction to a conclusion: ``so there are``, ``x =``."""
    return _CONCLUDES.search(text) is not None
