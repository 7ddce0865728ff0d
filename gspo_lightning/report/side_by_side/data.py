"""Measurements of several objectives on the same mini-batches at the same weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gspo_lightning.errors import UserError

__all__ = ["MEASURES", "Measure", "SideBySideData"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A tag of docs/metrics.md with its name and unit here; ``log``: values spread over decades."""

    tag: str
    name: str
    unit: str
    log: bool = False


MEASURES = (
    Measure("loss", "Loss", "as the objective scales it"),
    Measure("optim/gradient_norm", "Gradient norm", "L2, before clipping"),
    Measure("clip/tokens", "Clipped tokens", "fraction of tokens (0 not shown)", log=True),
    Measure("clip/sequences", "Clipped sequences", "fraction of sequences"),
)
DECIMALS = 7
"""Digits to round to: in float32 the loss of advantages that cancel is about 1e-9."""


@dataclass(frozen=True, slots=True)
class SideBySideData:
    """Rows by iteration and mini-batch: ``rows[i][m]`` is a line of the file that :class:`SideBySide` writes."""

    names: list[str]
    settings: dict[str, str]
    iterations: list[int]
    rows: list[list[dict[str, Any]]]

    @classmethod
    def read(cls, file: Path) -> SideBySideData:
        """Read the complete iterations of a file.

        Raises:
            UserError: the file is missing, or holds no iteration.
        """
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        by_iteration: dict[int, list[dict[str, Any]]] = {}
        for row in map(json.loads, lines):
            by_iteration.setdefault(int(row["iteration"]), []).append(row)
        most = max(map(len, by_iteration.values()), default=0)
        whole = {i: rows for i, rows in by_iteration.items() if len(rows) == most}
        if not whole:
            raise UserError("gspo compare", f"{file} holds no measurements of an iteration")
        first = next(iter(whole.values()))[0]
        return cls(list(first["objectives"]), dict(first["settings"]), list(whole), list(whole.values()))

    @property
    def mini_batches(self) -> int:
        """Optimizer updates per iteration."""
        return len(self.rows[0])

    def values(self, name: str, tag: str) -> NDArray[np.float64]:
        """Return a metric of an objective [iterations, mini-batches], rounded; NaN if it was not measured."""
        found = [[row["objectives"][name].get(tag, np.nan) for row in rows] for rows in self.rows]
        return np.asarray(np.round(np.array(found, dtype=np.float64), DECIMALS), dtype=np.float64)

    def cosines(self) -> NDArray[np.float64]:
        """Return the cosines between gradients [iterations, mini-batches, K, K]; NaN where one is 0."""
        return np.array([[row["cosines"] for row in rows] for rows in self.rows], dtype=np.float64)

    def gaps(self) -> list[float | None]:
        """Return, per iteration, the log-probability gap to the weights that sampled it, in nats per token."""
        return [rows[0].get("sampler_logprob_gap") for rows in self.rows]
