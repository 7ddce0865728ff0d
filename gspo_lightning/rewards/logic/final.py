r"""Final answers: find the answer in a completion and remove its wrapping.

Models write answers in bold, in fences, in ``$...$`` or ``\boxed{}``, with "The answer is" in front. All of this is
removed if it wraps the whole answer. Other text beside an answer stays, and the family's parser refuses it.
"""

from __future__ import annotations

import re

from gspo_lightning.core.thinking import UNFINISHED, after_thinking

_BOX = "\\boxed{"
_LABEL = re.compile(
    r"(?:so|thus|hence|therefore)\b,?\s+(?=\S)|"
    r"(\*\*)?(?:the\s+)?(?:(?:final|completed|correct|solved)\s+)?(?:answer|solution|expression|equation|grid)"
    r"(?:\s+is\b:?|\s*:)(?(1)\*\*|)\s*(?=\S)",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```[\w+-]*\n(.*?)\n?```", re.DOTALL)
_COMMAND = re.compile(r"\\(?:boxed|text|textbf|mathrm|mathbf)\s*\{")
_PAIRS = (
    ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("*", "*"), ("__", "__"), ('"', '"'),
    ("\u201c", "\u201d"),
)  # fmt: skip
_EMPHASIS = re.compile(r"(?<![\w*`$])(\*{1,3}|`+|\$)(?=[^\s*`$])([^*`$\n]*[^\s*`$])\1(?![\w*`$])")
_AFTER_BOX = re.compile(r"[\s.$*!_`\\)\]]*")
_LAYERS = 12


def final_answer(completion: str, marker: str, truncated: bool, unfinished: bool = False) -> tuple[str, str]:
    r"""Return the text of the final answer and an empty text, or an empty text and the problem.

    A missing tag may be replaced by a single box at the end. ``unfinished``: the text ends inside a thought.

    >>> final_answer("<think>#1</think>#2", "#", False)
    ('2', '')
    >>> final_answer("so \\boxed{2}", "<answer>", False)
    ('2', '')
    """
    text = after_thinking(completion, unfinished)
    if text is None:
        return "", UNFINISHED
    is_tag = marker.startswith("<") and marker.endswith(">")
    count = text.count(marker) if marker else 1
    if is_tag and not count and text.count(_BOX) == 1:
        start = text.index(_BOX) + len(_BOX)
        closing = _closing_brace(text, start)
        if closing is None:
            return "", "the box is not closed"
        return (text[start:closing], "") if _AFTER_BOX.fullmatch(text, closing + 1) else ("", "more after the box")
    if count != 1:
        return "", f"{count} times {marker}" if count else f"no {marker}"
    answer = text.partition(marker)[2] if marker else text
    if is_tag:
        answer, closing_tag, _ = answer.partition(f"</{marker[1:]}")
        return (answer, "") if closing_tag else ("", f"{marker} is not closed")
    return ("", "truncated") if truncated else (answer, "")


def plain(text: str) -> str:
    r"""Remove the wrapping of the whole answer.

    >>> plain("**Answer:** $\\boxed{\\text{AbC}}$."), plain("`AbC` or `ABC`"), plain("**AbC** or **ABC**")
    ('AbC', '`AbC` or `ABC`', '**AbC** or **ABC**')
    """
    return layers(text)[-1]


def layers(text: str) -> list[str]:
    """Return an answer with no wrapping removed, then with one more layer removed each time.

    >>> layers(" **Done.** ")
    ['**Done.**', 'Done.', 'Done']
    """
    texts = [text.strip()]
    while len(texts) <= _LAYERS:
        inner = _unwrapped(texts[-1]).strip()
        if inner == texts[-1]:
            break
        texts.append(inner)
    return texts


def without_emphasis(text: str) -> str:
    """Remove bold, italic, code and math markup from the words of a text.

    >>> without_emphasis("**A** is a `knight`, 3*5*7")
    'A is a knight, 3*5*7'
    """
    return _EMPHASIS.sub(r"\2", text)


def _unwrapped(text: str) -> str:
    if (label := _LABEL.match(text)) is not None:
        return text[label.end() :]
    if text.endswith(".") and not text.endswith(".."):
        return text[:-1]
    fence = _FENCE.fullmatch(text)
    if fence is not None and "```" not in fence[1]:
        return fence[1]
    if (command := _COMMAND.match(text)) is not None and _closing_brace(text, command.end()) == len(text) - 1:
        return text[command.end() : -1]
    ticks = len(text) - len(text.lstrip("`"))
    if 0 < ticks < len(text) / 2 and text.endswith("`" * ticks) and "`" not in text[ticks:-ticks]:
        return text[ticks:-ticks]
    for left, right in _PAIRS:
        inner = text[len(left) : -len(right)]
        wraps = text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right)
        if wraps and left not in inner and right not in inner and inner == inner.strip(left[0]):
            return inner
    return text


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for match in re.compile(r"\\[^a-zA-Z]|[{}]").finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None
