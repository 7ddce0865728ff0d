"""``gspo list``: print the registered components with their parameters, and the shipped configs."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from gspo_lightning import registry
from gspo_lightning.commands.fit.configs import about, built_in
from gspo_lightning.errors import UserError, did_you_mean
from gspo_lightning.escape import terminal

__all__ = ["main"]

CONFIGS = "configs"


def main(argv: Sequence[str]) -> int:
    """Print a table per kind of component.

    Raises:
        UserError: the kind is unknown.
    """
    kinds = [*registry.KINDS, CONFIGS]
    parser = argparse.ArgumentParser(
        "gspo list", description="What is registered, with its parameters, and the configs that ship."
    )
    parser.add_argument("kind", nargs="*", help=", ".join(kinds))
    parser.add_argument("--plugins", nargs="*", default=[], help="files, folders or modules to import first")
    options = parser.parse_args(list(argv))
    registry.import_plugins(options.plugins)
    for kind in options.kind or kinds:
        if kind not in kinds:
            raise UserError("gspo list", f"{kind!r} is not a kind of component; {did_you_mean(kind, kinds)}")
        terminal().print(_configs() if kind == CONFIGS else table(kind))
    return 0


def _configs() -> Table:
    """Return a table of each config's name, which ``--config`` accepts, and first sentence."""
    rows = Table(title=CONFIGS, title_justify="left")
    rows.add_column("--config", no_wrap=True)
    rows.add_column("what it is", ratio=1, overflow="fold")
    for name, file in built_in().items():
        rows.add_row(name, about(file))
    return rows


def table(kind: str) -> Table:
    """Return a table of a kind's components: name, parameters with defaults, first paragraph of the docstring."""
    rows = Table(title=kind, title_justify="left", show_lines=True)
    known = registry.components(kind)
    rows.add_column("name", min_width=max(map(len, known), default=0), no_wrap=True)  # whole names, to be copied
    for heading in ("parameters", "what it is"):
        rows.add_column(heading, ratio=1, overflow="fold")
    for name, cls in known.items():
        text = inspect.getdoc(cls) or ""
        rows.add_row(name, "\n".join(_parameters(cls)) or "-", text.split("\n\n")[0].replace("\n", " "))
    return rows


def _parameters(cls: type[Any]) -> list[str]:
    shown = []
    for parameter in registry.parameters(cls):
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        shown.append(f"{parameter.name}{default}")
    return shown
