r"""Numbers spelled in one way: words, mixed numbers, separators, repeating decimals and powers of ten become digits.

Computer algebra reads ``x = 1 1/2`` as ``x = 1``, and ``3 hundred`` as 3. Everything is rewritten here before it is
handed on, wherever in the answer a number stands; a text that is one number is read by ``numbers`` alone.
"""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {
    **{word: i for i, word in enumerate(_UNITS)},
    **{word: 10 * i + 20 for i, word in enumerate(_TENS)},
    "fourty": 40,
}
_LARGE = {
    "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "quadrillion": 10**15,
    "lakh": 10**5, "crore": 10**7,
}  # fmt: skip
_DOZENS = {"dozen": 12, "score": 20, "gross": 144}
_DENOMINATORS = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "eleventh": 11, "twelfth": 12, "sixteenth": 16, "twentieth": 20, "hundredth": 100, "thousandth": 1000,
    "millionth": 10**6,
}  # fmt: skip
_ORDERS = (*_SMALL, *_LARGE, *_DENOMINATORS, *_DOZENS, "hundred", "halves")
_HAS_WORDS = re.compile(rf"\b(?:{'|'.join(_ORDERS)})|\b(?:squared|cubed|factorial)\b", re.IGNORECASE)
_FONT = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|mathbf|textit|textnormal|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(
    rf"\\[,;:! ]|~|-(?=(?:{'|'.join(_UNITS)}|{'|'.join(_DENOMINATORS)})s?\b)|(?<=[a-z]),", re.IGNORECASE
)
"""What stands between the words of a number."""
_THOUSANDS = re.compile(r"(-?(?:\\\$)?)(\d{1,6}(?:\.\d+)?)\s*\\(?:text|mathrm)\s*\{\s*k\s*\}")
_LETTERS = re.compile("(?<!\\\\)[a-zA-Z]{3}")
_TOKEN = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|[A-Za-z]+")
_LONGEST = 120

_DIGITS = r"\d{1,40}"
_NOT_INSIDE = r"(?<![\d.,_^{\\a-zA-Z])"
_SEPARATED = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:,\d{3})+)(?![\d]|,\d)")
_EUROPEAN = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:\.\d{3})+(?=,\d))(?:,(\d+))?(?![\d.,])")
_REPEATING = re.compile(rf"(?<![\d.])({_DIGITS})\.(\d{{0,40}})(?:\\overline\s*\{{(\d{{1,40}})\}}|\((\d{{1,40}})\))")
_GOES_ON = re.compile(rf"(?<![\d.])({_DIGITS})\.(\d{{0,6}}?)(\d{{1,6}}?)\3{{2,}}(?:\\[lc]?dots(?![a-z])|\.\.\.)()")
"""Decimal that shows its period three times or more and goes on: ``0.333...``."""
_SCIENTIFIC = re.compile(rf"(?<![\d.A-Za-z])({_DIGITS}(?:\.\d{{1,40}})?)[eE]([+-]?\d{{1,2}})(?![\d.A-Za-z])")
_POWER_OF_TEN = re.compile(
    rf"(?<![\d.A-Za-z^_])({_DIGITS}(?:\.\d{{1,40}})?)\s*(?:\\times|\\cdot"
    rf"|\*)\s*10\s*\^\s*(?:\{{\s*([+-]?\d{{1,2}})\s*\}}|(\d))(?!\d)"
)
_MIXED = re.compile(rf"{_NOT_INSIDE}({_DIGITS})\s*\\frac\s*\{{({_DIGITS})\}}\s*\{{({_DIGITS})\}}")
_MIXED_SLASH = re.compile(rf"{_NOT_INSIDE}({_DIGITS})\s+({_DIGITS})/({_DIGITS})(?![\d/.])")
_DECIMAL = re.compile(rf"(?<![\d.,A-Za-z_])({_DIGITS})?\.(\d{{1,40}})(?!\d|\.|\\dots|\\ldots)")


