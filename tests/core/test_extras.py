"""A message that asks for an extra names packages that pip finds: this package itself is on no index."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest

from gspo_lightning.core import extras
from gspo_lightning.core.extras import install_command
from tests import ROOT

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TEXTS = [
    *(ROOT / "gspo_lightning").rglob("*.py"), *(ROOT / "configs").rglob("*.yaml"), *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*"), ROOT / "README.md",
]  # fmt: skip


@pytest.mark.parametrize("extra", [name for name in EXTRAS if name != "dev"])
def test_every_package_of_an_extra_is_named_with_its_versions(extra: str) -> None:
    command = install_command(extra)
    assert command.startswith("pip install ")
    for requirement in EXTRAS[extra]:
        name, bound = re.fullmatch(r"([\w-]+)([^;]*)(?:;.*)?", requirement).groups()  # type: ignore[union-attr]
        assert name in command
        assert set(bound.split(",")) <= set(re.split(r"[ ',]|(?<=\w)(?=[=<>])", command)), command


def test_an_extra_that_does_not_exist_is_a_defect() -> None:
    with pytest.raises(KeyError, match="lorra"):
        install_command("lorra")


def test_a_source_folder_that_was_never_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "PACKAGE", "no_such_package")
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.requires("no_such_package")
    assert install_command("lora") == "pip install '.[lora]' in the source folder of no_such_package"


def test_no_text_installs_this_package_from_an_index() -> None:
    broken = []
    for file in TEXTS:
        if not file.is_file() or file.suffix in {".png", ".pyc"}:
            continue
        if re.search(r"pip install [^\n`]*gspo_lightning\[", file.read_text(encoding="utf-8")):
            broken.append(str(file.relative_to(ROOT)))
    assert len(TEXTS) > 700
    assert broken == []
