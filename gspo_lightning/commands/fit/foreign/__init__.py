"""Settings of TRL, transformers, verl and OpenRLHF and their names here, for error messages and documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gspo_lightning.core.parsing import read_table


@dataclass(frozen=True, slots=True)
class Word:
    """Equivalent of another framework's setting.

    ``ours`` are settings of a config (``data.group_size``), the preferred one first; empty if there is no equivalent.
    ``note`` says how the value changes and what differs, or why there is no equivalent.
    """

    ours: tuple[str, ...]
    note: str = ""

    @property
    def called(self) -> str:
        """Name here.

        >>> Word(("data.group_size",)).called, Word((), "there is no cache").called
        ('data.group_size', 'no equivalent')
        """
        return " and ".join(self.ours) or "no equivalent"

    def __str__(self) -> str:
        """Name here, and the note.

        >>> str(Word(("data.columns",), "a mapping")), str(Word((), "there is no cache"))
        ('data.columns: a mapping', 'no equivalent: there is no cache')
        """
        return self.called + (f": {self.note}" if self.note else "")


Table = Mapping[str, Mapping[str, Word]]
"""Subject -> name in the other framework -> equivalent here."""


@cache
def read_words(name: str) -> dict[str, dict[str, Word]]:
    """Read the settings of one YAML file of this folder, by subject.

    Only messages about unknown settings and the documentation need them, so no import reads them. In ``other``, the
    subject ``verl`` maps the beginning of a dotted name to its meaning, for settings not in the file of verl; the
    longest beginning counts.
    """
    tables: dict[str, dict[str, Word]] = {}
    for subject, names in read_table(Path(__file__).with_name(f"{name}.yaml")).items():
        tables[subject] = {foreign_name: _word(**fields) for foreign_name, fields in names.items()}
    return tables


def _word(*, here: str | Sequence[str] = (), note: str = "", none: str = "") -> Word:
    return Word((here,) if isinstance(here, str) else tuple(here), note or none)


__all__ = ["Word", "foreign", "translation"]

_VERL_ROOMS = {"actor_rollout_ref", "algorithm", "critic", "custom_reward_function", "global_profiler", "ray_kwargs",
               "reward_model"}  # fmt: skip


@cache
def _dotted() -> dict[str, Word]:
    return {name: word for words in read_words("verl").values() for name, word in words.items()}


@cache
def _flat() -> dict[str, tuple[str, Word]]:
    """Return undotted name -> (framework, meaning); verl's last parts count if unique and unused elsewhere."""
    by_last_part: dict[str, set[str]] = {}
    for name in _dotted():
        by_last_part.setdefault(name.rpartition(".")[2], set()).add(name)
    meanings: dict[str, tuple[str, Word]] = {}
    for last_part, names in by_last_part.items():
        if len(names) == 1:
            [name] = names
            meanings[last_part] = ("verl", _dotted()[name])
    meanings |= {name: ("OpenRLHF", word) for name, word in read_words("other")["OpenRLHF"].items()}
    for tables in (read_words("transformers"), read_words("trl")):
        for words in tables.values():
            meanings |= {name: ("TRL", word) for name, word in words.items()}
    return meanings


def foreign(key: str) -> tuple[str, Word] | None:
    """Return framework and meaning of a setting of another framework; None if no framework has it.

    >>> foreign("actor_rollout_ref.rollout.n")
    ('verl', Word(ours=('data.group_size',), note=''))
    >>> foreign("data.num_generations")[1].ours, foreign("critic.model.path")[1].note, foreign("colour")
    (('data.group_size',), 'null copies the policy', None)
    """
    key = key.lstrip("+~").replace("-", "_")
    exact = _dotted().get(key)
    if exact is not None:
        return "verl", exact
    if key.partition(".")[0] in _VERL_ROOMS:
        parts = key.split(".")
        meanings = read_words("other")["verl"]
        for length in range(len(parts), 0, -1):  # the longest beginning counts
            beginning = ".".join(parts[:length])
            if beginning in meanings:
                return "verl", meanings[beginning]
        return None
    return _flat().get(key.rpartition(".")[2])


def translation(framework: str, word: Word) -> tuple[str, str]:
    """Return problem and fix of the message about a setting of another framework.

    >>> translation("TRL", Word(("data.group_size",)))
    ('is a word of TRL', 'this is called data.group_size here')
    """
    if not word.ours:
        return f"is a word of {framework} that has no equivalent: {word.note}", "leave it out"
    return f"is a word of {framework}", f"this is called {word.called} here" + (f": {word.note}" if word.note else "")
