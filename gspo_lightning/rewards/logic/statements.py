"""Statements about who is a knight: "A is a knight", "B and C lie", "only A is a knight", "the others are knaves"."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_FIRST = 0xE000
_PERSON = re.compile("[\ue000-\uf8ff]")
"""Characters for private use, which stand for the names: so forms are compiled once, whatever the names are."""
_BULLET = r"(?:\(\d\)\s*|\d[.)]\s*|[-*\u2022]\s+)?"
_KIND = r"(?P<kind>knight|knave|truth[-\s]?teller|liar)"
_ARTICLE = rf"(?:\b(?:is|are|not)|n['\u2019]t|[-:=|>(\u2013\u2014\u2192])\s*\ba(?=\s+{_KIND})"
"""A word that is an article, even if somebody is called A."""
_NAMES = r"(?P<who>[\ue000-\uf8ff](?:(?:\s*,\s*(?:and\s+)?|,?\s+and\s+|\s*&\s*)[\ue000-\uf8ff])*)"
_NOR = r"(?P<who>[\ue000-\uf8ff](?:\s+nor\s+[\ue000-\uf8ff])+)"
_NOT = r"(?:is|are)(?P<not>\s+not|n['\u2019]t)?\s+"
_IS = rf"{_NOT}(?:both\s+|all\s+)?(?:an?\s+|the\s+)?{_KIND}s?(?![a-z])"
_TELLS = r"(?:always\s+)?(?P<kind>tells?\s+the\s+truth|lies?)(?![a-z])"
_DOES = rf"(?:{_IS}|{_TELLS.replace('kind', 'verb')})"
_OTHERS = (
    r"(?:(?:all\s+|both\s+)?(?:of\s+)?(?:the\s+)?others|(?:all\s+)?the\s+rest|everyone\s+else|everybody\s+else|"
    r"the\s+other(?:\s+(?:one|two|three|four|five|person|people))?)"
)
_EVERYONE = r"(?:all(?:\s+of\s+them|\s+(?:two|three|four|five|six))?|everyone|everybody)"
_EXCEPT = r"\s+(?:except|but|besides)(?:\s+for)?\s+"
_NOBODY = r"(?:none(?:\s+of\s+them)?|no\s*one|nobody)\s+(?:is|are)\s+(?:an?\s+)?"
_BETWEEN = re.compile(r"(?:[\s,;.|&()\[\]]|\band\b|\bwhile\b)*", re.IGNORECASE)


@dataclass
class _Reading:
    """The kinds of people that statements have named so far.

    ``kinds`` holds the people whom they name; ``others`` is the kind of all whom they do not. If a statement is about
    everyone, that kind is also that of all but its ``exceptions``, named or not.
    """

    kinds: dict[str, bool] = field(default_factory=dict)
    others: bool | None = None
    exceptions: list[str] | None = None
    problem: str = ""

    def these(self, people: list[str], is_knight: bool) -> None:
        """Say the kind of people."""
        for name in people:
            if name in self.kinds:
                self.problem = self.problem or f"{name} is named twice"
            self.kinds[name] = is_knight

    def neither(self, people: list[str], is_knight: bool) -> None:
        """Say that people are not of a kind."""
        self.these(people, not is_knight)

    def rest(self, people: list[str], is_knight: bool) -> None:
        """Say the kind of all others."""
        if self.others is not None:
            self.problem = self.problem or "the others are named twice"
        self.others = is_knight

    def everyone(self, exceptions: list[str], is_knight: bool) -> None:
        """Say the kind of all but some, who are of the other kind."""
        self.these(exceptions, not is_knight)
        self.rest([], is_knight)
        self.exceptions = exceptions

    def only(self, people: list[str], is_knight: bool) -> None:
        """Say that people are of a kind, and nobody else."""
        self.everyone(people, not is_knight)

    def nobody(self, people: list[str], is_knight: bool) -> None:
        """Say that nobody is of a kind."""
        self.everyone([], not is_knight)

    def result(self, names: Sequence[str]) -> dict[str, bool] | str:
        """Return each name and whether it is a knight, or the problem."""
        if self.problem:
            return self.problem
        missing = [name for name in names if name not in self.kinds]
        if self.others is None:
            return f"{missing[0]} is not named" if missing else self.kinds
        if self.exceptions is None and not missing:
            return "there are no others"
        for name in () if self.exceptions is None else set(self.kinds) - set(self.exceptions):
            if self.kinds[name] != self.others:
                return f"{name} is of both kinds"
        return self.kinds | dict.fromkeys(missing, self.others)


_Action = Callable[[_Reading, list[str], bool], None]
_Form = tuple[re.Pattern[str], _Action]


def _compiled(*forms: tuple[str, _Action]) -> tuple[_Form, ...]:
    return tuple((re.compile(_BULLET + form, re.IGNORECASE), action) for form, action in forms)


_OF_PEOPLE = _compiled(
    (rf"{_NAMES}\s+{_DOES}", _Reading.these),
    (
        r"\(?(?P<who>[\ue000-\uf8ff])\)?\s*(?:(?:[:=|\u2013\u2014\u2192]|->?)\s*(?:an?\s|the\s)?|\(|(?<=[\s)]))"
        rf"\s*{_KIND}(?![a-z])\)?",
        _Reading.these,
    ),
    (rf"{_NAMES}\s+(?:is|are)\s+the\s+only\s+{_KIND}s?(?![a-z])", _Reading.only),
)
"""Form of a statement that begins with a name, and what it says; the first that fits is taken."""
_OF_ALL = _compiled(
    (rf"{_KIND}s?\s*[:=]\s*{_NAMES}(?!\w)", _Reading.these),
    (rf"(?:both|all of)\s+{_NAMES}\s+{_DOES}", _Reading.these),
    (rf"only\s+{_NAMES}\s+{_DOES}", _Reading.only),
    (rf"the\s+only\s+{_KIND}s?\s+(?:is|are)\s+{_NAMES}(?!\w)", _Reading.only),
    (rf"neither\s+{_NOR}\s+(?:is|are)\s+(?:an?\s+)?{_KIND}s?(?![a-z])", _Reading.neither),
    (rf"{_EVERYONE}\s+{_DOES}(?:{_EXCEPT}{_NAMES}(?!\w))?", _Reading.everyone),
    (rf"{_EVERYONE}{_EXCEPT}{_NAMES}\s+{_DOES}", _Reading.everyone),
    (rf"{_NOBODY}{_KIND}(?![a-z])", _Reading.nobody),
    (rf"{_OTHERS}\s+{_DOES}", _Reading.rest),
)
"""The same for other statements."""
_BEGINS_WITH_NAME = re.compile(_BULLET + r"\(?[\ue000-\uf8ff]")


@functools.lru_cache(maxsize=256)  # the completions of a group come one after another
def _placeholders(names: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    """Return a pattern of an article (group 1) or a name (group 2), and the placeholder of each name."""
    any_name = "|".join(re.escape(n) for n in sorted(names, key=len, reverse=True))
    people = {name.lower(): chr(_FIRST + number) for number, name in enumerate(names)}
    article = _ARTICLE.replace("?P<kind>", "?:") if "a" in people else "(?!)"
    return re.compile(rf"({article})|(?<!\w)({any_name})(?!\w)", re.IGNORECASE), people


def read_statements(text: str, names: Sequence[str]) -> dict[str, bool] | str:
    """Return each name and whether it is a knight, from statements in any order with nothing else between or after.

    A text that contradicts itself, names somebody twice or leaves somebody out is not an answer; the problem is then
    returned as text.

    >>> read_statements("Only B is a knave.", ["A", "B"])
    {'B': False, 'A': True}
    >>> read_statements("A tells the truth, the rest lie", ["A", "B"])
    {'A': True, 'B': False}
    """
    if _PERSON.search(text):
        return "characters for private use"
    pattern, people = _placeholders(tuple(names))
    text = pattern.sub(lambda m: m[1] or people[m[2].lower()], text)
    reading = _Reading()
    position = 0
    statements = 0
    while True:
        between = _BETWEEN.match(text, position)
        assert between is not None  # the pattern matches the empty text
        position = between.end()
        forms = _OF_PEOPLE if _BEGINS_WITH_NAME.match(text, position) else _OF_ALL
        match, action = _first(forms, text, position)
        if match is None:
            break
        groups = match.groupdict()
        kind = (groups.get("kind") or groups.get("verb") or "").lower()
        is_knight = kind.startswith(("knight", "truth", "tell")) != bool(groups.get("not"))
        placeholders = _PERSON.findall(groups.get("who") or "")
        action(reading, [names[ord(placeholder) - _FIRST] for placeholder in placeholders], is_knight)
        position = match.end()
        statements += 1
    if position < len(text):
        return "more than names with knight or knave" if statements else "not like: A is a knight, B is a knave"
    return reading.result(names)


def _first(forms: Sequence[_Form], text: str, position: int) -> tuple[re.Match[str] | None, _Action]:
    """Return the match of the first form that fits at a position, and what it says."""
    for form, action in forms:
        match = form.match(text, position)
        if match is not None:
            return match, action
    return None, _Reading.these
