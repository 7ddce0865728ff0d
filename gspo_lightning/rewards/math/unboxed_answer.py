r"""Extraction of the answer from a completion without a box; a completion that keeps two answers open earns nothing.

The answer is the one that is announced ("The answer is"), or else the value of the last sentence that names one. Only a
sentence that commits counts: not a doubt ("maybe", "at most 42"), not a denial ("not 42"), not a question, a condition
or a range. A list ("41 or 42") is an answer with several values.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from gspo_lightning.rewards.math import phrases
from gspo_lightning.rewards.math.notation import unwrapped
from gspo_lightning.rewards.math.rejection import rejected_before, rejected_behind
from gspo_lightning.rewards.math.text import Extracted
from gspo_lightning.rewards.math.withdrawn_boxes import TOKENS, names_another, other_value

_FORMULA = r"\$\$.+?\$\$|(?<!\\)\$(?!\s*\n)(?:\\\$|[^$\n])+?(?<!\\)\$|\\\(.+?\\\)|\\\[.+?\\\]"
_NUMBER = r"(?<![\w\\^{_.])-?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+(?:[.,]\d+)?|\.\d+)(?:/\d+(?:\.\d+)?)?"
_COMPOUND = (
    r"(?<![\w\\^{_.])\d+\s*(?:years?|weeks?|days?|hours?|hrs?|h|minutes?|mins?|feet|foot|ft|pounds?|lbs?)\b,?\s+(?:and\s+)?"
    r"\d+\s*(?:months?|days?|hours?|hrs?|minutes?|mins?|seconds?|secs?|inch(?:es)?|in|ounces?|oz)\b"
)
"""Compound quantities: ``6 hours and 30 minutes`` is one value."""
_ARTICLE = r"A(?!\s+(?!is\b|are\b|was\b|and\b|or\b|because\b|since\b|as\b)[a-z])"
_LETTER = rf"(?<![A-Za-z\\{{])\(?(?:[B-HJ]|I(?!['\u2019]|\s+[a-z])|{_ARTICLE})\)?(?![A-Za-z'\u2019])"
"""A letter that stands for an option: not the pronoun, not the article."""
_VALUES = re.compile(rf"({_FORMULA})|({_COMPOUND}|{_NUMBER})", re.DOTALL)
_OPTIONS = re.compile(rf"({_FORMULA})|({_LETTER})", re.DOTALL)
_SENTENCE = re.compile(
    r"(?<=[.!?\u3002])(?:\s+|(?<=\u3002))|(?<=[.!?]\$)\s+(?=[A-Z])|(?<=[.!?]\$\$)\s*|(?<=[.!?]\\\])\s*|\n+"
)
_WORD = re.compile(r"(?<![\\a-zA-Z{])[a-zA-Z]{3,}|\b(?:is|are|or|of|to)\b")
_BROKEN = re.compile(r"(?<!\$)\$[ \t]*\n[^$]*\$(?!\$)|\\\([ \t]*\n.*?\\\)", re.DOTALL)
"""Dollar signs and brackets over several lines, which are no formula: inline math does not span lines."""
_ALIGNED = re.compile(r"\\begin\{((?:align|gather|equation|eqnarray|aligned)\*?)\}(.*?)\\end\{\1\}", re.DOTALL)
_DISPLAY = re.compile(r"\$\$.+?\$\$|\\\[.+?\\\]", re.DOTALL)
_REASON = re.compile(r"(?:,|;|\s)\s*(?:because|since|as|not|which|where|so|for)\b")
_THEN = re.compile(phrases.one_of("then", "so", "thus", "hence", "therefore"))
_UNIT = re.compile(r"\s*(?:\\%|%|\u00b0|(?:[A-Za-z]+\b(?:/[A-Za-z]+)?)?[\u00b2\u00b3]?)")
_CODE = re.compile(r"```(?!text|plain|output|math|latex|tex|md|markdown)[A-Za-z+#]+\n.*?(?:```|\Z)", re.DOTALL)
_IN_CODE = re.compile(
    r"\b(?:print\w*|console\.log|System\.out\.\w+|cout|echo|puts|eval|exec|int|float|str)\s*\(\s*[\"']?$"
    r"|^[\s`]*return\s+$|^[\s`]*assert\b.*==\s*$"
)
"""Code before a value: neither a program nor a call is the answer."""
_CJK = re.compile(r"(?<=[\u3040-\u30ff\u3400-\u9fff\uff1a])(?=[-\d$\\])")
"""Place between a script without spaces and a value."""
_LONGEST = 300
"""Maximum characters of a completion that is an answer as a whole."""
_FEW = 8
_OPENERS = " *_($\\["


def concluded(text: str) -> int:
    """Return the position of the last announcement of a final answer in a text; -1 if there is none."""
    return max((m.start() for m in phrases.FINAL.finditer(text)), default=-1)


def committed(text: str, max_characters: int, options: bool = False) -> Extracted:
    """Extract the answer of a text without thinking and without a box.

    Args:
        text: the completion after its thinking.
        max_characters: number of characters read, from the end.
        options: the record's answer is the letter of an option.

    >>> committed("6 * 7 = 42. The answer is 42.", 99).text, committed("The answer is 41 or 42.", 99).text
    ('42', '41, 42')
    >>> committed("It is not 42.", 99).reason, committed("Maybe 42?", 99).reason
    ('no sentence commits to an answer', 'no sentence commits to an answer')
    """
    text = _on_lines(TOKENS.sub("", _CODE.sub("", text)[-max_characters:]))
    text = _CJK.sub(" ", text)
    if not text:
        return Extracted(reason="empty")
    reader = _Reader(_OPTIONS if options else _VALUES, options)
    return reader.announced(text) or reader.last(text) or Extracted(reason="no sentence commits to an answer")


def _on_lines(text: str) -> str:
    """Put every formula of a text on one line; keep only the last of aligned equations."""
    text = _ALIGNED.sub(lambda m: f"${m[2].split(chr(92) * 2)[-1].replace('&', '').strip()}$", _BROKEN.sub("", text))
    return _DISPLAY.sub(lambda m: m[0].replace("\n", " "), text).strip()


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of the values in sentences: formulas and numbers, or the letters of options."""

    finds: re.Pattern[str]
    options: bool

    def announced(self, text: str) -> Extracted | None:
        """Read the last announcement of a text; None if there is none, an empty answer if it does not commit."""
        announcements = phrases.announcements(text)
        head = _SENTENCE.split(text[: announcements[-1].start()])[-1] if announcements else ""
        if not announcements or phrases.SECOND_THOUGHT.search(head[-12:]):
            return None
        nothing = Extracted(reason="no sentence commits to an answer")
        sentences = _sentences(text[announcements[-1].end() :])
        if not sentences or phrases.CONDITION.match(head) or re.search(r"\bif\b[^,]*$", head):
            return nothing
        return self._claim(sentences[0], sentences[1:], announced=True) or nothing

    def last(self, text: str) -> Extracted | None:
        """Read the last sentence of a text that names a value."""
        sentences = _sentences(text)
        end = sentences[-1].strip()
        if "\\" in end and "$" not in end and not self.options and not _WORD.search(re.sub(r"\{[^{}]*\}", "", end)):
            return Extracted(unwrapped(end), formula=True)  # LaTeX without its delimiters
        for index in range(len(sentences) - 1, -1, -1):
            if self.values(sentences[index]):
                return self._claim(sentences[index], sentences[index + 1 :], announced=False)
        if any(_rejected(end, value) for value in self.finds.finditer(end)):
            return None
        doubts = (phrases.DOUBT_BEFORE, phrases.UNSURE, phrases.SECOND_THOUGHT)
        if (
            len(sentences) > 1
            or len(text) > _LONGEST
            or text.endswith("?")
            or any(doubt.search(text) for doubt in doubts)
        ):
            return None
        return Extracted(unwrapped(text))  # words, or mathematics without a number

    def values(self, sentence: str) -> list[re.Match[str]]:
        """Return the values of a sentence that it does not deny; a denial covers a whole list."""
        kept: list[re.Match[str]] = []
        denied: list[re.Match[str]] = []
        for match in self.finds.finditer(sentence):
            if (denied and phrases.JOINED.fullmatch(sentence[denied[-1].end() : match.start()])) or _rejected(
                sentence, match
            ):
                denied.append(match)
            else:
                kept.append(match)
        both = list(dict.fromkeys(match[0] for match in denied))[-_FEW:]  # "7 or not 7" names nothing
        return [match for match in kept if all(other_value(match[0], other) for other in both)]

    def _claim(self, sentence: str, later: list[str], *, announced: bool) -> Extracted | None:
        """Return the answer of a sentence; None if it does not commit, or a later sentence contradicts it."""
        values = self.values(sentence)
        if not _stands(sentence, values) or not all(self._lets_stand(other, sentence, announced) for other in later):
            return None
        whole = unwrapped(re.sub(r"[.!]+$", "", sentence.strip()))
        if not values:
            return self._words(sentence, whole) if announced else None
        formulas = any(match[1] for match in values)
        if not (self.options or formulas or _WORD.search(whole)):
            return Extracted(whole, formula=len(values) > 1 or bool(re.search("[A-Za-z]", whole)))
        at_once = not sentence[: values[0].start()].strip(_OPENERS)
        if announced and at_once and len(values) == 1 and not (formulas or self.options):
            return Extracted(unwrapped(_REASON.split(whole)[0]))
        if announced and at_once and self.options and len(values) > 1:
            gap = sentence[values[0].end() : values[1].start()]
            values = values if phrases.JOINED.fullmatch(gap) else values[:1]  # the text behind the letter is about it
        return self._stated(sentence, values, announced=announced and at_once)

    def _words(self, sentence: str, whole: str) -> Extracted | None:
        """Return an announced answer without a value: words, unless something is denied."""
        denied = self.finds.search(sentence) or phrases.DENIED.search(sentence)
        return None if denied or phrases.SECOND_THOUGHT.match(sentence.strip()) else Extracted(whole)

    def _lets_stand(self, other: str, sentence: str, announced: bool) -> bool:
        """True if a later sentence neither doubts nor names another value."""
        values = self.values(other)
        if any(other_value(match[0], sentence) for match in values) and not (
            announced and not names_another(other, "")
        ):
            return False
        if phrases.DOUBT_BEFORE.search(other) or phrases.UNSURE.search(other):
            return False
        only_denials = not values and self.finds.search(other) is not None
        return only_denials or not phrases.SECOND_THOUGHT.search(other)

    def _stated(self, sentence: str, found: list[re.Match[str]], *, announced: bool) -> Extracted | None:
        """Return one value, a list of values, or the value that the sentence concludes with."""
        lists: list[list[re.Match[str]]] = [[found[0]]]
        for before, match in itertools.pairwise(found):
            gap = sentence[before.end() : match.start()]
            if phrases.JOINED.fullmatch(gap):
                lists[-1].append(match)
            elif re.search(r"\bor\b", gap):
                return None
            else:
                lists.append([match])
        concluding = [some for some in lists if phrases.concludes(phrases.before_value(sentence, some[0].start()))]
        concluding = lists[:1] if announced and not concluding else concluding
        if not concluding and not lists[-1][-1][1] and len({match[0] for match in found}) > 1:
            return None
        chosen = concluding[-1] if concluding else lists[-1]
        if _doubted(sentence, chosen):
            return None
        listed = list(dict.fromkeys(unwrapped(match[0]) for match in chosen))
        if len(listed) > 1 or chosen[-1][1] or self.options:
            return Extracted(", ".join(listed), formula=True)
        unit = _UNIT.match(sentence[chosen[-1].end() :])
        return Extracted(listed[0] + (unit[0].rstrip() if unit and len(unit[0].strip()) < 12 else ""))


