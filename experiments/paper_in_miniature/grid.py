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
        """Regime by regime, seed by seed."""
        for regime in self.declared["regimes"]:
            for seed in self.seeds:
                for method, settings in self.declared["methods"].items():
                    given = dict(settings)
                    models = given.pop("models", [regime["model"]])
                    updates = given.pop("mini_batches", [regime["mini_batches"]])
                    if regime["model"] in models and regime["mini_batches"] in updates:
                        yield Cell(**regime, method=method, seed=seed, settings=given)