def in_digits(text: str) -> str:
    r"""Spell the numbers of a text in LaTeX's spelling in one way; a value never changes.

    >>> in_digits(r"x = 1 1/2"), in_digits(r"1\frac{1}{2}\pi"), in_digits(r"3\text{ hundred}"), in_digits("y = 1,234")
    ('x = \\frac{3}{2}', '\\frac{3}{2}\\pi', '300', 'y = 1234')
    >>> in_digits(r"0.(3)x"), in_digits("x = 5.6e1"), in_digits(r"\text{two million dollars}")
    ('\\frac{1}{3}x', 'x = 56', '2000000\\text{ dollars}')
    """
    if thousands := _THOUSANDS.fullmatch(text):
        return f"{thousands[1]}{_written(Fraction(thousands[2]) * 1000)}"
    if _LETTERS.search(text) and _HAS_WORDS.search(text) and (spelled := _from_words(text)) is not None:
        text = spelled
    if not any(character.isdigit() for character in text):
        return text
    if "." in text:
        text = _EUROPEAN.sub(lambda m: m[1].replace(".", "") + (f".{m[2]}" if m[2] else ""), text)
        text = _REPEATING.sub(_repeating, text)
        text = _GOES_ON.sub(lambda m: _repeating(m) if len(m[3]) * 3 <= len(m[0]) else m[0], text)
    if "," in text and not _lists(text):
        text = _SEPARATED.sub(lambda m: m[1].replace(",", ""), text)
    if "e" in text or "E" in text:
        text = _SCIENTIFIC.sub(lambda m: _written(Fraction(m[1]) * Fraction(10) ** int(m[2])), text)
    if "10" in text:
        text = _POWER_OF_TEN.sub(lambda m: _written(Fraction(m[1]) * Fraction(10) ** int(m[2] or m[3])), text)
    if "\\frac" in text:
        text = _MIXED.sub(_mixed, text)
    return _MIXED_SLASH.sub(_mixed, text) if "/" in text else text


def exact(text: str) -> str:
    r"""Write the decimals of a text as fractions: computer algebra rounds decimals, to places of its own.

    >>> exact(r"0.5\pi"), exact("x_{0.5}")
    ('\\frac{1}{2}\\pi', 'x_{\\frac{1}{2}}')
    """
    return _DECIMAL.sub(lambda m: _fraction(Fraction(f"{m[1] or 0}.{m[2]}")), text)


def _lists(text: str) -> bool:
    """True if commas of a text may separate values: in brackets, all of them without a space behind."""
    return re.search(r"[(\[{][^()\[\]{}]*\d,\d", text) is not None and re.search(r"\d,\s", text) is None


def _repeating(match: re.Match[str]) -> str:
    whole = match[1]
    fixed = match[2]
    period = match[3] or match[4]
    tail = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
    return _fraction(int(whole) + Fraction(int(fixed or 0), 10 ** len(fixed)) + tail)


def _mixed(match: re.Match[str]) -> str:
    whole, above, below = (int(match[group]) for group in (1, 2, 3))
    return _fraction(whole + Fraction(above, below)) if 0 < above < below else match[0]


