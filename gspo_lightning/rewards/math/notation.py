r"""Conversion of typed notation to the LaTeX that the rules and the library read.

Only characters and spellings change, never a value: ``½`` becomes ``\frac{1}{2}``, ``\sqrt[3]2`` gets its braces.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_SYMBOLS = {
    "\u2212": "-", "\u2013": "-", "\u2010": "-", "\u2011": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ",
    "\u22c5": r"\cdot ", "\u2217": "*", "\u00f7": r"\div ", "\u03c0": r"\pi ", "\u221e": r"\infty ",
    "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u2208": r"\in ", "\u222a": r"\cup ",
    "\u2229": r"\cap ", "\u2205": r"\emptyset ", "\u00b0": r"^{\circ}", "\u2032": "'", "\u03b8": r"\theta ",
    "\u03b1": r"\alpha ", "\u03b2": r"\beta ", "\u2248": r"\approx ", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
    "\u2003": " ", "\u2044": "/", "\u2215": "/", "\u066b": ".", "\u066c": ",", "\u2220": r"\angle ", "\u00ac": r"\neg ",
    "\u2227": r"\land ", "\u2228": r"\lor ", "\u2192": r"\to ", "\u2194": r"\leftrightarrow ", "\u2295": r"\oplus ",
    "\u2216": r"\setminus ", "\u2124": r"\mathbb{Z}", "\u2115": r"\mathbb{N}",
    "\u27e8": r"\langle ", "\u27e9": r"\rangle ",
}  # fmt: skip
_VULGAR = {
    "½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35", "⅘": "45", "⅙": "16",
    "⅚": "56",    "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78",
}  # fmt: skip
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_CHARACTERS = str.maketrans(_SYMBOLS | {c: rf"\frac{{{v[0]}}}{{{v[1]}}}" for c, v in _VULGAR.items()})
_DIGITS = re.compile(r"(?![0-9])\d")
_WIDE = re.compile("[\uff01-\uff5e]")
_SPAN = re.compile(r"(\d{4})\s*(?:\\(?:text|mathrm)\s*\{\s*(?:-|--|to|\u2013)\s*\}|-|--|:|to)\s*(\d{4})")
"""Range of years."""
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_APPROXIMATELY = (
    r"(?:\s|~|\\[,;:! ])*(?:\\(?:text|mathrm|mbox)\s*\{\s*)?\(?\s*(?:approximately|approx\.?|about|roughly"
    r"|exactly)\s*\)?(?:\s*\})?"
    r"(?:\s|~|\\[,;:! ])*"
)
_INTRODUCED = (
    r"(?:\\(?:text|mathrm|mbox)\s*\{\s*)?(?:so |thus |therefore |hence )?(?:the |my )?(?:final |correct )?"
    r"(?:answer|result|value|solution)(?: is| equals|:)\s*(?:\}|(?=[-\d$\\]))\s*"
)
"""Words in front of a value that announce it."""
_INFINITE = (
    r"(?:\\(?:text|mathrm|mbox)\s*\{\s*)?(?:(?:it )?(?:diverges|tends|goes|increases|approaches|equals|is)(?: to)? )?"
    r"(?:(negative |minus |-\s*)|positive |plus )?infinity\s*\}?"
)
_NAMED_SPACE = re.compile(
    r"\\(?:enspace|enskip|thinspace|medspace|thickspace|nobreakspace|space|hfill)(?![a-zA-Z])\s*"
    r"|\\hspace\*?\s*\{[^{}]*\}|\\[hm](?:skip|space)\s*\{?\s*-?[\d.]+\s*(?:pt|em|ex|mu|cm|mm|in)\s*\}?"
)
"""Spacing commands with a name; all others are marks behind a backslash, ``~`` and ``\\quad``."""
_BLANK = re.compile(r"(?<!\\)\\(?:[,;:> ]|q?quad(?![a-zA-Z]))|~")
_NO_SPACE = re.compile(r"(?<!\\)\\!|\\neg(?:thin|med|thick)space(?![a-zA-Z])\s*")
_IN_FONT = re.compile(
    r"(\\(?:text|mathrm|textrm|mbox|textbf|mathbf|textit|mathit|textnormal|operatorname)\s*\{)"
    r"([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)
_FUNCTIONS = "(?:arc)?(?:sin|cos|tan|cot)|(?:sin|cos|tan)h|sec|csc|ln|log|exp|gcd|det|max|min"
_COUNT = r"\d{1,3}|[a-z]"
_BEFORE_C = r"(?:\{\s*\}\s*[_^]|(?<![A-Za-z0-9})])\{?\s*[_^])"
_WAYS: tuple[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    ("frac", re.compile(r"\\(?:d|t|c|s|nice|xnice)frac(?![a-zA-Z])"), r"\\frac"),
    ("frac", re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)"), r"\\frac{\1}{\2}"),
    ("frac", re.compile(r"\\frac\s*(\d)\s*\{"), r"\\frac{\1}{"),
    ("frac", re.compile(r"(\\frac\s*\{[^{}]*\})\s*(\d)"), r"\1{\2}"),
    ("sqrt", re.compile(r"(\\sqrt\s*\[[^\[\]]*\])\s*([A-Za-z0-9])"), r"\1{\2}"),
    ("\u221a", re.compile(r"\u221a\s*\{"), r"\\sqrt{"),
    ("\u221a", re.compile(r"\u221a\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    ("\u221a", re.compile(r"\u221a\s*(\d+|[A-Za-z])"), r"\\sqrt{\1}"),
    ("\\", re.compile(r"\\(overline|bar|dot)\s*(\d)(?!\d)"), r"\\overline{\2}"),
    ("\\", re.compile(r"\\(?:bar|dot)\s*\{(\d+)\}"), r"\\overline{\1}"),
    ("\u221b \u221c", re.compile(r"[\u221b\u221c]\s*(?:\{([^{}]*)\}|\(([^()]*)\)|(\d+|[A-Za-z]))"), lambda m: _root(m)),
    ("\\", re.compile(r"\\(?:bm|boldsymbol|pmb|mathbf|textbf|mathit)\s*\{\s*([-+]?[\d.,]*\d)\s*\}"), r"\1"),
    (
        "\\",
        re.compile(r"\\(?:tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge)(?![a-zA-Z])\s*"),
        "",
    ),
    (
        "checkmark blacksquare square qed Box \u2713 \u2714 \u25a0 \u25a1",
        re.compile(
            r"(?:\s|\\[,;:! ]|\\q?quad)*(?:\\(?:checkmark|blacksquare|square|qed|Box)(?![a-zA-Z])"
            r"|[\u2713\u2714\u25a0\u25a1])$"
        ),
        "",
    ),
    ("pprox bout oughly xactly", re.compile(rf"{_APPROXIMATELY}$|^{_APPROXIMATELY}", re.IGNORECASE), ""),
    ("nswer esult alue olution", re.compile(rf"^{_INTRODUCED}", re.IGNORECASE), ""),
    ("US", re.compile(r"(?<![A-Za-z])(?:US|USD)\s*\\?\$"), r"\\$"),
    (
        "C",
        re.compile(
            rf"{_BEFORE_C}\s*\{{?\s*({_COUNT})\s*\}}?\s*\}}?\s*(?:\\mathrm\s*\{{C\}}"
            rf"|C)\s*_\s*\{{?\s*({_COUNT})\s*\}}?"
        ),
        r"\\binom{\1}{\2}",
    ),
    (
        "C",
        re.compile(
            rf"(?<![A-Za-z\\])C\s*(?:_\s*\{{?\s*({_COUNT})\s*\}}?\s*\^\s*\{{?\s*({_COUNT})\s*\}}?"
            rf"|\^\s*\{{?\s*({_COUNT})\s*\}}?\s*_\s*\{{?\s*({_COUNT})\s*\}}?)"
        ),
        lambda m: _binomial(m),
    ),
    ("cis", re.compile(r"\\(?:operatorname|text|mathrm)\s*\{\s*cis\s*\}|(?<![A-Za-z\\])cis(?![A-Za-z])"), r"\\cis "),
    (
        "cis",
        re.compile(
            r"\\cis\s*(?:\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|\(([^()]*)\)|(\\frac\{[^{}]*\}\{[^{}]*\}"
            r"|[\d.]+(?:\\pi)?(?:\^\\circ|\^\{\\circ\})?|\\?[A-Za-z]+))"
        ),
        lambda m: _cis(m),
    ),
    (
        "smallmatrix",
        re.compile(
            r"\\(?:left)?\s*[(\[]\s*(?=\\begin\{smallmatrix\})|(?<=\\end\{smallmatrix\})\s*(?:\\right)?\s*[)\]]"
        ),
        "",
    ),
    ("smallmatrix", re.compile(r"\{smallmatrix\}"), "{pmatrix}"),
    ("nfinity", re.compile(rf"^{_INFINITE}$", re.IGNORECASE), lambda m: rf"{'-' if m[1] else ''}\infty"),
    ("overline", re.compile(r"\\overline\s*\{\s*([A-Z]{2,})\s*\}"), r"\1"),
    ("in out", re.compile(r"^(\d+)\s*(?:\\(?:text|mathrm)\s*\{\s*)?(?:in|out of)\s*\}?\s*(\d+)$"), r"\\frac{\1}{\2}"),
    ("=", re.compile(r"^\s*=\s*(?=[^=]+$)"), ""),
    ("therefore", re.compile(r"^\s*\\therefore(?![a-zA-Z])\s*"), ""),
    ("USD", re.compile(r"^USD\s*(?=\d)"), r"\\$"),
    ("lg", re.compile(r"\\lg(?![a-zA-Z])|\\operatorname\s*\{\s*lg\s*\}"), r"\\log_{10} "),
    ("log_", re.compile(r"\\log_\{?e\}?(?![a-zA-Z])"), r"\\ln "),
    (
        "tg",
        re.compile(r"\\(?:operatorname\s*\{\s*)?(arc)?(c?)tg(?![a-zA-Z])(?:\s*\})?"),
        lambda m: rf"\{m[1] or ''}{'cot' if m[2] else 'tan'} ",
    ),
    ("operatorname", re.compile(rf"\\operatorname\*?\s*\{{\s*({_FUNCTIONS})\s*\}}"), r"\\\1 "),
    (
        "P",
        re.compile(rf"{_BEFORE_C}\s*\{{?\s*(\d{{1,2}})\s*\}}?\s*\}}?\s*P\s*_\s*\{{?\s*(\d{{1,2}})\s*\}}?"),
        lambda m: _arrangements(m),
    ),
    ("varnothing", re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    ("leqslant leqq", re.compile(r"\\leqslant(?![a-zA-Z])|\\leqq(?![a-zA-Z])"), r"\\le"),
    ("geqslant geqq", re.compile(r"\\geqslant(?![a-zA-Z])|\\geqq(?![a-zA-Z])"), r"\\ge"),
    ("\\le \\ge", re.compile(r"\\(le|ge)([a-z])(?![a-z])(?<!leq)(?<!geq)"), r"\\\1 \2"),
    (
        "\\",
        re.compile(r"\\[bB]igg?[lr]?(?![a-zA-Z])|\\(?:left|right)(?![a-z])\.?|\\(?:display|text)style(?![a-zA-Z])"),
        "",
    ),
    ("{,} {\\,}", re.compile(r"\{,\}|\{\\,\}"), ","),
    ("{:}", re.compile(r"\{:\}"), ":"),
    ("\\", re.compile(r"\.\d{3}(?:\\[,!;:]\d{3})*\\[,!;:]\d{1,3}(?!\d)"), lambda m: re.sub(r"\\.", "", m[0])),
    ("\\", re.compile(r"(?<=\d)(?:,?\\[,!;: ]\s*|,\s*\\!\s*)(?=\d{3}(?!\d))"), ","),
    ("\\", re.compile(r"\\(?:mathrm|text|mbox|textrm)\s*\{\s*\}"), ""),
    ("{}", re.compile(r"(?<=\d)\{\}(?=\s*(?:\\|[\^A-Za-z~]|$))|(?<=\})\{\}(?=\s*\^)"), ""),
    ("\\rm", re.compile(r"(?<=[\d}~\s,;:!])\{\s*\\rm(?![a-zA-Z])([^{}]*)\}"), r"\\mathrm{\1}"),
    ("\\", _IN_FONT, lambda m: f"{m[1]}{spaced(m[2])}}}"),
    ("\\", re.compile(r"\\(?:rm|bf|it)(?![a-zA-Z])\s*"), ""),
    ("\\", re.compile(r"\\(?:texttt|textsf|mathtt|mathsf|emph|underline)\s*\{([^{}]*)\}"), r"\\text{\1}"),
    ("", re.compile(r"^(?:\s|\\[,;:! ]|\\q?quad(?![a-zA-Z])|~)+"), ""),
    ("\\", re.compile(r"^\\(?:text|mathrm|mbox|textrm)\s*\{\s*([-+]?\d[^{}]*)\}$"), r"\1"),
    ("\\", re.compile(r"\\(?:mathrm|text)\s*\{\s*e\s*\}"), "e"),
    ("pi", re.compile(r"(?<![a-zA-Z\\{])pi(?![a-zA-Z])"), r"\\pi "),
    ("sqrt", re.compile(r"(?<![a-zA-Z\\{])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    ("sin cos tan ln log exp", re.compile(r"(?<![a-zA-Z\\{])(sin|cos|tan|ln|log|exp)(?=\s*\()"), r"\\\1"),
    ("**", re.compile(r"\*\*"), "^"),
    ("\\approx", re.compile(r"^\s*\\approx(?![a-zA-Z])\s*"), ""),
    ("mathbb", re.compile(r"(\\mathbb\s*\{?[A-Z]\}?)\s*-\s*(?=\\\{)"), r"\1 \\setminus "),
)
"""Marks of which a text must have one, a pattern, and its replacement."""
_SPELLINGS = tuple((tuple(marks.split()) or ("",), pattern, replacement) for marks, pattern, replacement in _WAYS)
_BLANK_END = re.compile(r"(?:\s+|~|(?<!\\)\\[,;:! ]|\\q?quad)$")
_TO = r"\s*(?:\\(?:text|mathrm)\s*\{\s*to\s*\}|\bto\b|:)\s*"
_RATIO = re.compile(rf"\d+(?:\.\d+)?(?:{_TO}\d+(?:\.\d+)?)+")
_RAISED_IN_DOLLARS = re.compile(r"(?<=[A-Za-z])\s*\$\s*(\^\s*(?:\{\s*-?\d\s*\}|\d))\s*\$")
"""Power of a unit that is in dollar signs of its own: ``cm$^2$``."""
_MEASURED = re.compile(
    r"\$([^$]+)\$(?:\s|~|\\[,;:! ])*([A-Za-z][A-Za-z /\u00b7]*(?:\^\s*(?:\{\s*-?\d\s*\}|-?\d)[A-Za-z /\u00b7]*)*)\.?"
)
"""A value in dollar signs with a unit outside them: ``$125$ miles``, ``$25\\pi$ cm^2``."""
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")
_PAIRS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_WRAPPED = re.compile(
    r"\\(?:text|mathrm|textbf|mathbf|textit|mathit|mbox|textrm|textnormal|operatorname)\s*\{([^{}]*)\}"
)
_SPACING = re.compile(r"\\[!,;: ]|\\quad|\\qquad|~|\s+")
_APART = re.compile(r"(?<=\d)(?:\s|\\[,;: ]|~)+(?=\d)|(?<=\d,)\s+(?=\d{3}(?!\d))")


def unwrapped(text: str) -> str:
    r"""Remove the dollar signs, bold marks and full stop around a text; a dollar sign that means money stays.

    >>> unwrapped(r" $42$. "), unwrapped(r"**42**"), unwrapped(r"\$36")
    ('42', '42', '\\$36')
    """
    text = text.strip().removesuffix("\u3002")
    if "^" in text and "$" in text:
        text = _RAISED_IN_DOLLARS.sub(r"\1", text)
    for _ in range(3):
        before = text
        text = text.removesuffix(".").removesuffix("\\").strip() if not text.endswith((r"\right.", "..")) else text
        for left, right in (*_PAIRS, ("**", "**"), ("__", "__"), ("`", "`")):
            if len(text) >= len(left) + len(right) and text.startswith(left) and text.endswith(right):
                inner = text[len(left) : len(text) - len(right)]
                if left not in inner and not inner.endswith("\\"):
                    text = inner.strip()
        if text == before:
            break
    measured = _MEASURED.fullmatch(text) if text.startswith("$") else None
    return f"{measured[1]} \\text{{{measured[2]}}}" if measured else text


def in_latex(text: str) -> str:
    r"""Convert a text to LaTeX's spelling.

    >>> in_latex("½ × √2"), in_latex(r"\sqrt[3]2"), in_latex("x² ≤ 4")
    ('\\frac{1}{2} \\times  \\sqrt{2}', '\\sqrt[3]{2}', 'x^{2} \\le  4')
    """
    if text.isascii() and text.isdigit():
        return text
    text = _INVISIBLE.sub("", text)
    if not text.isascii():
        text = re.sub(f"[{''.join(_RAISED)}]+", lambda m: "^{" + "".join(_RAISED[c] for c in m[0]) + "}", text)
        text = re.sub(f"[{''.join(_LOWERED)}]+", lambda m: "_{" + "".join(_LOWERED[c] for c in m[0]) + "}", text)
        text = _DIGITS.sub(lambda m: str(unicodedata.decimal(m[0])), _WIDE.sub(_narrow, text)).translate(_CHARACTERS)
    if "matrix" not in text and "array" not in text and "cases" not in text:
        text = _DOUBLED.sub(r"\\", text)
    if "space" in text or "skip" in text or "\\hfill" in text:
        text = _NAMED_SPACE.sub(r"\\ ", text)
    while blank := _BLANK_END.search(text[-6:]):
        text = text[: -len(blank[0])]
    for marks, pattern, replacement in _SPELLINGS:
        for mark in marks:
            if mark in text:
                text = pattern.sub(replacement, text)
                break
    return re.sub(_TO, ":", text) if _RATIO.fullmatch(text.strip()) else text


def spaced(text: str) -> str:
    r"""Write every spacing command of a text as a space.

    >>> spaced(r"12\,V~m"), spaced(r"12\!V")
    ('12 V m', '12V')
    """
    return _NO_SPACE.sub("", _BLANK.sub(" ", text)) if "\\" in text or "~" in text else text


def canonical(text: str) -> str:
    r"""Remove everything that never changes a text's meaning: delimiters, spacing, font commands, a full stop.

    >>> canonical(r"$\dfrac{1}{2}\,$."), canonical(r"\text{Monday}")
    ('\\frac{1}{2}', 'Monday')
    """
    return bare_latex(in_latex(unwrapped(text)))


def bare_latex(text: str) -> str:
    """Do the same to a text that is in LaTeX's spelling already."""
    text = _APART.sub("\0", _WRAPPED.sub(lambda m: m[1].strip(), text))  # 4 2 is not 42
    return _SPACING.sub("", text).replace(",\0", ", ").replace("\0", " ")


