"""The root of the repository holds nine files that a visitor sees; everything else has a folder."""

from __future__ import annotations

import tomllib

from tests import ROOT

FILES = {
    "AGENTS.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
}


def test_the_root_has_nine_visible_files() -> None:
    assert {path.name for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")} == FILES


def test_files_that_github_and_the_package_index_look_for_are_where_they_look() -> None:
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md", "pull_request_template.md"):
        assert (ROOT / ".github" / name).is_file(), name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in (project["readme"], *project["license-files"]):
        assert name in FILES, name
