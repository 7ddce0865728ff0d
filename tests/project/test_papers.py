"""docs/papers.md lists the papers that the package names, and nothing else."""

from __future__ import annotations

import re

from tests import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text()
NUMBER = re.compile(r"(?<![\d.])\d{4}\.\d{5}(?!\d)")


def named() -> set[str]:
    """Numbers that follow "arXiv" in a docstring or comment of the package, also in a list of several."""
    found: set[str] = set()
    for file in (ROOT / "gspo_lightning").rglob("*.py"):
        for mention in re.findall(r"arXiv:? ?((?:\d{4}\.\d{5}(?:, )?)+)", file.read_text(encoding="utf-8")):
            found |= set(NUMBER.findall(mention))
    return found


def test_every_paper_that_the_package_names_is_listed_with_a_link() -> None:
    listed = set(re.findall(r"\[(\d{4}\.\d{5})\]\(https://arxiv\.org/abs/\1\)", PAGE))
    assert listed == named()


def test_the_quickstart_numbers_are_those_of_the_table() -> None:
    table = (ROOT / "experiments" / "objective_family.md").read_text()
    means = {
        row[0]: row[5] for row in (re.split(r" \| ", line.strip("| ")) for line in table.splitlines()) if len(row) > 5
    }
    shown = re.findall(r"`(\w+)`[^|]*\| quickstart (\d\.\d+)", PAGE)
    assert len(shown) >= 12
    assert dict(shown) == {name: means[name] for name, _ in shown}
