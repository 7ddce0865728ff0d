r"""Where the final answer of a mathematical completion stands: pure text work, no parsing of mathematics.

The answer is what stands in the last ``\boxed{...}`` after the thinking. Boxes that follow each other with nothing but
commas, "and" or "or" between them are one answer with several values, so that boxing two guesses pays nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Extracted", "after_thinking", "canonical", "extract", "plain_integer", "unequal_sides"]

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s+(?=[^\s{])")
_JOINING = re.compile(
    r"(?:[\s$,;:&{}()\[\]]|\\(?:quad|qquad|text|mathrm|,|;|!|\(|\)|\[|\]|\\)|\b(?:and|or|for|part)\b|"
    r"\b[a-z](?:_?\{?\d\}?)?\s*=|\([a-z]\))*"
)
r"""What may stand between two boxes that are one answer: ``\quad \text{and} \quad``, ``, y_2 =`` ..."""
_ANNOUNCED = re.compile(r"final answer is(?=[:\s]*[^\s:])", re.IGNORECASE)
_OPENING, _CLOSING = "<think>", "</think>"
_INTEGER = re.compile(r"[+-]?\d{1,400}|[+-]?[1-9]\d{0,2}(?:,\d{3}){1,100}")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[!,;: ]|\\left(?![a-z])|\\right(?![a-z])|\s+")
_LIST = re.compile(r"[-+]?\d[\d.]*(?:\s*(?:,\s+(?:and\s+|or\s+)?|\s(?:and|or)\s+)[-+]?\$?\d[\d.]*)+(?=\D*$)")
_NUMBER = r"[-+]?\(*[-+]?\d[\d.,]*\)*"
_OPERATOR = r"(?:[-+*/^\u00d7\u00f7\u00b7]|\\times|\\cdot)"
_EQUATION = re.compile(rf"({_NUMBER}(?:\s*{_OPERATOR}\s*{_NUMBER})*)\s*=\s*([^=<>\n]{{1,40}})$")


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of an answer, and whether it stood in a box; ``reason`` says why there is none to judge."""

    text: str = ""
    boxed: bool = False
    reason: str = ""
    too_long: bool = False


def after_thinking(text: str) -> str | None:
    """What follows the last ``</think>``; None while the thinking has not ended.

    >>> after_thinking("<think>41?</think> 42"), after_thinking("<think> 42")
    (' 42', None)
    """
    head, closed, rest = text.rpartition(_CLOSING)
    if _OPENING in rest:
        return None
    return rest if closed else head + rest


def extract(completion: str, *, require_box: bool, max_characters: int) -> Extracted:
    r"""The final answer of a completion.

    >>> extract(r"so \boxed{\frac{1}{2}}.", require_box=True, max_characters=2000).text
    '\\frac{1}{2}'
    """
    text = after_thinking(completion)
    if text is None:
        return Extracted(reason="the thinking has no end")
    last_box = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    announced = -1 if require_box else max((m.start() for m in _ANNOUNCED.finditer(text)), default=-1)
    if last_box > announced:
        return _boxed(text, max_characters)
    if require_box:
        return Extracted(reason="no box")
    tail = text[announced:].split("\n\n", 1)[0] if announced >= 0 else text
    tail = tail[:max_characters].strip() if announced >= 0 else tail[-max_characters:].strip()
    if announced < 0 and (listed := _LIST.search(tail.rsplit("\n", 1)[-1])):
        tail = f"${listed[0].replace(' and ', ', ').replace(' or ', ', ').replace('$', '')}$"
    return Extracted(tail) if tail else Extracted(reason="empty")


def _boxed(text: str, max_characters: int) -> Extracted:
    boxes: list[tuple[int, int, str]] = []
    position = 0
    while match := _BOX.search(text, position):
        if not match[0].endswith("{"):
            end = match.end()
            while end < len(text) and not text[end].isspace() and text[end] != "$":
                end += 1
            content = text[match.end() : end].rstrip(".,;")
        else:
            closing = _closing_brace(text, match.end())
            if closing is None:
                return Extracted(reason="the last box is not closed")
            content, end = text[match.end() : closing].strip(), closing + 1
        boxes.append((match.start(), end, content))
        position = end
    if not boxes:
        return Extracted(reason="no box")
    values = [boxes[-1]]
    for before in reversed(boxes[:-1]):
        between = text[before[1] : values[0][0]]
        if len(between) > 60 or not _JOINING.fullmatch(between):
            break
        values.insert(0, before)
    contents = list(dict.fromkeys(content for _, _, content in values))
    if any("\\boxed" in content or "\\fbox" in content for content in contents):
        return Extracted(reason="a box in a box")
    answer = ", ".join(contents)
    if len(answer) > max_characters:
        return Extracted(reason=f"longer than {max_characters} characters", too_long=True)
    return Extracted(answer, boxed=True) if answer else Extracted(reason="an empty box")


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None


def canonical(text: str) -> str:
    r"""A text without what never changes its meaning: dollar signs, spacing, font commands, a full stop.

    >>> canonical(r"$\dfrac{1}{2}\,$."), canonical(r"\text{Monday}")
    ('\\frac{1}{2}', 'Monday')
    """
    text = text.strip().removesuffix(".").strip()
    for left, right in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(left) and text.endswith(right) and len(text) >= len(left) + len(right):
            text = text[len(left) : len(text) - len(right)]
            break
    text = _WRAPPED.sub(lambda m: m[1].strip(), text)
    return _SPACING.sub("", text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))


def plain_integer(text: str) -> int | None:
    """The integer that a text is, thousands separators allowed, or None.

    >>> plain_integer("-1,000"), plain_integer("1,00"), plain_integer("042")
    (-1000, None, 42)
    """
    return int(text.replace(",", "")) if _INTEGER.fullmatch(text) and text.isascii() else None


def unequal_sides(text: str) -> tuple[str, str] | None:
    """The two sides of an arithmetic equation that a text ends with, for a check that they are equal.

    >>> unequal_sides("So 41 = 42"), unequal_sides("Step 3. 6 * 7 = 42."), unequal_sides("x = 42")
    (('41', '42'), ('6 * 7', '42'), None)
    """
    match = _EQUATION.search(text[-400:].strip())
    if match is None:
        return None
    return match[1], match[2].strip(" .$\\)]}*\n")
