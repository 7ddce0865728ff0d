r"""Extraction of the final answer from a box, by text only; no mathematics is parsed.

The answer is the content of the last ``\boxed{...}`` after the thinking. Consecutive boxes with only commas, "and" or
"or" between them are one answer with several values; boxing two guesses earns nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s+(?=[^\s{])")
_JOINING = re.compile(
    r"(?:[\s$,;:&{}()\[\]]|\\(?:quad|qquad|text|mathrm|,|;|!|\(|\)|\[|\]|\\)|\b(?:and|or|for|part)\b|"
    r"\b[a-z](?:_?\{?\d\}?)?\s*=|\([a-z]\))*"
)
r"""Text allowed between two boxes of one answer: ``\quad \text{and} \quad``, ``, y_2 =`` ..."""
_NAME = re.compile(r"([A-Za-z](?:_\{?\w+\}?)?)\s*=[\s$(\[\\]*$")
_PART = re.compile(r"\(\s*([a-z]|[ivx]{1,4}|\d)\s*\)")
_HIDING = re.compile(
    r"\\[hv]?phantom\s*\{|\\(?:[bx]?cancel|sout|st)\s*\{|\\(?:text)?color\s*\{\s*white\s*\}\s*\{?|\\iffalse(?![a-z])|<!--|"
    r"(?<![^\s(*_])~~(?=[^\s~])"
)
_ENDS = {"<": "-->", "\\iffalse": "\\fi", "~~": "~~"}
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of an answer, and whether it was in a box; ``reason`` says why there is none to judge.

    ``before`` and ``after`` are the text around its boxes. ``formula`` marks a formula outside a box.
    """

    text: str = ""
    boxed: bool = False
    reason: str = ""
    too_long: bool = False
    before: str = ""
    after: str = ""
    formula: bool = False


def without_hidden(text: str) -> str:
    r"""Return the text a reader sees: no phantoms, white or struck text, comments or colours.

    >>> without_hidden(r"\boxed{\phantom{42}}"), without_hidden(r"\textcolor{red}{42}<!-- 41 -->")
    ('\\boxed{}', '{42}')
    """
    kept: list[str] = []
    position = 0
    while match := _HIDING.search(text, position):
        kept.append(text[position : match.start()])
        end = next((mark for start, mark in _ENDS.items() if match[0].startswith(start)), None)
        if end is not None:
            at = text.find(end, match.end())
            position = at + len(end) if at >= 0 else (match.end() if end == "~~" else len(text))
            continue
        closing = _closing_brace(text, match.end())
        within = match[0].endswith("{")  # else white until its group ends
        position = len(text) if closing is None else closing + within
    return _COLOUR.sub("", "".join(kept) + text[position:])


def boxed(text: str, max_characters: int) -> Extracted:
    r"""Return the content of the last box or boxes of a text without thinking.

    >>> boxed(r"so \boxed{\frac{1}{2}}.", 2000).text
    '\\frac{1}{2}'
    """
    boxes = _boxes(text)
    if boxes is None:
        return Extracted(reason="the last box is not closed")
    if not boxes:
        return Extracted(reason="no box")
    values = [boxes[-1]]
    for before in reversed(boxes[:-1]):
        between = text[before[1] : values[0][0]]
        if len(between) > 60 or not _JOINING.fullmatch(between):
            break
        values.insert(0, before)
    names = [_NAME.search(text[max(0, start - 40) : start]) for start, _, _ in values]
    contents = list(dict.fromkeys(content for _, _, content in values))
    if len(values) > 1 and len({name[1] for name in names if name}) == len(values):
        contents = [f"{name[1]}={content}" for name, (_, _, content) in zip(names, values, strict=True) if name]
    if any("\\boxed" in content or "\\fbox" in content for content in contents):
        return Extracted(reason="a box in a box")
    answer = ", ".join(contents)
    if len(answer) > max_characters:
        return Extracted(reason=f"longer than {max_characters} characters", too_long=True)
    if not answer:
        return Extracted(reason="an empty box")
    return Extracted(answer, boxed=True, before=text[: values[0][0]], after=text[values[-1][1] :])


def labelled_boxes(text: str, labels: list[str]) -> dict[str, Extracted] | None:
    r"""Return the boxes of the parts of an answer by their labels; None if a part has none, or more than one.

    A box belongs to the last label in parentheses between it and the box before it.

    >>> {label: box.text for label, box in (labelled_boxes(r"(a) \boxed{3}. (b) \boxed{4}.", ["a", "b"]) or {}).items()}
    {'a': '3', 'b': '4'}
    """
    parts: dict[str, Extracted] = {}
    position = 0
    for start, end, content in _boxes(text) or ():
        named = _PART.findall(text[position:start].lower())
        position = end
        if named and named[-1] in labels:
            if named[-1] in parts:
                return None
            parts[named[-1]] = Extracted(content, boxed=True, before=text[:start])
    return parts if len(parts) == len(labels) else None


def _boxes(text: str) -> list[tuple[int, int, str]] | None:
    """Return the start, the end and the content of each box; None if one is not closed."""
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
                return None
            content = text[match.end() : closing].strip()
            end = closing + 1
        boxes.append((match.start(), end, content))
        position = end
    return boxes


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None
