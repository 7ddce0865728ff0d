"""Arguments shared by several verbs."""

from __future__ import annotations

import argparse
from pathlib import Path

from gspo_lightning.errors import UserError

__all__ = ["add_column", "add_files", "add_threshold", "check_threshold"]


def add_files(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add ``--input`` and ``--output``."""
    parser.add_argument(
        "--input", nargs="+", type=Path, required=required, metavar="FILE", help="JSON lines or Parquet"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="of the same format; nothing is overwritten"
    )


def add_column(parser: argparse.ArgumentParser) -> None:
    """Add ``--column``."""
    parser.add_argument("--column", default="prompt", metavar="NAME", help="with the prompt (default: prompt)")


def add_threshold(parser: argparse.ArgumentParser) -> None:
    """Add ``--threshold``."""
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.7,
        metavar="T",
        help="similarity (Jaccard, of character 5-grams) from which two prompts are near-duplicates (default: 0.7)",
    )


def check_threshold(value: float) -> None:
    """Check that MinHash can find near-duplicates at this similarity.

    Raises:
        UserError: the similarity is outside of 0.3 to 1.
    """
    if not 0.3 <= value <= 1:
        raise UserError("--threshold", f"is {value:g}; it must lie in 0.3 to 1", fix="0.7 for near-duplicates")
