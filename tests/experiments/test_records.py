"""Numbers of the pages that sum up experiments are those of the records that their scripts wrote."""

from __future__ import annotations

import re

import pytest

from tests import ROOT

Cells = list[str]


def rows(text: str) -> list[Cells]:
    """Cells of every row of every table."""
    return [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in text.splitlines() if line[:1] == "|"]


def section(page: str, heading: str) -> str:
    """Text of a page below a heading, up to the next one."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def record(path: str) -> str:
    return (ROOT / "experiments" / path).read_text(encoding="utf-8")


def numbers(text: str) -> list[str]:
    return re.findall(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", text.replace(",", " "))


def is_rounded(shown: str, among: list[str]) -> bool:
    """Whether one of the numbers is the shown one at as many digits."""
    digits = len(shown.partition(".")[2])
    return any(abs(float(number) - float(shown)) <= 0.5000001 * 10**-digits for number in among)


def test_the_papers_claims_are_those_of_the_record() -> None:
    shown = rows(section("paper_in_miniature.md", "The paper's claims"))
    assert len(shown) == 2 + 12
    assert all(row in rows(record("paper_in_miniature/results.md")) for row in shown)


def test_the_deals_are_those_of_the_record() -> None:
    text = record("dealing/results.md")
    for name, *cells in rows(section("dealing.md", "Evidence"))[2:]:
        task, deal = name.split(", ")
        part = text.partition(f"### {task}\n")[2].partition("\n### ")[0]
        found = [row for row in rows(part) if row[0] == deal]
        expected = [f"{row[-2]}: {row[-1]}" if row[-1] else row[-2] for row in found]
        assert cells == expected, name
    price = rows(section("dealing.md", "Cost"))
    assert len(price) > 2
    assert all(row in rows(text) for row in price)


def test_the_curricula_are_those_of_the_record() -> None:
    names = {"`Uniform`": "Uniform", "`Uniform`, dead groups resampled": "Uniform + resampling"}
    for name, *cells in rows(section("mixtures.md", "Evidence for curricula"))[2:]:
        found = [
            row for row in rows(record("curricula/results.md")) if row[0] == names.get(name, name.replace("`", ""))
        ]
        assert len(found) == len(cells) == 3, name
        for cell, row in zip(cells, found, strict=True):
            if cell != "one of 8 seeds":
                mean, _, difference = cell.partition(": ")
                assert float(mean) == float(row[-2])
                assert all(is_rounded(number, numbers(row[-1])) for number in numbers(difference)), (name, cell)
            else:
                assert "1 of the 8 seeds" in row[-1]


@pytest.mark.parametrize(("grid", "column"), [("baselines", 1), ("baselines_turns", 3)])
def test_the_baselines_are_those_of_the_record(grid: str, column: int) -> None:
    names = {"PPO with a critic, one response per prompt": "PPO with a critic, no groups"}
    table = rows(record(f"lab/results/{grid}.md"))
    head = next(row for row in table if "Held-out accuracy at the end" in row)
    shown = [row for row in rows(section("lab.md", "PPO with a critic")) if len(row) == 5][2:]
    assert len(shown) == 5
    for row in shown:
        (found,) = (other for other in table if other[0] == names.get(row[0], row[0]))
        for cell, measure in zip(
            row[column:], ("Mean reward over the run", "Held-out accuracy at the end"), strict=False
        ):
            assert cell == found[head.index(measure)].partition(":")[0]


def test_every_grid_has_a_record_and_a_section() -> None:
    grids = {file.stem for file in (ROOT / "experiments" / "lab" / "grids").glob("*.yaml")}
    assert {file.stem for file in (ROOT / "experiments" / "lab" / "results").glob("*.md")} == grids
    linked = re.findall(r"experiments/lab/results/(\w+)\.md", (ROOT / "docs" / "lab.md").read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(grids)
