r"""Phrases that announce, conclude, doubt or deny an answer: English, as language models write it."""

from __future__ import annotations

import re


def one_of(*phrases: str) -> str:
    """Return a pattern for any of these phrases as whole words."""
    return rf"\b(?:{'|'.join(phrases)})\b"


def _compiled(*parts: str) -> re.Pattern[str]:
    return re.compile("".join(parts), re.IGNORECASE)


ANNOUNCED = _compiled(
    r"(?:(?:final|correct|right)\s+)?(?:answer|option|choice)(?:\s+(?:to|of|for)\b[^.\n:]{0,60}?)?(?:",
    r"\s*(?:is|=|:)[\s*_:]*",
    r"(?:therefore|thus|then|so|simply|exactly|given by|option|choice|equal to|:)?[\s*_:]*",
    r"|\s*[*_]+\s*:?[\s*_]*\n+\s*)",
    r"|####[ :]*|<answer>\s*",
)
"""Announcement of an answer: ``The answer is``, ``**Answer:**``, ``####``, ``<answer>``."""
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
    r"(?:\b(?:not|never|nor|neither|cannot|without|unlike|any \w+ but)|n['\u2019]t",
    r"|\\neq?(?![a-z])|\\not(?![a-z])|\u2260)",
    _SMALL,
    r"\s*[\s(\"'*]*$",
)
"""Denial of the value that follows."""
DENIED_AFTER = _compiled(
    r"^[\s*)\"'.$\]]*(?:is|was|are|were|does|would be|seems)\s*",
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
