"""Mutated input: a message or a run, never a bare traceback, a hang or a half-started run folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gspo_lightning.cli import main
from tests.runs import runs
from tests.runs.mutations import command
from tests.runs.processes import Command

BOUNDED = settings(
    max_examples=30, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
NUMBERS = st.integers(0, 2**32)


def hang(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError("hangs")


def judge(number: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run one mutation and hold it to the rules."""
    argv = command(number, folder)
    code, error = _as_process(argv, folder) if any("fuzzed_" in a for a in argv) else _here(argv, capsys)
    context = f"mutation {number}, code {code}: {argv}\n{error[-3000:]}"
    assert code in (0, 1, 2, 130), context
    if "--traceback" in argv:
        return
    assert "did not expect" not in error, context
    assert "Traceback" not in error, context
    if code == 2:
        assert "error: " in error, context
        said = error[error.rindex("error: ") :].splitlines()
        assert len([line for line in said if " -> " not in line]) <= 6, context  # and one for each setting that is none
        assert not [p for p in folder.rglob("version_*") if not (p / "config.yaml").exists()], context


def _here(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(120)
    try:
        code = main(argv)
    except Exception:
        if "--traceback" not in argv:
            raise
        code = 2
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return code, capsys.readouterr().err


def _as_process(argv: list[str], folder: Path) -> tuple[int, str]:
    """Classes of plug-ins would stay registered in this process."""
    (code,) = Command(argv, log=folder / "log").start().wait(120)
    return code if code is not None else -1, (folder / "log").read_text()


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Relative paths of mutations lead into a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.thorough
def test_thirty_mutations(quiet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @BOUNDED
    @given(NUMBERS)
    def mutation(number: int) -> None:
        judge(number, quiet / f"{number}-{len(list(quiet.iterdir()))}", capsys)

    mutation()


@pytest.mark.long
def test_five_hundred_mutations(quiet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(500):
        judge(number, quiet / str(number), capsys)


@pytest.mark.long
def test_twenty_mutations_as_processes(quiet: Path) -> None:
    for number in range(1000, 1020):
        argv = [a for a in command(number, quiet / str(number)) if "\x00" not in a]
        done = subprocess.run(
            [sys.executable, "-m", "gspo_lightning", *argv], cwd=runs.ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode in (0, 1, 2, 130), done.stderr[-2000:]
        assert "did not expect" not in done.stderr, f"mutation {number}: {done.stderr[-2000:]}"
