"""The pages of all versions side by side: ``python -m tools.site_versions PAGES BUILT VERSION``.

Copies a built site to ``PAGES/VERSION``, and lists all versions in ``versions.json``, which every page shows in its
sidebar. The first page leads to the newest version, and the pages of older ones say that they are old.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

__all__ = ["add", "main"]

FIRST_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>gspo_lightning</title>
<meta http-equiv="refresh" content="0; url=./{newest}/index.html">
<link rel="canonical" href="./{newest}/index.html">
<p><a href="./{newest}/index.html">gspo_lightning {newest}</a></p>
"""


def order(version: str) -> tuple[int, ...]:
    """The place of a version such as ``1.10.2`` among others.

    >>> sorted(["0.10.0", "0.9.1", "1.0.0"], key=order)
    ['0.9.1', '0.10.0', '1.0.0']

    Raises:
        SystemExit: it is no version of three numbers.
    """
    parts = version.split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        sys.exit(f"error: {version!r} is no version such as 1.2.0")
    return tuple(map(int, parts))


def add(pages: Path, built: Path, version: str) -> list[str]:
    """Add a version, or replace its pages; return all versions, the newest first.

    Args:
        pages: the site of all versions; made if needed.
        built: a site that ``make docs`` has built.
        version: three numbers.
    """
    order(version)
    if (target := pages / version).exists():
        shutil.rmtree(target)
    shutil.copytree(built, target, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
    versions = sorted((p.name for p in pages.iterdir() if (p / "index.html").is_file()), key=order, reverse=True)
    (pages / "versions.json").write_text(json.dumps(versions) + "\n", encoding="ascii")
    (pages / "index.html").write_text(FIRST_PAGE.format(newest=versions[0]), encoding="utf-8")
    (pages / ".nojekyll").touch()  # GitHub would leave out folders that begin with an underscore
    return versions


def main(pages: str, built: str, version: str) -> None:
    """Add, and say which versions there are."""
    print("versions:", *add(Path(pages), Path(built), version))


if __name__ == "__main__":
    main(*sys.argv[1:4])
