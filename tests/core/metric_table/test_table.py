from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from typing import get_args

import pytest
import yaml

from gspo_lightning.cli import main as command
from gspo_lightning.core.metric_table.spec import HEADINGS, METRICS, Kind
from gspo_lightning.core.metric_table.table import lookup, markdown
from tests import ROOT

DOCUMENT = ROOT / "docs" / "metrics.md"
FAMILIES = "|".join(sorted({spec.tag.partition("/")[0] for spec in METRICS if "/" in spec.tag}))


def named() -> list[tuple[str, str]]:
    """(file, tag) of every text of the package that looks like a tag, or like the beginning of one."""
    found = []
    for file in sorted((ROOT / "gspo_lightning").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and re.fullmatch(rf"({FAMILIES})/[\w@/]*", str(node.value)):
                found.append((file.name, str(node.value)))
    return found


def test_every_tag_that_the_package_names_is_defined() -> None:
    tags = named()
    assert len({tag for _, tag in tags}) > 80
    assert not [
        (file, tag) for file, tag in tags if lookup(tag) is None and not any(s.tag.startswith(tag) for s in METRICS)
    ]


def test_templates_match_what_they_stand_for_and_nothing_else() -> None:
    assert lookup("reward/parts/a/b").tag == "reward/parts/<name>"  # type: ignore[union-attr]
    assert lookup("val/pass@64").tag == "val/pass@<k>"  # type: ignore[union-attr]
    for unknown in ("val/pass@", "val/pass@k", "reward/parts/", "reward/meanX", "xreward/mean", "lossy"):
        assert lookup(unknown) is None


def test_tags_are_unique_and_every_field_says_something() -> None:
    tags = [spec.tag for spec in METRICS]
    assert len(set(tags)) == len(tags)
    for spec in METRICS:
        for text in (spec.definition, spec.unit, spec.healthy, spec.what_to_do, spec.group):
            assert text.strip() == text
            assert text
        assert spec.what_to_do.endswith("."), spec.tag
        assert len(spec.healthy.split()) > 1 or spec.healthy == "steady", spec.tag


def test_every_file_of_definitions_is_read_and_says_nothing_else() -> None:
    folder = ROOT / "gspo_lightning" / "core" / "metric_table" / "definitions"
    assert {file.name for file in folder.iterdir() if file.is_file()} == {f"{name}.yaml" for name in HEADINGS}
    for file in folder.glob("*.yaml"):
        assert set(yaml.safe_load(file.read_text())) == {"group", "metrics"}
    assert {spec.kind for spec in METRICS} == set(get_args(Kind))


def test_groups_are_contiguous_so_that_each_has_one_heading() -> None:
    headings = re.findall(r"^## (.+)$", markdown(), flags=re.MULTILINE)
    assert len(headings) == len(set(headings))


def test_every_row_has_the_cells_of_its_header() -> None:
    table_rows = [line for line in markdown().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table_rows} == {6}
    assert len([line for line in table_rows if line.startswith("| `")]) == len(METRICS)


def test_the_site_shows_the_tables_on_the_page_of_metrics() -> None:
    site, page = runpy.run_path(str(ROOT / "docs" / "conf.py")), [DOCUMENT.read_text()]
    site["metric_tables"](None, "running", page)
    assert page == [DOCUMENT.read_text()]
    site["metric_tables"](None, "metrics", page)
    assert page[0] == DOCUMENT.read_text().rsplit("<!--", 1)[0] + markdown() + "\n"
    assert "| `clip/low` (objectives with a lower clip bound) | response tokens whose" in page[0]


def test_the_list_prints_every_definition(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    assert command(["list", "metrics"]) == 0
    shown = capsys.readouterr().out
    assert [spec.tag for spec in METRICS if f" {spec.tag} " not in shown] == []
    assert f"healthy: {METRICS[0].healthy[:40]}" in shown


def test_document_explains_what_is_misread_most() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert "The loss is 0" in text
    assert "two orders of magnitude more than GRPO" in text


def test_definitions_are_read_without_torch() -> None:
    code = "import sys, gspo_lightning.core.metric_table.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