def _fraction(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _written(value: Fraction) -> str:
    """Return an integer or a finite decimal in digits."""
    places = 0
    while value.denominator != 1 and places < 100:
        value *= 10
        places += 1
    digits = str(value.numerator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


def _from_words(text: str) -> str | None:
    """Replace the number at the start of a text whose words spell one; None if they do not."""
    plain = _FONT.sub(lambda m: f" {m[1]} ", text)
    currency = re.match(r"\s*(?:\\\$|[\u20ac\u00a3\u00a5])\s*", plain)
    mark = currency[0].strip() if currency else ""
    plain = _SPACING.sub(" ", plain[currency.end() if currency else 0 :])
    if len(plain) > _LONGEST or re.search(r"[^A-Za-z0-9\s.,+-]", plain):
        return None
    negative = re.match(r"\s*(?:minus|negative)\s+", plain, re.IGNORECASE)
    plain = plain[negative.end() :] if negative else plain
    tokens = list(_TOKEN.finditer(plain))
    value, used = number_in_words([token[0].lower() for token in tokens])
    if value is None or used == 0 or plain[: tokens[0].start()].strip():
        return None
    rest = plain[tokens[used - 1].end() :].strip(" .")
    if re.search(r"\d", rest) or (rest and not re.fullmatch(r"(?:of\s+)?(?:(?:an?|the)\s+)?[A-Za-z ]+", rest)):
        return None
    if rest and all(token[0].isalpha() for token in tokens[:used]) and _second(rest):
        return None
    rest = re.sub(r"^(?:of\s+)?(?:an?|the)\s+|^of\s+", "", rest)
    sign = "-" if negative else ""
    return f"{sign}{mark}{_fraction_or_digits(value)}" + (f"\\text{{ {rest}}}" if rest else "")


def _second(rest: str) -> bool:
    """True if the words behind a number name another one: "one or two"."""
    return re.search(rf"\b(?:and|or|to|{'|'.join(_SMALL)})\b", rest, re.IGNORECASE) is not None


def _fraction_or_digits(value: Fraction) -> str:
    finite = value.denominator == 1
    return _written(value) if finite else _fraction(value)


def number_in_words(tokens: list[str]) -> tuple[Fraction | None, int]:
    """Return the number that words or digits spell, and how many of them it takes.

    >>> number_in_words("two hundred and five".split()), number_in_words("three quarters".split())
    ((Fraction(205, 1), 4), (Fraction(3, 4), 2))
    >>> number_in_words("half a dozen".split()), number_in_words("plenty".split())
    ((Fraction(6, 1), 3), (None, 0))
    """
    if (
        tokens[:1] in (["a"], ["an"])
        and len(tokens) > 1
        and tokens[1] in (*_DENOMINATORS, *_LARGE, *_DOZENS, "hundred")
    ):
        tokens = ["one", *tokens[1:]]
    if tokens[:1] == ["half"]:
        dozen = tokens[1:3] and tokens[1] == "a" and len(tokens) > 2 and tokens[2] in _DOZENS
        return (Fraction(_DOZENS[tokens[2]], 2), 3) if dozen else (Fraction(1, 2), 1)
    total = Fraction(0)
    current: Fraction | None = None
    used = 0
    spelled = False
    while used < len(tokens):
        token = tokens[used]
        if token in _SMALL and (current is None or _fits(current, _SMALL[token])):
            current = (current or Fraction(0)) + _SMALL[token]
        elif token[0].isdigit() and current is None and used == 0:
            current = Fraction(token.replace(",", ""))
        elif token == "hundred" and current is not None:
            current *= 100
        elif token in _LARGE and current is not None:
            total += current * _LARGE[token]
            current = Fraction(0)
        elif token.removesuffix("s") in _DOZENS and current is not None:
            current *= _DOZENS[token.removesuffix("s")]
        elif token == "and" and spelled and used + 1 < len(tokens) and tokens[used + 1] in _SMALL:
            pass
        else:
            break
        spelled = spelled or not token[0].isdigit()
        used += 1
    if current is None:
        return None, 0
    return _with_suffix(total + current, tokens, used, spelled)


def _fits(current: Fraction | int, more: int) -> bool:
    """True if a smaller number word may follow: twenty one, two hundred twenty."""
    return (current % 100 == 0 and more < 100) or (current % 100 in range(20, 100, 10) and 0 < more < 10)


def _with_suffix(value: Fraction, tokens: list[str], used: int, spelled: bool) -> tuple[Fraction | None, int]:
    """Apply the word behind a number: a denominator, a power, a factorial, "and a half"."""
    rest = tokens[used:]
    if rest[:3] in (["and", "a", "half"], ["and", "one", "half"]):
        return value + Fraction(1, 2), used + 3
    if rest[:3] in (["and", "three", "quarters"], ["and", "three", "fourths"]):
        return value + Fraction(3, 4), used + 3
    word = rest[0] if rest else ""
    single = "half" if word == "halves" else word.removesuffix("s")
    if single in _DENOMINATORS and (word != single or value == 1):
        return value / _DENOMINATORS[single], used + 1
    if word == "squared" or word == "cubed":
        return value ** (2 if word == "squared" else 3), used + 1
    if word == "factorial" and value.denominator == 1 and 0 <= value <= 20:
        product = Fraction(1)
        for factor in range(2, int(value) + 1):
            product *= factor
        return product, used + 1
    return (value, used) if spelled else (None, 0)
