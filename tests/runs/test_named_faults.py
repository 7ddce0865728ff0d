"""Faults around a run have a sentence and an exit code of their own; it stands last and alone, under no traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests import ROOT
from tests.runs import runs
from tests.runs.processes import Command

OPTIONS = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0"]
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.accelerator=cpu"]
ENDLESS = "--trainer.max_epochs=5000"


def argv(root: Path, *more: str) -> list[str]:
    return ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, f"--trainer.default_root_dir={root}", *OPTIONS, *more]


def sentence(text: str) -> str:
    """What stands last: the message, and nothing after its fix."""
    assert "Traceback" not in text, text
    assert "did not expect" not in text, text
    lines = text[text.rindex("error: ") :].splitlines()
    assert lines[-1].startswith("  fix: "), text
    return "\n".join(lines)


def wait_for(there: Callable[[], bool], alive: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert alive()
        assert time.monotonic() < end
        time.sleep(0.01)


def files_of_300_kb() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


@pytest.mark.thorough
def test_a_disk_that_is_full_in_the_cold_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    steps = ["--model.cold_start.demonstrations.size=64", "--model.cold_start.steps=1", "--data.val=null"]
    steps.append("--trainer.num_sanity_val_steps=0")
    start = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *steps, f"--trainer.default_root_dir={tmp_path}"]
    assert Command(start, log=log, prepare=files_of_300_kb).start().wait() == [1]
    said = sentence(log.read_text())
    assert said.startswith(f"error: the cold start {tmp_path}/cold_start/")
    assert "cannot be written: File too large; nothing of it is left." in said
    assert "fix: make room" in said
    assert [file.suffix for file in (tmp_path / "cold_start").iterdir()] == [".lock"]


@pytest.mark.thorough
def test_a_disk_that_is_full_in_an_export(tmp_path: Path) -> None:
    run, log = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=1"), tmp_path / "log"
    export = ["export", str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "out")]
    assert Command(export, log=log, prepare=files_of_300_kb).start().wait() == [1]
    assert f"{tmp_path / 'out'} cannot be written: File too large" in sentence(log.read_text())
    assert not [file for file in tmp_path.iterdir() if "out" in file.name]


@pytest.mark.thorough
@pytest.mark.parametrize("gone", ["quickstart", "quickstart/version_0"])
def test_a_run_folder_that_is_deleted(gone: str, tmp_path: Path) -> None:
    """It is not made anew, without its config and its events, by the next checkpoint."""
    log, root = tmp_path / "log", tmp_path / "root"
    command = Command(argv(root, ENDLESS), log=log).start()
    wait_for((root / "quickstart/version_0/checkpoints/last.ckpt").exists, command.processes[0].is_alive)
    while (root / gone).exists():
        shutil.rmtree(root / gone, ignore_errors=True)  # it may be writing
    assert command.wait(120) == [1]
    said = sentence(log.read_text())
    assert (
        f"folder {root / gone} is gone: it was deleted" in said or f"folder {root / 'quickstart/version_0'} is" in said
    )
    assert not (root / "quickstart" / "version_0" / "checkpoints" / "last.ckpt").exists()


def test_a_folder_of_runs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found before anything is loaded. (To root, whose tests these may be, every mode of a folder is writable.)"""
    (tmp_path / "quickstart").touch()
    assert main(argv(tmp_path)) == 2
    said = sentence(capsys.readouterr().err)
    assert f"trainer.default_root_dir: '{tmp_path / 'quickstart'}' cannot be written: Not a directory" in said


@pytest.mark.thorough
@pytest.mark.skipif(os.getuid() != 0, reason="changes its user id")
@pytest.mark.parametrize("name", ["quickstart", "quickstart/version_0"])
def test_somebody_elses_folder_of_runs(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are for nobody else
        root, log = Path(folder) / "root", Path(folder) / "log"
        run = runs.fit(root, *OPTIONS, "--trainer.max_epochs=1")
        more = ["--ckpt_path", str(run / "checkpoints" / "last.ckpt")] if "/" in name else []
        log.touch()
        log.chmod(0o666)
        Path(folder).chmod(0o755)
        assert Command(argv(root, *more), log=log, prepare=as_nobody).start().wait() == [2], log.read_text()
        assert f"{root / name}' cannot be written: Permission denied" in sentence(log.read_text())


def as_nobody() -> None:
    os.setgid(65534)
    os.setuid(65534)


def output_in_ascii() -> None:
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="ascii", errors="strict")


@pytest.mark.thorough
def test_output_that_takes_ascii_only(tmp_path: Path) -> None:
    """An answer that cannot be shown ends no run whose results are saved already."""
    prompts, log = tmp_path / "prompts.jsonl", tmp_path / "log"
    records = [{"prompt": f"{i}+1=", "answer": "zwölf \ud800"} for i in range(16)]
    prompts.write_text("\n".join(map(json.dumps, records)) + "\n")
    more = [
        f"--data.train={prompts}",
        f"--data.val={prompts}",
        "--trainer.max_epochs=1",
        "--trainer.num_sanity_val_steps=-1",
    ]
    start = [word for word in argv(tmp_path, *more) if word != runs.FEW_PROMPTS]
    assert Command(start, log=log, prepare=output_in_ascii).start().wait() == [0], log.read_text()
    shown = log.read_text(encoding="ascii").replace("\n", "")
    assert "zw\\xf6lf" in shown
    assert "Traceback" not in shown
    assert (tmp_path / "quickstart" / "version_0" / "summary.json").exists()


@pytest.mark.thorough
def test_a_rank_that_is_killed_is_named_by_the_others(tmp_path: Path) -> None:
    """Ranks that somebody else has started see a connection that is closed, in the words of their library."""
    log, root = tmp_path / "log", tmp_path / "root"
    command = Command(argv(root, *TWO, ENDLESS), 2, log=log).start()
    last = root / "quickstart/version_0/checkpoints/last.ckpt"
    wait_for(last.exists, lambda: all(p.is_alive() for p in command.processes))
    pid = command.processes[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    command.processes[0].join(60)
    code = command.processes[0].exitcode
    command.kill()
    assert code == 1, log.read_text()
    said = sentence(log.read_text())
    assert said.startswith("error: rank 0 cannot continue: another rank has ended")
    assert "--ckpt_path last" in said


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_that_the_command_has_started_is_killed(which: int, tmp_path: Path) -> None:
    """No other rank stays behind, and the command ends with a sentence, not with the signal."""
    log, root = tmp_path / "log", tmp_path / "root"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(log, "w") as output:
        first = subprocess.Popen(
            [sys.executable, "-m", "gspo_lightning", *argv(root, *TWO, ENDLESS)],
            env=environment, stdout=output, stderr=output, cwd=tmp_path,
        )  # fmt: skip
    try:
        wait_for((root / "quickstart/version_0/checkpoints/last.ckpt").exists, lambda: first.poll() is None)
        second = next(pid for pid in children(first.pid) if b"\0fit\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill((first.pid, second)[which], signal.SIGKILL)
        code = first.wait(60)
        wait_for(lambda: not alive(second), lambda: True, 60)
    finally:
        first.kill()
    said = sentence(log.read_text())
    if which == 1:
        assert code == 1
        assert said.startswith(f"error: rank 1 (process {second}) was killed by SIGKILL, and all ranks end")
    else:
        assert said.startswith("error: rank 1 cannot continue: another rank has ended")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
