"""reasoning-gym's families: how their answers are scored, and which families are refused.

Their scorers were tested on their stored answers and on thirty kinds of padding and nonsense (``tests/rewards/gym``).
If a scorer accepts more than a right answer, the answer is compared as text, or must have a given form. If it executes
the answer, or accepts no stored answer, the family is refused by name.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.extras import install_command
from gspo_lightning.core.registry import installed_version

VERSION = "0.1.25"
"""The tested version of reasoning-gym."""
_EXECUTES = "its scorer executes the answer as Python"
_UNKNOWN = "it stores no correct answer, so nothing shows that its scorer accepts one"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication",
            "puzzle24", "simple_integration", "spiral_matrix", "string_insertion",
        ),
        _EXECUTES,
    ),
    **dict.fromkeys(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _UNKNOWN),
    "coin_flip": "its scorer scores every small probability 0",
    "composite": "it is a mixture of others: list them in families",
}  # fmt: skip
"""Refused family -> reason. ``countdown`` is a family of LogicTask, too."""
EXACT = frozenset(
    (
        "fraction_simplification", "game_of_life_halting", "gsm_symbolic", "knights_knaves", "letter_jumble",
        "spell_backward", "time_intervals", "word_sorting",
    )
)  # fmt: skip
"""Families with one right answer whose scorer accepts longer texts or anything: compared as text."""
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_VALUE = rf"{_NUMBER}(?:/\d+)?"
FORMS: dict[str, re.Pattern[str]] = {
    "advanced_geometry": re.compile(
        rf"{_NUMBER}(?:/\d+)?\s*\u00b0?|\(\s*{_NUMBER}(?:/\d+)?\s*,\s*{_NUMBER}(?:/\d+)?\s*\)"
    ),
    "kakurasu": re.compile(r"[01\s]+"),
    "polynomial_equations": re.compile(rf"(?:{_NUMBER}(?:\s*,\s*{_NUMBER})*)?"),
    "quantum_lock": re.compile(r"[A-Z](?:\s*(?:\u2192|->|,)?\s*[A-Z])*"),
    "sokoban": re.compile(r"[LRUDlrud]+"),
    "survo": re.compile(r"[\d\s]+"),
}
"""Required form of an answer, for families whose scorer skips what it cannot read."""


def check_installed() -> None:
    """Check that reasoning-gym is installed in the tested version, without importing it.

    Raises:
        UserError: it is not installed, or in another version.
    """
    fix = install_command("logic")
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError("ReasoningGym", "needs reasoning-gym, which is not installed", fix=fix)
    version = installed_version("reasoning-gym")
    if version != VERSION:
        problem = f"reasoning-gym is {version}, but its scorers were only tested in {VERSION}"
        raise UserError("ReasoningGym", problem, fix=fix)


def check_families(families: Sequence[str]) -> None:
    """Check that no family is refused; unknown names are found where items are made.

    Raises:
        UserError: a family is refused or named twice, or the list is empty.
    """
    if not families:
        raise UserError("ReasoningGym.families", "is empty", fix="name one, such as chain_sum")
    for family in families:
        if family in REFUSED:
            raise UserError("ReasoningGym.families", f"{family} is refused: {REFUSED[family]}", fix="take it out")
    if len(set(families)) < len(families):
        raise UserError("ReasoningGym.families", "names a family twice", fix="once is enough")


def unknown_family(family: str, known: Sequence[str]) -> str:
    """Return the message for a name that reasoning-gym does not have."""
    return f"{family!r} is not a family of reasoning-gym; {did_you_mean(family, known)}"
