r"""Times and dates: ``3{:}00 \text{ p.m.}`` is ``15:00`` and not ``3:00 a.m.``, ``2024-05-03`` is no difference."""

from __future__ import annotations

import re

Time = tuple[int, int, int, bool]
"""Hour (0 to 23), minute, second, and whether the half of the day is known."""

Date = tuple[int, int, int]
"""Year, month and day; the numbers as written if their order is ambiguous (03/05/2024)."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"({'|'.join(_MONTHS)})[a-z]*\.?"
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})")
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})")
_IN_WORDS = re.compile(
    rf"(?:{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?|(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH}),? (\d{{4}})", re.IGNORECASE
)
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))?(?::([0-5]\d))?\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)
_HOURS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_SPOKEN = re.compile(
    r"(?:(?:an? )?(?P<minutes>half|quarter|\d{1,2}|five|ten|twenty(?:[- ]five)?)(?: minutes)? (?P<side>past"
    r"|after|to|before) )?"
    rf"(?P<hour>{'|'.join(_HOURS[1:])}|\d{{1,2}})(?P<clock> o['\u2019]?clock)?(?: (?P<rest>[ap]\.? ?m\.?))?",
    re.IGNORECASE,
)
_DROPPED = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{|[{}$~]|\\[,;:! ]")


def clock(text: str) -> Time | None:
    r"""Parse a text as a time of day; None if it is not one. 15:00 can only be in the afternoon.

    >>> clock(r"3{:}00 \text{ p.m.}"), clock("15:00"), clock("12:00"), clock("42")
    ((15, 0, 0, True), (15, 0, 0, True), (12, 0, 0, False), None)
    """
    text = re.sub(r"\s+", " ", _DROPPED.sub(lambda m: " " if m[0] in ("~", "\\ ") else "", text)).strip()
    text = _in_digits(text) or text
    match = _CLOCK.fullmatch(text)
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, minute, second = (int(match[group] or 0) for group in (1, 2, 3))
    half = (match[4] or "").lower()
    if hour > 24 or (half and not 1 <= hour <= 12):
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return hour, minute, second, bool(half) or hour > 12 or match[1].startswith("0")


def _in_digits(text: str) -> str | None:
    """Return a time in words in digits: noon, half past three, a quarter to 5, 3 o'clock; None if it is not one."""
    if match := re.fullmatch(r"(?:12(?::00)? )?(noon|midday|midnight)", text, re.IGNORECASE):
        return "12:00 am" if match[1].lower() == "midnight" else "12:00 pm"
    match = _SPOKEN.fullmatch(text)
    if match is None:
        return None
    hour = _HOURS.index(match["hour"].lower()) if match["hour"].lower() in _HOURS else int(match["hour"])
    if match["minutes"] is None:
        return f"{hour}:00 {match['rest'] or ''}".strip() if match["clock"] else None
    minutes = {"half": 30, "quarter": 15}.get(match["minutes"].lower()) or _minutes(match["minutes"].lower())
    if not 1 <= hour <= 12 or minutes is None or not 0 < minutes < 60:
        return None
    if match["side"].lower() in ("to", "before"):
        hour = (hour - 2) % 12 + 1
        minutes = 60 - minutes
    return f"{hour}:{minutes:02d} {match['rest'] or ''}".strip()


def _minutes(word: str) -> int | None:
    if word.isdigit():
        return int(word)
    return {"five": 5, "ten": 10, "twenty": 20, "twenty-five": 25, "twenty five": 25}.get(word)


def date(text: str) -> Date | None:
    r"""Parse a text as a date with a year; None if it is not one.

    >>> date("2024-05-03"), date(r"\text{May 3, 2024}"), date("03/05/2024"), date("2024-17-03")
    ((2024, 5, 3), (2024, 5, 3), (3, 5, 2024), None)
    """
    text = re.sub(r"\s+", " ", _DROPPED.sub(lambda m: " " if m[0] in ("~", "\\ ") else "", text)).strip()
    if match := _YEAR_FIRST.fullmatch(text):
        numbers = int(match[1]), int(match[3]), int(match[4])
        return numbers if 1 <= numbers[1] <= 12 and 1 <= numbers[2] <= 31 else None
    if match := _YEAR_LAST.fullmatch(text):
        numbers = int(match[1]), int(match[3]), int(match[4])
        return numbers if 1 <= min(numbers[:2]) <= 12 and max(numbers[:2]) <= 31 else None
    if match := _IN_WORDS.fullmatch(text):
        month = _MONTHS.index((match[1] or match[4])[:3].lower()) + 1
        return int(match[5]), month, int(match[2] or match[3])
    return None


def same_time(gold: Time, given: Time) -> bool:
    """True if two times are equal; both halves of the day match if the record names none."""
    if gold[3] and not given[3]:
        return False
    return gold[:3] == given[:3] or (not gold[3] and (gold[0] - given[0]) % 12 == 0 and gold[1:3] == given[1:3])
