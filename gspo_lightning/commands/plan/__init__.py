"""``gspo plan``: memory and time of a run, estimated before it starts."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run the command; its parts import without jsonargparse, which it needs."""
    from gspo_lightning.commands.plan import command

    return command.main(argv)
