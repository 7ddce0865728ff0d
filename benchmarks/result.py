"""One result as JSON: printed, and kept where the command line names a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["add_output", "finish"]


def add_output(parser: argparse.ArgumentParser) -> None:
    """``--output``."""
    parser.add_argument("--output", type=Path, help="JSON")


def finish(found: Mapping[str, Any], command: str, output: Path | None) -> None:
    """Print what was found with the command that repeats it, and write it to a file where one is given."""
    text = json.dumps({**found, "command": command}, indent=2) + "\n"
    print(text)
    if output is not None:
        output.write_text(text)
