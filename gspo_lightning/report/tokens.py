"""Recorded tokens of a run, in ``rollout_tokens.jsonl`` of its folder: what an update did to single responses.

A line is a row of a response as one update saw it. ``update`` counts optimizer steps from 1; ``tokens`` has a list per
quantity, with one entry per token after the prompt: ``text``, ``log_ratio`` (log pi - log pi_old, nats), ``entropy``
(nats), ``gap`` (log pi_old - the sampler's log-probability, nats), ``own`` (0: not chosen by the policy), ``clip``
(-1: the lower bound, 1: the upper bound takes the gradient away, 0: neither).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from gspo_lightning.core.parsing import load_json, whole_number

log = logging.getLogger(__name__)
TOKENS = "rollout_tokens.jsonl"
BYTES_AT_FIRST = 1_000_000
"""Size that the file may have before the first update."""
BYTES_PER_UPDATE = 16_000
"""Size by which it may grow with every update."""


class TokensFile:
    """Appends rows to the file of a run folder, within a number of bytes that grows with the updates.

    What is written depends on the rows and on the size of the file only, so a resumed run writes what an uninterrupted
    one does.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / TOKENS
        self._written = False

    def add(self, update: int, rows: Sequence[Mapping[str, Any]]) -> int:
        """Add rows of an update, in their order, as long as there is room; return how many.

        Raises:
            OSError: the file cannot be written.
        """
        lines = [(json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8", "replace") for row in rows]
        there = self.path.exists()
        if self._written and not there:
            log.warning("%s was removed during the run: its earlier rows are gone", self.path)
        used = self.path.stat().st_size if there else 0
        room = BYTES_AT_FIRST + BYTES_PER_UPDATE * update - used
        kept = [line for line, size in zip(lines, accumulate(map(len, lines)), strict=True) if size <= room]
        if kept:
            with open(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
                file.write(b"".join(kept))
            self._written = True
        return len(kept)

    def cut(self, first: int) -> None:
        """Drop the rows of this update and later ones, which a resumed run writes again, and half-written lines."""
        from gspo_lightning.resume.files import atomic_file  # imports torch, which readers do not need

        if not self.path.exists():
            return
        with open(self.path, "rb") as lines, atomic_file(self.path, private=True) as file:
            for line in lines:
                if line.endswith(b"\n") and _update(line) < first:
                    file.write(line)


def _update(line: bytes) -> float:
    try:
        return whole_number(load_json(line)["update"])
    except (ValueError, TypeError, KeyError):
        return float("inf")
