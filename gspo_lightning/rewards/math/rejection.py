r"""Sentences that reject the value they name: ``Do not answer 7``, ``7, but this is incorrect``, ``anything but 7``.

A rejection must be about the value. A pronoun behind it (``this is wrong``) counts only as long as no other value has
been named, and a denial before it only in the same clause.
"""

from __future__ import annotations

import re

from gspo_lightning.rewards.math.phrases import one_of

_CLAUSE = re.compile(
    r"[.!?](?=\s)|[;:\n\u2014\u2013]|,\s|\b(?:but|so|hence|thus|therefore|since|because|yet|with it)\b"
)
_ALL_BUT = re.compile(r"\b((?:any|every|some)thing|all|(?:any|every) \w+) but\b", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?=\s)|\n|;|\b(?:but|hence|thus|therefore|since|because|otherwise)\b")
_ANSWERING = r"(?:answer|write|say|give|box|put|submit|choose|pick|accept|enter|report|conclude|think|believe|claim)\w*"
_SLIP = (
    r"(?:forg[eo]t\w*|forgotten|overlook\w*|misread\w*|miscount\w*|misinterpret\w*|misappl\w+|mistak\w+|mistook|neglected|"
    r"ignored|wrongly|incorrectly|erroneously|double[- ]count\w*)"
)
_TO_IT = r"\b[^\d.;]{0,60}$"
"""Text between a denial and the value; it holds no other value."""
_WRONG = r"(?:wrong|incorrect|false|untrue|mistaken|erroneous|invalid)"
_RIGHT = r"(?:right|correct|true|it|valid|(?:the|my)(?: \w+)? answer)"
_DENIAL = re.compile(
    "|".join(
        (
            rf"(?:\b(?:not|never|cannot)|n['\u2019]t)\s+(?:\w+\s+)?{_ANSWERING}{_TO_IT}",
            rf"\b(?:nobody|no one|refuse to|decline to)\s+(?:(?:should|would|may|can)\s+)?{_ANSWERING}{_TO_IT}",
            r"(?:\b(?:not|never|cannot)|n['\u2019]t)\s+(?:possibly|really|ever)\s+(?:be|equal)[\s$*(\\\[]*$",
            rf"(?<!not )\b(?:{_WRONG}|a mistake|an error)\s+to\s+{_ANSWERING}{_TO_IT}",
            rf"\b(?:mistake|error|trap|pitfall|misconception|temptation)\b(?:\s+\w+){{0,3}}?\s+(?:to\s+{_ANSWERING}|that){_TO_IT}",
            rf"(?<!not )\b(?:{_WRONG}|not true|not the case|impossible|unlikely|doubt)\s+(?:that|whether){_TO_IT}",
            rf"\b(?:{_WRONG}|naive|tempting)\s+(?:\w+\s+){{0,3}}?(?:answer|value|result|choice|option|conclusion|solution)"
            r"\s+(?:is|was|would be)[\s$*(\\\[]*$",
            r"\b(?:one|you|some|someone|many|people|students)\b(?:\s+\w+){0,2}?\s+(?:might|may|could|would|will|often)\s+"
            rf"(?:\w+\s+)?(?:think|guess|believe|expect|be tempted){_TO_IT}",
            r"\b(?:anything|everything|something|all|any \w+|every \w+)\s+(?:but|except|other than|apart from|besides)"
            r"[\s$*(\\\[]*$",
            r"\b(?:rather than|instead of|as opposed to|other than|different from|except)[\s$*(\\\[]*$",
        )
    ),
    re.IGNORECASE,
)
_DOUBLED = re.compile(
    r"(?:\b(?:not|never|cannot|none|no|nothing|hardly)|n['\u2019]t)\b[^,.;]*\b(?:(?:other|else|different)\s+(?:than|from)|"
    r"anything (?:but|except|else|other)|but)\b",
    re.IGNORECASE,
)
"""Double denials: ``nothing but 7`` and ``cannot be anything else than 7`` name 7."""
_COUNTERFACTUAL = re.compile(
    rf"\b(?:if|had)\b.*(?:\b{_SLIP}|\binstead\b).*(?:\bwould\b|['\u2019]d\b).*$", re.IGNORECASE | re.DOTALL
)
_ATTACHED = re.compile(
    r"\s*(?:"
    + "|".join(
        (
            r"(?:is|was|seems|looks)(?:\s+\w+ly|\s+just|\s+still)*"
            rf"(?:\s*n['\u2019]t\b|\s+not\b(?! only| just| merely| surprising| a coincidence)|\s+{_WRONG}\b|"
            r"\s+an? (?:\w+ )?(?:mistake|error)\b)",
            rf"(?:cannot|can['\u2019]t|can not|could not|couldn['\u2019]t) be {_RIGHT}\b",
            r"(?:is|was)\s+what\s+(?:you|one|we|i|people|students)\b(?=[^.]*(?:\bwould\b|['\u2019]d\b|\binstead\b|"
            rf"\b{_SLIP}))",
            r"would (?:be|have been) (?:the (?:\w+ )?(?:answer|result|value)|right|correct|true)\b"
            r"[^.]*\b(?:if|had|were)\b",
            rf",?\s*if (?:you|we|one|i)\s+(?:had\s+)?{_SLIP}",
            r"(?:(?:comes?|came|results?|follows?|arises?) from|(?:is|was) the (?:result|consequence|product) of) "
            rf"(?:an? |the )?(?:\w+ ){{0,2}}?(?:{_SLIP}|error|mistake)\b",
            r"(?:is|was|seems|looks) (?:tempting|plausible|my first (?:guess|thought|idea))\b"
            r"[^.]*\b(?:but|however|yet)\b",
        )
    )
    + ")",
    re.IGNORECASE,
)
_SUBJECT = (
    r"(?:my|the|this|that)\s+(?:(?:above|boxed|previous|given|last|final|first)\s+)?(?:answer|value|result|box|number)"
)
_PRONOUN = r"(?:this|that|it|which)"
_BEGINS = (
    r"(?:^|[.,;:!?\u2014\u2013]\s*|"
    r"\b(?:but|and|so|though|although|that|think|see|realize|actually|however|no|wait)\s*,?\s+)"
)
_PREDICATE = (
    r"\s*(?:(?:is|was|['\u2019]s)(?:\s+\w+ly|\s+just|\s+still)*\s+"
    rf"(?:{_WRONG}|an? (?:\w+ )?(?:mistake|error)|not {_RIGHT})|"
    rf"(?:is|was)n['\u2019]t {_RIGHT}|(?:cannot|can['\u2019]t|can not|could not|couldn['\u2019]t) be {_RIGHT})\b"
    r"(?!\s+(?:to|that|for|if|when)\b)"
)
_REFERS = re.compile(rf"{_BEGINS}{_SUBJECT}{_PREDICATE}", re.IGNORECASE)
_REFERS_LOOSELY = re.compile(rf"{_BEGINS}(?:{_SUBJECT}|{_PRONOUN}){_PREDICATE}", re.IGNORECASE)
_VALUE = re.compile(r"\d|\$|\\[a-zA-Z(\[]")
_REVOKED = re.compile(
    one_of(
        r"(?:ignore|disregard|scratch|forget|discard|strike|delete|retract|withdraw)\s+"
        r"(?:that|this|it|my answer|the (?:above|box|answer|boxed \w+|previous \w+))",
        "(?:take|took) (?:that|this|it) back",
    )
    + r"(?=\s*(?:[.,;!]|$))",
    re.IGNORECASE,
)


