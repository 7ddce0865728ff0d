"""A declared grid: conditions x variants x seeds, each cell one run of ``gspo fit``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gspo_lightning.commands.compare.runs import Variant

__all__ = ["GRIDS", "Cell", "Grid", "names"]

GRIDS = Path(__file__).with_name("grids")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    condition: str
    variant: str
    seed: int
    arguments: tuple[str, ...]
    """Of ``gspo fit``, after the grid's configs."""
    of_start: tuple[str, ...]
    """Those that the cold start may depend on: the grid's and the condition's, but for what samples."""

    @property
    def name(self) -> str:
        """A folder name."""
        return f"{Variant(f'{self.condition} {self.variant}', ()).folder}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid file.

    ``conditions``: name -> ``seeds`` (so many, from 1), ``arguments``, and ``variants`` if not all are run there;
    ``variants``: name -> arguments;
    ``baseline``: the variant that the others are compared with; ``measures``: names of
    :data:`experiments.lab.measures.MEASURES`; ``configs`` and ``arguments``: of all cells; ``about``: what is asked.
    """

    name: str
    title: str
    about: str
    configs: tuple[str, ...]
    arguments: tuple[str, ...]
    conditions: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, tuple[str, ...]]
    baseline: str
    measures: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Grid:
        """From YAML.

        Raises:
            ValueError: a word is missing or unknown, or the baseline is not one of the variants.
        """
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        expected = set(cls.__dataclass_fields__) - {"name"}
        if set(found) != expected:
            raise ValueError(
                f"{path}: missing {sorted(expected - set(found))}, unknown {sorted(set(found) - expected)}"
            )
        if found["baseline"] not in found["variants"]:
            raise ValueError(f"{path}: baseline {found['baseline']!r} is not one of the variants")
        for name, given in found["conditions"].items():
            if unknown := set(given.get("variants", ())) - set(found["variants"]):
                raise ValueError(f"{path}: {name} runs variants that are not declared: {sorted(unknown)}")
        lists = {word: tuple(found[word]) for word in ("configs", "arguments", "measures")}
        variants = {name: tuple(arguments) for name, arguments in found["variants"].items()}
        return cls(path.stem, **{**found, **lists, "variants": variants})

    def cells(self) -> Iterator[Cell]:
        """Condition by condition and seed by seed, so that a grid that was stopped is whole for those it has."""
        for condition, given in self.conditions.items():
            for seed in range(1, given["seeds"] + 1):
                for variant, arguments in self.variants.items():
                    if variant not in given.get("variants", self.variants):
                        continue
                    start = (*self.arguments, *_flat(given["arguments"]))
                    together = (*start, *arguments, f"--seed_everything={seed}")
                    taught_by = tuple(a for a in start if not a.startswith("--data.rollouts"))
                    yield Cell(condition, variant, seed, together, taught_by)


def _flat(arguments: Sequence[str | Sequence[str]]) -> list[str]:
    """A list in which another may stand: YAML's aliases cannot be spliced."""
    return [a for one in arguments for a in ([one] if isinstance(one, str) else one)]


def names() -> list[str]:
    """Of all grids that ship."""
    return sorted(path.stem for path in GRIDS.glob("*.yaml"))
