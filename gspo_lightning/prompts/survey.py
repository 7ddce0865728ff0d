"""Report on a file of prompts before a run: lengths, repeated prompts, decontamination report; three lines."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gspo_lightning.corpus.certificate import about
from gspo_lightning.prompts.base import PromptSet
from gspo_lightning.prompts.files import PromptFile
from gspo_lightning.types import Prompt

__all__ = ["Survey", "file_of"]


class Survey:
    """Lengths and hashes of the prompts in use, 12 bytes each."""

    def __init__(self) -> None:
        self._lengths, self._hashes = array("I"), array("q")

    def add(self, prompt: Prompt) -> None:
        """Add one prompt."""
        self._lengths.append(len(prompt.token_ids))
        self._hashes.append(hash((prompt.text, *(picture.sha256 for picture in prompt.media))))

    def lines(self, file: Path) -> Iterator[str]:
        """Yield at most three lines; ``gspo data report`` has the details.

        Raises:
            UserError: the decontamination report (certificate) of the file cannot be read.
        """
        lengths, hashes = np.frombuffer(self._lengths, np.uint32), np.frombuffer(self._hashes, np.int64)
        low, median, high = (int(x) for x in np.percentile(lengths, [0, 50, 100]))
        yield f"{file.name}: {len(lengths):,} prompts of {low:,} to {high:,} tokens, median {median:,}"
        if repeated := len(hashes) - len(np.unique(hashes)):
            yield f"{file.name}: {repeated:,} prompts repeat another one exactly (gspo data dedup)"
        said = about(file)
        if said is None:
            yield f"{file.name}: not checked for leaks from benchmarks (gspo data decontaminate)"
        else:
            yield said[0] if said[1] else f"warning: {said[0]}"


def file_of(source: PromptSet | str | None) -> Path | None:
    """Return the file of a prompt source; None if it is not a file."""
    path = source.path if isinstance(source, PromptFile) else source
    return Path(path) if isinstance(path, str) and Path(path).is_file() else None