def _narrow(match: re.Match[str]) -> str:
    """Return the usual character for a full-width one."""
    return chr(ord(match[0]) - 0xFEE0)


def _root(match: re.Match[str]) -> str:
    degree = 3 if match[0].startswith("\u221b") else 4
    return f"\\sqrt[{degree}]{{{match[1] or match[2] or match[3]}}}"


def _binomial(match: re.Match[str]) -> str:
    """Write ``C_{10}^3`` as a binomial coefficient; authors differ about which index is the larger, numbers do not."""
    low, high = (match[1], match[2]) if match[1] else (match[4], match[3])
    if low.isdigit() and high.isdigit() and int(low) < int(high):
        low, high = high, low
    return f"\\binom{{{low}}}{{{high}}}"


def _cis(match: re.Match[str]) -> str:
    angle = match[1] or match[2] or match[3]
    return f"(\\cos({angle})+i\\sin({angle}))"


def years(text: str) -> tuple[int, int] | None:
    """Return the first and the last year of a range; None if a text is not one.

    >>> years(r"1914\\text{-}1918"), years("1918-1914")
    ((1914, 1918), None)
    """
    match = _SPAN.fullmatch(text.strip())
    return (int(match[1]), int(match[2])) if match and int(match[1]) < int(match[2]) else None


def _arrangements(match: re.Match[str]) -> str:
    """Write the number of arrangements of k out of n as a quotient of factorials."""
    count = int(match[1])
    chosen = int(match[2])
    return f"\\frac{{{count}!}}{{{count - chosen}!}}" if chosen <= count else match[0]
