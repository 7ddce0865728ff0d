"""Extraction of the program from a completion, by text; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gspo_lightning.core.thinking import after_thinking

_OPENS = re.compile(r"(?P<indent>[ \t]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?)(?P<fence>```+|~~~+)(?P<info>[^`]*)")
_PYTHON = re.compile(r"[{.\s]*(?:python|py|pypy)[\d.]*\b", re.IGNORECASE)
_CPP = re.compile(r"[{.\s]*(?:gnu)?(?:c\+\+|cpp|cxx|cc)[\d.]*(?:$|[\s,}])", re.IGNORECASE)
_OTHER = re.compile(
    r"[{.\s]*(?:c|java|javascript|js|typescript|ts|rust|rs|go|golang|c#|cs|csharp|ruby|rb|kotlin|kt|swift|scala|"
    r"haskell|hs|perl|php|pascal|d|julia|lua)[\d.]*(?:$|[\s,}])",
    re.IGNORECASE,
)
_CPP_CODE = re.compile(r"^[ \t]*#[ \t]*include\b|\bint[ \t]+main[ \t]*\(", re.MULTILINE)
LANGUAGES = {"python": _PYTHON, "cpp": _CPP}
"""Name of a supported language -> the pattern of its fence mark."""
_MARKED = (("[BEGIN]", "[DONE]"), ("[PYTHON]", "[/PYTHON]"))
"""Program marks in MBPP's and Code Llama's prompts; the opening mark may stand in the prompt."""
_CODE = re.compile(
    r"^[ \t]*+(?:import\s+\w|from\s+\S+\s+import\s|(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:(]|return\b|try:|"
    r"(?:for|while|if|with)\b.*:[ \t]*(?:#.*)?$|[\w., \[\]]+=[ \t]*(?:[\w.]+\(|\[|lambda\b)|[\w.]+\(.*\)[ \t]*$)",
    re.MULTILINE,
)


@dataclass(slots=True)
class _Block:
    indent: str
    fence: str
    info: str
    lines: list[str]
    closed: bool = False

    @property
    def is_python(self) -> bool:
        return _PYTHON.match(self.info) is not None

    @property
    def text(self) -> str:
        """The lines without the indentation of the fence."""
        lines = []
        for line in self.lines:
            white = len(line) - len(line.lstrip(" \t"))
            lines.append(line[min(len(self.indent), white) :])
        text = "\n".join(lines) + ("\n" if self.closed and lines else "")
        if not self.closed and text.rstrip().endswith(self.fence):
            return text.rstrip().removesuffix(self.fence)  # closed on the last line of the program
        return text


def program_of(
    completion: str, names: Sequence[str] = (), language: str = "python", unfinished: bool = False
) -> str | None:
    r"""Extract the program of a completion; None while its thinking has not ended, as ``unfinished`` may say.

    The program is the last fenced block marked as the language (among those that define one of ``names``, if any does).
    Without such a mark it is the last block that looks like a program, else the last block. Without a fence it is the
    text between the marks of MBPP's prompts, or all of the completion.

    >>> program_of("Try:\n```python\nprint(1)\n```\nwhich prints\n```\n1\n```\n")
    'print(1)\n'
    """
    text = after_thinking(completion.replace("\r\n", "\n").removeprefix("\ufeff"), unfinished)
    if text is None:
        return None
    blocks = _blocks(text)
    if not blocks:
        return _marked(text)
    chosen = _chosen(blocks, language)
    name = "|".join(map(re.escape, names))
    defines = re.compile(rf"\b(?:def|class)[ \t]+(?:{name})\b|^(?:{name})[ \t]*[:=]", re.MULTILINE)
    fitting = [b for b in chosen if names and defines.search(b.text)]
    return (fitting or chosen or blocks)[-1].text


def other_language(completion: str, language: str) -> str:
    r"""Return the mark of a completion's last program if it has none in the language; empty if it has one.

    >>> other_language("```cpp\nint main() {}\n```", "python"), other_language("```\n1\n```", "python")
    ('cpp', '')
    """
    blocks = _blocks(after_thinking(completion.replace("\r\n", "\n")) or "")
    if _chosen(blocks, language):
        return ""
    foreign = [mark for name, mark in LANGUAGES.items() if name != language] + [_OTHER]
    marks = [b.info.strip() for b in blocks if any(mark.match(b.info) for mark in foreign)]
    return marks[-1][:20] if marks else ""


def marked_language(completion: str) -> str:
    r"""Return the language of the last marked program of a completion; Python if none is marked.

    >>> marked_language("```python\n1\n```\n```C++17\nint main() {}\n```"), marked_language("print(1)")
    ('cpp', 'python')
    """
    blocks = _blocks(after_thinking(completion.replace("\r\n", "\n")) or "")
    marked = [name for block in blocks for name, mark in LANGUAGES.items() if mark.match(block.info)]
    return marked[-1] if marked else "python"


def _chosen(blocks: list[_Block], language: str) -> list[_Block]:
    """Return the blocks marked as the language, else the unmarked ones that look like a program."""
    looks_right = _is_program if language == "python" else _CPP_CODE.search
    marked = [b for b in blocks if LANGUAGES[language].match(b.info)]
    return marked or [b for b in blocks if not b.info.strip() and looks_right(b.text)]


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    for line in text.split("\n"):
        opening = _OPENS.fullmatch(line)
        block = blocks[-1] if blocks and not blocks[-1].closed else None
        if block is not None:
            bare = line.strip()
            if bare.startswith(block.fence) and not bare.strip(block.fence[0]):
                block.closed = True
                continue
            # a fence marked as Python begins a program, even in a block that was never closed
            python_opens = opening is not None and opening["fence"] == block.fence and _PYTHON.match(opening["info"])
            if block.is_python or not python_opens:
                block.lines.append(line)
                continue
        if opening is not None:
            indent = re.sub(r"[^\s]", " ", opening["indent"])
            blocks.append(_Block(indent, opening["fence"], opening["info"].strip(), []))
    return blocks


def _marked(text: str) -> str:
    for opening, closing in _MARKED:
        if opening in text:
            return text.rpartition(opening)[2].partition(closing)[0]
        if closing in text:
            return text.partition(closing)[0]
    return text


def _is_program(text: str) -> bool:
    """True if a line is clearly code; sample input and output and shell commands have no such line."""
    return _CODE.search(text) is not None
