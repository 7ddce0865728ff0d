"""What the documents name is there: files, folders, modules, names, commands; the rooms are those of the package."""

from __future__ import annotations

import importlib
import re
import tomllib

import pytest
import yaml

from gspo_lightning.cli import COMMANDS, TRAINING
from gspo_lightning.core.metric_table.spec import METRICS
from gspo_lightning.core.metric_table.table import lookup
from tests import ROOT

DOCUMENTS = sorted(
    str(file.relative_to(ROOT))
    for pattern in ("*.md", ".github/*.md", "docs/**/*.md", "benchmarks/*.md", "experiments/**/*.md")
    for file in ROOT.glob(pattern)
)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
PATH = re.compile(
    r"(?<![\w./~-])(?:gspo_lightning|tests|tools|configs|examples|experiments|benchmarks|docs|findings)/[\w./-]*"
)
DOTTED = re.compile(r"(?<![\w./-])gspo_lightning(?:\.[A-Za-z_]\w*)+")
IMPORTED = re.compile(r"^from (gspo_lightning[\w.]*) import (.+)$", re.MULTILINE)
TEST = re.compile(r"(?<![\w./])test_\w+(?![\w.])")
COMMAND = re.compile(r"(?<![\w-])gspo ([a-z]+)\b")
TESTS = {name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}


def code(document: str) -> str:
    """What stands in backticks, and in blocks."""
    return "\n".join(CODE.findall((ROOT / document).read_text(encoding="utf-8")))


def is_there(dotted: str) -> bool:
    """A module, or a name in one."""
    module, _, name = dotted.rpartition(".")
    try:
        importlib.import_module(dotted)
    except ModuleNotFoundError:
        try:
            return hasattr(importlib.import_module(module), name)
        except ModuleNotFoundError:
            return False
    return True


def test_files_for_tools_agree_with_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["title"], cited["version"], cited["license"]) == (
        project["name"], project["version"], project["license"],
    )  # fmt: skip
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "docs" / "llms.txt").read_text()):
        assert (ROOT / "docs" / target).is_file(), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_metrics_that_a_document_names_are_defined(document: str) -> None:
    rooms = {metric.tag.split("/")[0] for metric in METRICS if "/" in metric.tag}
    tags = [
        tag
        for tag in re.findall(r"`([a-z_]+/[a-z_0-9]+)`", (ROOT / document).read_text())
        if tag.split("/")[0] in rooms
    ]
    assert [tag for tag in tags if lookup(tag) is None] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_names_and_commands_of_a_document_exist(document: str) -> None:
    text = code(document)
    paths = [path.rstrip(".") for path in PATH.findall(text)]
    missing = [path for path in paths if not (ROOT / path).exists() and "STRATEGY" not in path]
    missing += [dotted for dotted in DOTTED.findall(text) if not is_there(dotted)]
    for module, names in IMPORTED.findall(text):
        missing += [
            f"{module}.{name}" for name in re.split(r"[,\s()]+", names) if name and not is_there(f"{module}.{name}")
        ]
    missing += [name for name in TEST.findall(text) if name not in TESTS]
    missing += [f"gspo {name}" for name in COMMAND.findall(text) if name not in {**TRAINING, **COMMANDS}]
    assert not missing, f"{document} names what is not there: {missing}"


@pytest.mark.parametrize(
    "document", ["README.md", "docs/llms.txt", "CONTRIBUTING.md", "docs/index.md", "docs/python.md"]
)
def test_a_first_page_does_not_count_what_the_registry_holds(document: str) -> None:
    """Such a number is wrong as soon as somebody adds one."""
    kinds = "objectives|relatives|rewards|rollout sources|prompt sets|curricula|metrics|commands"
    counted = rf"\b(\d\d+|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty) (?:other )?({kinds})\b"
    assert re.findall(counted, (ROOT / document).read_text(encoding="utf-8")) == []


def test_the_index_lists_each_page_once_under_its_kind_with_a_sentence() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    kinds = dict(re.findall(r"^### (\w+)\n(.*?)(?=^###|^```)", text, flags=re.MULTILINE | re.DOTALL))
    assert list(kinds) == ["Start", "Guides", "Reference", "Evidence"]
    trees = dict(re.findall(r"^:caption: (\w+)\n.*?\n\n(.*?)```", text, flags=re.MULTILINE | re.DOTALL))
    listed: list[str] = []
    for kind, table in kinds.items():
        pages = re.findall(r"^\| \[[^]]+\]\(([\w/]+)\.md\) \| [A-Z`].+\. \|$", table, flags=re.MULTILINE)
        assert pages == trees[kind].split(), kind
        listed += pages
    there = {file.stem for file in (ROOT / "docs").glob("*.md")} - {"index"}
    assert sorted(listed) == sorted(there | {"api/index"})


def test_llms_txt_has_the_kinds_of_the_index() -> None:
    text = (ROOT / "docs" / "llms.txt").read_text()
    assert re.findall(r"^## (\w+)$", text, flags=re.MULTILINE) == ["Start", "Guides", "Reference", "Evidence"]


def test_three_questions_of_a_new_reader_take_two_pages_at_most() -> None:
    """Each answer of the README is a section that is there, and has what the reader types."""
    (table,) = re.findall(
        r"^\| question \| answer \|\n\|.*\n((?:\|.*\n)+)", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    typed = ["plugins: [plugins/", "clip", "--trainer.devices 8"]
    for row, word in zip(table.splitlines(), typed, strict=True):
        links = re.findall(r"\]\((docs/\w+\.md)#([\w-]+)\)", row)
        assert 1 <= len({page for page, _ in links}) <= 2, row
        for page, anchor in links:
            text = (ROOT / page).read_text(encoding="utf-8")
            sections = re.findall(r"^#+ (.*)\n((?:(?!#+ ).*\n)*)", re.sub(r"(?m)^# ", "- ", text), flags=re.MULTILINE)
            found = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-"): body for title, body in sections}
            assert word in found[anchor], (row, anchor)
