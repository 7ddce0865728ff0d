"""The files of a release are the same twice; docs/releases.md, the site of all versions, notes and the container."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from gspo_lightning.core import errors
from tests import ROOT
from tools import build_release, release_notes, site_versions
from tools.build_release import normalised
from tools.try_container import Container, check, instructions

PAGE = (ROOT / "docs" / "releases.md").read_text()


def archive(order: list[str], seconds: int, mode: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name in order:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uid, member.uname = 3, seconds, mode, os.getuid(), "me"
            file.addfile(member, io.BytesIO(b"abc"))
    return packed.getvalue()


def test_order_time_owner_and_umask_do_not_reach_the_archive() -> None:
    one, other = archive(["p/a", "p/b"], 5, 0o600), archive(["p/b", "p/a"], 7_000, 0o664)
    assert one != other
    assert normalised(one, 99) == normalised(other, 99)
    assert normalised(one, 99) != normalised(one, 100)
    with tarfile.open(fileobj=io.BytesIO(normalised(archive(["p/run"], 5, 0o700), 99))) as file:
        (member,) = file.getmembers()
        assert (member.mode, member.mtime, member.uid, member.uname) == (0o755, 99, 0, "")
        found = file.extractfile(member)
        assert found is not None
        assert found.read() == b"abc"


@pytest.mark.thorough
def test_two_builds_give_equal_bytes_with_everything_that_ships(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of docs/releases.md, in two folders and with two umasks."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith("python -m tools.build_release ")]
    _, _, module, output, *options = shlex.split(line)
    assert (module, output) == ("tools.build_release", "dist")
    sums = []
    for number, umask in enumerate((0o022, 0o077)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        before = os.umask(umask)
        try:
            build_release.main([output, *options])
        finally:
            os.umask(before)
        sums.append(capsys.readouterr().out)
    assert sums[0] == sums[1]
    wheel, sdist = sorted((tmp_path / "0" / "dist").glob("gspo_lightning-*"))
    assert sums[0] == "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in (wheel, sdist))
    inside = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "configs", "gspo_lightning/*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    shipped = {f"gspo_lightning/{name}" if name.startswith("configs/") else name for name in tracked}
    missing = {
        name for name in shipped - inside if name.endswith((".py", ".yaml", ".json")) and "/plugins/" not in name
    }
    assert not missing


def test_notes_are_the_section_of_a_version_that_has_a_date() -> None:
    text = "# C\n\n## 0.2.0 (2026-12-01)\n\n* two\n\n## 0.1.0 (unreleased)\n\n* one\n"
    assert release_notes.section(text, "0.2.0") == "* two\n"
    for version, words in (("0.1.0", "needs the date"), ("0.3.0", "no section")):
        with pytest.raises(SystemExit, match=words):
            release_notes.section(text, version)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text()


def test_the_site_lists_its_versions_and_opens_the_newest(tmp_path: Path) -> None:
    built, pages = tmp_path / "built", tmp_path / "pages"
    (built / "_static").mkdir(parents=True)
    for version in ("0.9.0", "0.10.0", "0.2.1"):
        (built / "index.html").write_text(version)
        found = site_versions.add(pages, built, version)
    assert found == ["0.10.0", "0.9.0", "0.2.1"]
    assert json.loads((pages / "versions.json").read_text()) == found
    assert [(pages / version / "index.html").read_text() for version in found] == found
    assert "./0.10.0/index.html" in (pages / "index.html").read_text()
    (built / "index.html").write_text("again")
    assert site_versions.add(pages, built, "0.9.0") == found
    assert (pages / "0.9.0" / "index.html").read_text() == "again"
    with pytest.raises(SystemExit, match="no version"):
        site_versions.add(pages, built, "../../etc")
    script = (ROOT / "docs" / "_static" / "versions.js").read_text()
    assert "../versions.json" in script
    assert 'html_js_files = ["versions.js"]' in (ROOT / "docs" / "conf.py").read_text()


def test_the_policy_quotes_the_message_of_a_renamed_name(caplog: pytest.LogCaptureFixture) -> None:
    errors.say_renamed.cache_clear()
    errors.say_renamed("a.Old", "New")
    quoted = re.sub(r"\s+", " ", PAGE).partition("logs once that it `")[2].partition("`")[0]
    before, _, after = quoted.partition(" ... ")
    assert caplog.messages == [f"a.Old {before} New {after}"]


def test_the_workflow_checks_before_it_publishes() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    steps = ["tools.release_notes", "cmp dist/SHA256SUMS", "tools.try_wheel", "attest-build-provenance", "pypi-publish",
             "gh release create", "tools.site_versions"]  # fmt: skip
    places = [text.index(step) for step in steps]
    assert places == sorted(places)
    assert "password" not in text
    assert "PYPI_API_TOKEN" not in text


def test_steps_of_the_dockerfile_are_carried_out_in_a_folder(tmp_path: Path) -> None:
    """All but the installation, which ``make test-container`` does."""
    steps = list(instructions((ROOT / "examples" / "Dockerfile").read_text()))
    assert [word for word, _ in steps if word not in ("RUN", "COPY")] == [
        "FROM", "WORKDIR", "ARG", "USER", "ENTRYPOINT", "CMD",
    ]  # fmt: skip
    made = Container(ROOT, tmp_path / "work", variables=dict(os.environ))
    made.folder.mkdir()
    for word, rest in steps:
        if word in ("COPY", "ENTRYPOINT", "CMD", "ARG"):
            made.step(word, rest)
    assert (made.folder / "gspo_lightning" / "configs" / "quickstart.yaml").read_text() == (
        ROOT / "configs" / "quickstart.yaml"
    ).read_text()  # through the link
    assert (made.folder / "plugins").is_dir()
    assert [*made.entry, *made.default] == ["gspo", "doctor"]
    (installs,) = [rest for word, rest in steps if word == "RUN" and "pip install" in rest]
    assert installs.index('"torch>=2.10"') < installs.index("-c /tmp/constraints.txt")
    assert dict(steps)["USER"] == "1000"
    with pytest.raises(SystemExit, match="HEALTHCHECK is not carried out"):
        made.step("HEALTHCHECK", "x")
    with pytest.raises(SystemExit, match="exit code 3"):
        made.step("RUN", "cd /work && exit 3")


def test_a_container_may_lack_isolation_and_nothing_else() -> None:
    ok = "│ ok │ torch │ 2.13.0 │\n"
    check(f"{ok}│ problem │ isolation │ no bwrap │")
    for report, words in (("", "no version of torch"), (f"{ok}│ problem │ lightning │ not installed │", "lightning")):
        with pytest.raises(SystemExit, match=words):
            check(report)
