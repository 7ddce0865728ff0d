r"""Boxes that the surrounding text denies, or follows with another answer: ``\boxed{42}, but really 41``."""

from __future__ import annotations

import re

from gspo_lightning.rewards.math.notation import canonical
from gspo_lightning.rewards.math.numbers import literal
from gspo_lightning.rewards.math.phrases import NEGATIONS, NEGATIONS_BEHIND, one_of
from gspo_lightning.rewards.math.rejection import rejected_before, rejected_behind
from gspo_lightning.rewards.math.text import Extracted
from gspo_lightning.rewards.math.units import quantity

TOKENS = re.compile(r"<\|[^<>|]{1,40}\|>.*$|</?answer>|</s>", re.DOTALL)
"""Remains of a chat template behind an answer."""
_READ = 2000
"""Characters read behind a box."""
_CLOSERS = re.compile(r"^(?:\s|[$*_)\]}]|\\[)\]])*")
_MARKS = re.compile(r"^(?:\s|[$*_.,;:!)\]}\u2014\u2013]|\\[)\]])*")
_DENIED_BEFORE = re.compile(
    rf"{NEGATIONS}[\s*_$(\\\[]*$|"
    r"(?:\b(?:not|never|cannot be|can'?t be|neither|either)|n['\u2019]t(?: be)?)"
    r"(?:\s+true that(?: the)?(?: \w+)? is)?[\s*_$(\\\[]*$|\\neq?\s*$|\\not\s*=?\s*$|\\neg\s*$|\u2260\s*$",
    re.IGNORECASE,
)
_CASES = re.compile(
    r"\??\s*(?:if\b.*(?:\b(?:otherwise|else|if)\b.*\d|\d\s*(?:otherwise|if)\b)"
    r"|(?:unless|except (?:if|when))\b.*\b(?:then|in (?:which|that) case)\b.*\d)",
    re.DOTALL,
)
_MARKERS = one_of(
    "but", "wait", "actually", "no", "oops", "sorry", "correction", "rather", "instead", "however", "scratch that",
    "second thought", "hmm+", "otherwise", "maybe", "perhaps", "alternatively", "meant", "should be", "must be",
    "(?:answer|result)(?= (?:is|should|must)|:)",
)  # fmt: skip
_FILLERS = one_of(
    "really", "actually", "maybe", "perhaps", "probably", "rather", "it'?s", "it", "is", "be", "should", "must",
    "would", "could", "the", "a", "final", "correct", "right", "real", "true", "answer", "result", "value", "i", "we",
    "meant", "mean", "that", "this", "then", "so", "instead", "no", "wait", "made", "mistake", "second", "thought",
    "on", "also", "if",
)  # fmt: skip
_OPEN = rf"(?:[\s,.:;!?*_(-]|{_FILLERS})*"
_OTHER = (
    r"(?P<value>\$(?:[a-zA-Z]\s*=\s*)?[^$\n=]{1,60}\$|-?\d+(?:[.,/]\d+)*)"
    r"(?![\d)]|\s*(?:[=+*^<>\\-]|(?:of|more|is|are|was|does|do|would|fails?|has|have)\b(?! (?:the|right|correct)\b)))"
)
_SECOND = re.compile(
    rf"(?:{_MARKERS}|^\W*or\b)(?!,? (?:equivalently|approximately|about|in decimal|i\.e|that is|simply))"
    rf"{_OPEN}{_OTHER}",
    re.IGNORECASE,
)
"""Naming of another value; not one that is only reasoned about ("but 41 is too small")."""
_CLAIM = re.compile(rf"\b(?:answer|result)\b(?=\s+(?:is|should|must)\b|:){_OPEN}{_OTHER}", re.IGNORECASE)
_NEGATED = re.compile(rf"[\s$*_)\]}}]*{NEGATIONS_BEHIND}")
_NAMED_SO = re.compile(
    r"(?P<value>\$[^$\n=]{1,60}\$|-?\d+(?:[.,/]\d+)*)\s+(?:is|was)\s+(?:in fact |actually |really )?"
    r"the\s+(?:true|real|correct|right|actual|final|exact)\s+(?:answer|value|result|one|number"
    r"|solution)\b(?! (?:to|of|for)\b)",
    re.IGNORECASE,
)
"""Claim in which the value stands first: ``5 is the true answer``."""
_ONLY = re.compile(
    r"(?:is|was|gives|would be|serves as)\s+(?:only |just |merely |but )?(?:an?|the|my|our)\s+(?:\w+ )?(?:bound"
    r"|estimate|guess|"
    r"approximation|candidate|starting point|partial result|intermediate (?:step|result|value))\b",
    re.IGNORECASE,
)
"""Words behind a box that call its content something less than the answer."""
_ITSELF = re.compile(rf"\b(?:is|equals|are|be)\s+(?:really |actually |exactly )?{_OTHER}", re.IGNORECASE)
_SLIPPED = re.compile(
    one_of(
        "no,? wait", "wait,? no", "oops", "whoops", "scratch that", "correction", "sorry", "on second thought",
        "my bad", "(?:i|we) (?:forgot|misread|miscounted|missed|overlooked|dropped|double[- ]counted)",
        r"(?:i|we) made an? (?:\w+ )?(?:mistake|error)", "let me (?:redo|recompute|recalculate|correct|fix)",
    ),
    re.IGNORECASE,
)  # fmt: skip
_CONCLUDED = re.compile(
    r"\b(?:it|this|that|(?:the|its|my)(?: (?:true|correct|right|actual|real|final))? (?:value|answer|result|sum"
    r"|total))"
    rf"(?:\s+(?:is|should be|must be|becomes|equals)|['\u2019]s)\s+{_OPEN}{_OTHER}",
    re.IGNORECASE,
)
"""Conclusion after a noticed slip: ``it is 5``."""
_NOT_IT = re.compile(
    r"\W*(?:(?:or|and|but)\s+)?(?:it\s+)?(?:is\s+)?(?:not|never)\s+(?P<value>-?\d+(?:[.,/]\d+)*)", re.IGNORECASE
)


