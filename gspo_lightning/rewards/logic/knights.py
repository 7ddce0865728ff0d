"""Knights and knaves: knights always tell the truth, knaves always lie; find each person's kind."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gspo_lightning.rewards.logic.family import Family, Grade, Puzzle
from gspo_lightning.rewards.logic.final import without_emphasis
from gspo_lightning.rewards.logic.lenient import parse_object
from gspo_lightning.rewards.logic.statements import read_statements

Claim = tuple[int, bool, str, int, bool]
"""A claim: person, is a knight, operator, person, is a knight."""
_WORDS = {"*": "{} and {}", "+": "{} or {}, or both", "=": "{} if and only if {}"}
Kinds = dict[str, bool]
_TABLE_HEAD = re.compile(r"\|[^|\n]*\|[^|\n]*\|\s*\n\|[-: |]+\|\s*\n")


class Knights(Family):
    """People ``A``, ``B`` ... (difficulty + 1 of them), each with one claim about two of them.

    In the notation a capital letter says "is a knight", a small one "is a knave", and ``* + =`` are and, or, if and
    only if: ``A:b*C`` is "A says that B is a knave and C is a knight". The solution ``AbC`` is the only assignment that
    the truth values of the claims spell again. Its steps search for it: ``ABC>aBc;`` reads "if all were knights, the
    claims of A and C would be false".
    """

    name: ClassVar[str] = "knights"

    def generate(self, rng: random.Random, difficulty: int) -> Puzzle | None:
        """Draw claims; try all assignments, exactly one of which must fit."""
        people = difficulty + 1
        claims = [_draw(rng, people) for _ in range(people)]
        table = [(who, _truths(claims, who)) for who in itertools.product((True, False), repeat=people)]
        # an assignment fits if just its knights say the truth
        fitting = [place for place, (who, truths) in enumerate(table) if who == truths]
        if len(fitting) != 1:
            return None
        tried = table[: fitting[0] + 1]
        solution = _spell(tried[-1][0])
        spoken = " ".join(f"{chr(65 + i)} says: {_sentence(claim)}." for i, claim in enumerate(claims))
        columns = zip(*(truths for _, truths in table), strict=True)  # of each claim: its truth in every assignment
        return Puzzle(
            key="/".join("".join("01"[truth] for truth in column) for column in columns),
            text=f"Knights always tell the truth, knaves always lie. {spoken} Who is a knight and who is a knave?",
            form="one statement for each, such as: A is a knight, B is a knave",
            answer=solution,
            solution=", ".join(f"{c.upper()} is a {'knight' if c.isupper() else 'knave'}" for c in solution),
            compact=";".join(f"{chr(65 + i)}:{_notation(claim)}" for i, claim in enumerate(claims)),
            compact_solution=solution,
            steps="".join(f"{_spell(who)}>{_spell(truths)};" for who, truths in tried),
        )

    def grade(self, text: str, answer: object) -> Grade:
        """Grade person by person; ``answer`` is ``AbC``, or ``{name: "knight" | "knave"}`` with names of any kind."""
        gold = _gold(answer)
        kinds = read_kinds(text, list(gold))
        if isinstance(kinds, str):
            return Grade.unread(kinds)
        return Grade(sum(kinds[name] == is_knight for name, is_knight in gold.items()), len(gold))


def _draw(rng: random.Random, people: int) -> Claim:
    first, second = rng.sample(range(people), 2)
    return first, rng.random() < 0.5, rng.choice("*+="), second, rng.random() < 0.5


def _truths(claims: Sequence[Claim], who: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return the truth value of each claim if ``who`` are the knights.

    >>> _truths([(0, True, "*", 1, False)], (True, True))
    (False,)
    """
    truths = []
    for first, first_is, operator, second, second_is in claims:
        left = who[first] == first_is
        right = who[second] == second_is
        if operator == "*":
            truths.append(left and right)
        elif operator == "+":
            truths.append(left or right)
        else:
            truths.append(left == right)
    return tuple(truths)


def _spell(who: Sequence[bool]) -> str:
    """Write an assignment as text.

    >>> _spell([True, False, True])
    'AbC'
    """
    return "".join(chr((65 if is_knight else 97) + i) for i, is_knight in enumerate(who))


def _notation(claim: Claim) -> str:
    first, first_is, operator, second, second_is = claim
    return f"{chr((65 if first_is else 97) + first)}{operator}{chr((65 if second_is else 97) + second)}"


def _sentence(claim: Claim) -> str:
    first, first_is, operator, second, second_is = claim
    left = f"{chr(65 + first)} is a {'knight' if first_is else 'knave'}"
    right = f"{chr(65 + second)} is a {'knight' if second_is else 'knave'}"
    return _WORDS[operator].format(left, right)


def _gold(answer: object) -> dict[str, bool]:
    if isinstance(answer, str) and answer.lstrip().startswith("{"):
        answer = json.loads(answer)
    if isinstance(answer, str) and answer.isascii() and answer.isalpha():
        kinds = {c.upper(): c.isupper() for c in answer}
        if len(kinds) == len(answer):
            return kinds
    elif isinstance(answer, Mapping) and answer and all(v in ("knight", "knave") for v in answer.values()):
        return {str(name): kind == "knight" for name, kind in answer.items()}
    raise ValueError(f"{answer!r} is neither like AbC nor a mapping of names to 'knight' and 'knave'")


def read_kinds(text: str, names: Sequence[str]) -> Kinds | str:
    """Return each name and whether it is a knight, or the problem as text.

    >>> read_kinds("A and C are **knights**, B is the knave.", ["A", "B", "C"])
    {'A': True, 'C': True, 'B': False}
    >>> read_kinds("A is a knight or B is a knave", ["A", "B"])
    'more than names with knight or knave'
    """
    text = without_emphasis(text).strip()
    if (head := _TABLE_HEAD.match(text)) is not None:
        text = text[head.end() :]
    if text.startswith("{"):
        return _object(text, names)
    if list(text.upper()) == list(names):
        return {c.upper(): c.isupper() for c in text}
    return read_statements(text, names)


def _object(text: str, names: Sequence[str]) -> Kinds | str:
    try:
        entries, end = parse_object(text)
    except ValueError as error:
        return str(error)
    words = {key.strip().lower(): value for key, value in entries.items()}
    if text[end:].strip() or set(words) != {name.lower() for name in names}:
        return "not one entry for each name"
    kinds: Kinds = {}
    for name in names:
        kind = _kind(words[name.lower()])
        if kind is None:
            return "an entry is neither knight nor knave"
        kinds[name] = kind
    return kinds


def _kind(value: object) -> bool | None:
    word = value.strip().lower() if isinstance(value, str) else ""
    return {"knight": True, "knave": False}.get(word.removeprefix("a "))