def _rejected(sentence: str, value: re.Match[str]) -> bool:
    """True if a sentence denies one of its values."""
    before = sentence[max(0, value.start() - 300) : value.start()]
    behind = sentence[value.end() : value.end() + 300]
    if phrases.DENIED.search(before[-80:]) or phrases.DENIED_AFTER.match(behind[:80]) or _IN_CODE.search(before):
        return True
    number = any(character.isdigit() for character in value[0])
    return rejected_before(before) or rejected_behind(behind, number=number)


def _stands(sentence: str, found: list[re.Match[str]]) -> bool:
    """True if a sentence states something: it is no question, condition or range, and has no doubt."""
    if phrases.UNSURE.search(sentence) or sentence.rstrip().endswith("?") or phrases.RANGE.search(sentence):
        return False
    if phrases.CONDITION.match(sentence) and not _THEN.search(sentence):
        return False
    if not found:
        return not phrases.DOUBT_BEFORE.search(sentence)
    return not (_doubted(sentence, found) if len(found) == 1 else _doubted_behind(sentence, found))


def _doubted(sentence: str, values: list[re.Match[str]]) -> bool:
    """True if there is doubt close before values or behind them."""
    before = sentence[max(0, values[0].start() - 16) : values[0].start()]
    return bool(phrases.DOUBT_BEFORE.search(before)) or _doubted_behind(sentence, values)


def _doubted_behind(sentence: str, values: list[re.Match[str]]) -> bool:
    return phrases.DOUBT_BEHIND.search(sentence[values[-1].end() :]) is not None
