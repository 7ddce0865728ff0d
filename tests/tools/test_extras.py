"""The extra that pip has to compile is left out where nothing can, with a note that says what to install."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tools import extras


def test_without_a_compiler_the_extra_that_needs_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CC", f"{compiler} -pthread")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    extras.main(["dev,logic,agents"])
    assert capsys.readouterr() == ("dev,logic,agents\n", "")
    (tmp_path / "Python.h").unlink()
    extras.main(["dev,logic,agents"])
    assert capsys.readouterr().out == "dev,agents\n"
    (tmp_path / "Python.h").touch()
    compiler.unlink()
    extras.main(["dev,logic,agents"])
    out, note = capsys.readouterr()
    assert out == "dev,agents\n"
    assert "the extra logic (reasoning-gym) is left out" in note
    assert "gcc python3-dev" in note
    extras.main(["dev,agents"])
    assert capsys.readouterr() == ("dev,agents\n", "")
