"""``gspo list``: print the registered components with their parameters, the shipped configs and the metrics."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from gspo_lightning.commands.fit.configs import about, built_in
from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.escape import terminal
from gspo_lightning.core.metric_table.spec import METRICS as DEFINITIONS

CONFIGS = "configs"
METRICS = "metrics"


def main(argv: Sequence[str]) -> int:
    """Print a table per kind of component.

    Raises:
        UserError: the kind is unknown.
    """
    kinds = [*registry.KINDS, CONFIGS, METRICS]
    parser = argparse.ArgumentParser(
        "gspo list", description="List registered components with their parameters, shipped configs, or metrics."
    )
    parser.add_argument("kind", nargs="*", help=", ".join(kinds))
    parser.add_argument("--plugins", nargs="*", default=[], help="files, folders or modules to import first")
    options = parser.parse_args(list(argv))
    registry.import_plugins(options.plugins)
    for kind in options.kind or kinds[:-1]:  # metrics only if they are asked for: they fill many pages
        if kind not in kinds:
            raise UserError("gspo list", f"{kind!r} is not a kind of component; {did_you_mean(kind, kinds)}")
        rows = _TABLES[kind]() if kind in _TABLES else table(kind)
        terminal().print(rows)
    return 0


def _configs() -> Table:
    """Return a table of each config's name, which ``--config`` accepts, and first sentence."""
    rows = Table(title=CONFIGS, title_justify="left")
    rows.add_column("--config", no_wrap=True)
    rows.add_column("what it is", ratio=1, overflow="fold")
    for name, file in built_in().items():
        rows.add_row(name, about(file))
    return rows


def _metrics() -> Table:
    """Return a table of all tags, each with its definition, healthy range and advice."""
    rows = Table(title=METRICS, title_justify="left", show_lines=True)
    rows.add_column("tag, unit", ratio=1, overflow="fold")
    rows.add_column("what it is, healthy range, what to do", ratio=2, overflow="fold")
    for spec in DEFINITIONS:
        tag = "\n".join(part for part in (spec.tag, spec.unit, spec.when) if part)
        rows.add_row(tag, f"{spec.definition}\nhealthy: {spec.healthy}\n{spec.what_to_do}")
    return rows


_TABLES: dict[str, Callable[[], Table]] = {CONFIGS: _configs, METRICS: _metrics}
"""Kinds that are no components."""


def table(kind: str) -> Table:
    """Return a table of a kind's components: name, parameters with defaults, what it is."""
    rows = Table(title=kind, title_justify="left", show_lines=True)
    components = registry.components(kind)
    rows.add_column("name", min_width=max(map(len, components), default=0), no_wrap=True)  # whole names, to be copied
    for heading in ("parameters", "what it is"):
        rows.add_column(heading, ratio=1, overflow="fold")
    for name, cls in components.items():
        rows.add_row(name, "\n".join(_parameters(cls)) or "-", _what_it_is(cls))
    return rows


def _what_it_is(cls: type[Any]) -> str:
    """Return the first paragraph of a docstring, and that an objective takes no advantages per token."""
    text = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
    return text if getattr(cls, "per_token_advantages", True) else f"{text} Takes one advantage per response."


def _parameters(cls: type[Any]) -> list[str]:
    lines = []
    for parameter in registry.parameters(cls):
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{parameter.name}{default}")
    return lines
