"""The cells of a declared grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["GRID", "Cell", "Grid"]

GRID = Path(__file__).with_name("grid.yaml")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a method in a regime (model, learning rate, updates per rollout batch) with a seed."""

    model: str
    learning_rate: float
    mini_batches: int
    method: str
    seed: int
    settings: Mapping[str, Any]

    @property
    def regime(self) -> tuple[str, float, int]:
        """What a method is compared with others in."""
        return self.model, self.learning_rate, self.mini_batches

    @property
    def name(self) -> str:
        """A file name."""
        method = "".join(c if c.isalnum() else "-" for c in self.method)
        return f"{self.model}_{self.learning_rate:g}_{self.mini_batches}_{method}_{self.seed}"


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid file."""

    declared: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path = GRID) -> Grid:
        """From YAML."""
        return cls(yaml.safe_load(path.read_text(encoding="utf-8")))

    @property
    def seeds(self) -> list[int]:
        """In the order of the runs."""
        return list(self.declared["seeds"])

    def cells(self) -> Iterator[Cell]:
        """Seed by seed, regime by regime."""
        for seed in self.seeds:
            yield from _block(self.declared, seed)
            yield from _block(self.declared["mismatch"], seed)


def _block(block: Mapping[str, Any], seed: int) -> Iterator[Cell]:
    for model in block["models"]:
        for learning_rate in block["learning_rates"]:
            for mini_batches in block["mini_batches"]:
                for method, settings in block["methods"].items():
                    if model in settings.get("models", [model]):
                        yield Cell(model, float(learning_rate), int(mini_batches), method, seed, settings)