def taken_back(found: Extracted) -> bool:
    r"""True if the text around the boxes denies them or names another answer.

    >>> from gspo_lightning.rewards.math.text import boxed
    >>> taken_back(boxed(r"\boxed{42}, but really 41", 99)), taken_back(boxed(r"$\boxed{42}$, not 41.", 99))
    (True, False)
    """
    before = found.before.rstrip(" \n\t$*_([{\\")
    if _DENIED_BEFORE.search(found.before[-60:]) or rejected_before(f"{before} "):
        return True
    behind = TOKENS.sub("", found.after[:_READ])
    if _NEGATED.match(behind):
        return True
    if rejected_behind(_CLOSERS.sub("", behind), number=literal(quantity(canonical(found.text)).value) is not None):
        return True
    rest = _MARKS.sub("", behind)
    denied = _NOT_IT.match(rest)
    if denied is not None and not other_value(denied["value"], found.text):
        return True
    return _CASES.match(rest) is not None or names_another(rest, found.text)


def names_another(text: str, answer: str) -> bool:
    """True if a text names another value in place of an answer; its last claim about the answer decides."""
    claims = [*_CLAIM.finditer(text)]
    if claims:
        return other_value(claims[-1]["value"], answer)
    second = [*_SECOND.finditer(text), *_NAMED_SO.finditer(text)]
    if any(other_value(match["value"], answer) for match in second):
        return True
    less = _ONLY.match(text)
    if less and any(other_value(match["value"], answer) for match in _ITSELF.finditer(text, less.end())):
        return True
    slip = _SLIPPED.search(text)
    concluded = [*_CONCLUDED.finditer(text, slip.end())] if slip else []
    return bool(concluded) and other_value(concluded[-1]["value"], answer)


def other_value(value: str, answer: str) -> bool:
    """True if a value differs, as written, from the answer and from each of its sides."""
    sides = (answer, *answer.split("="))
    same = canonical(value.rstrip(".,"))
    if same in map(canonical, sides):
        return False
    number = literal(quantity(same).value)
    others = [literal(quantity(canonical(side)).value) for side in sides]
    return number is None or all(other is None or other.value != number.value for other in others)