def rejected_before(text: str) -> bool:
    """True if a text denies the value that follows it.

    >>> rejected_before("Do not answer "), rejected_before("It is nothing but "), rejected_before("Not 8. It is ")
    (True, False, False)
    """
    clause = _CLAUSE.split(_ALL_BUT.sub(r"\1 except", text[-200:]))[-1]
    if _DENIAL.search(clause) and not _DOUBLED.search(clause):
        return True
    return _COUNTERFACTUAL.search(_SENTENCE.split(text[-300:])[-1]) is not None


def rejected_behind(text: str, *, number: bool = True) -> bool:
    """True if a text denies the value before it.

    Args:
        text: the text behind the value.
        number: whether the value is a number. Otherwise ``it is wrong`` may be what the question asks for ("which one
            is wrong?").

    >>> rejected_behind(", but this is incorrect."), rejected_behind(". 8 is one more, but this is incorrect.")
    (True, False)
    """
    if _ATTACHED.match(text) or revoked(text):
        return True
    refers = (_REFERS_LOOSELY if number else _REFERS).search(text)
    return refers is not None and not _VALUE.search(text[: refers.start()])


def revoked(text: str) -> bool:
    """True if a text takes back an earlier statement before it names another value.

    >>> revoked(". Ignore that."), revoked(". Do not forget that 7 is prime.")
    (True, False)
    """
    revocation = _REVOKED.search(text)
    return revocation is not None and not _VALUE.search(text[: revocation.start()])
