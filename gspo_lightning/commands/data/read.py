"""First pass over files: check every prompt and store its normalised text in a file."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from gspo_lightning.commands.data.terminal import reading
from gspo_lightning.data.corpus.files import Identifiers, Inputs, Record, prompt_of
from gspo_lightning.data.corpus.text import TextStore, normalised


@dataclass(slots=True)
class Prompts:
    """Prompts of all input files."""

    texts: TextStore
    """Normalised texts."""
    raw: array[int] = field(default_factory=lambda: array("Q"))
    """64-bit hashes of the unchanged prompts."""
    normal: array[int] = field(default_factory=lambda: array("Q"))
    """64-bit hashes of the normalised texts."""

    def hashes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the hashes of raw and normalised prompts as arrays."""
        return np.frombuffer(self.raw, dtype=np.uint64), np.frombuffer(self.normal, dtype=np.uint64)


def read_prompts(
    inputs: Inputs, column: str, folder: Path, see: Callable[[Record, str], object] = lambda record, text: None
) -> Prompts:
    """Read all records once.

    Args:
        inputs: input files.
        column: name of the prompt column.
        folder: folder for the texts.
        see: called with every record and its prompt.

    Raises:
        UserError: a record cannot be used; the message has file and line.
    """
    prompts = Prompts(TextStore(folder / "texts"))
    identifiers = Identifiers(inputs)
    with reading(inputs, "read") as step:
        for record in inputs.records([column, "id", "answer", "tools"]):
            identifiers.add(record)
            text = prompt_of(inputs, record, column)
            normal = normalised(text)
            prompts.texts.add(normal)
            prompts.raw.append(_hash(text))
            prompts.normal.append(_hash(normal))
            see(record, text)
            step(record)
    return prompts


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
