"""The section of a version in CHANGELOG.md: ``python -m tools.release_notes 1.2.0`` prints it for a release."""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["main", "section"]

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def section(text: str, version: str) -> str:
    """What a changelog says about a version, without its heading.

    >>> section("# C\\n\\n## 1.1.0 (2026-02-01)\\n\\n* new\\n\\n## 1.0.0 (2026-01-01)\\n\\n* first\\n", "1.1.0")
    '* new\\n'

    Raises:
        SystemExit: it has no such section, or the version has no date yet.
    """
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    found = [part for part in parts if part.split()[0] == version]
    if not found:
        sys.exit(f"error: CHANGELOG.md has no section '## {version} (date)'")
    heading, _, body = found[0].partition("\n")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading.strip()):
        sys.exit(f"error: '## {heading.strip()}' needs the date of the release: '## {version} (YYYY-MM-DD)'")
    return body.strip() + "\n"


def main(version: str) -> None:
    """Print the section."""
    print(section(CHANGELOG.read_text(encoding="utf-8"), version), end="")


if __name__ == "__main__":
    main(sys.argv[1])
