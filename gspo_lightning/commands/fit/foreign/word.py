"""Setting of another framework: its name here and what differs, or why there is no equivalent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gspo_lightning.corpus.yaml_text import read_table

__all__ = ["Table", "Word", "read_words"]


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


def read_words(name: str) -> dict[str, dict[str, Word]]:
    """Read the settings of one YAML file of this folder, by subject."""
    written = read_table(Path(__file__).with_name(f"{name}.yaml"))
    return {subject: {word: _word(**said) for word, said in part.items()} for subject, part in written.items()}


def _word(*, here: str | Sequence[str] = (), note: str = "", none: str = "") -> Word:
    return Word((here,) if isinstance(here, str) else tuple(here), note or none)
