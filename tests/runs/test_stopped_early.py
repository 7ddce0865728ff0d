"""Signals before the first update: in the steps of a cold start, and while its model is written."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.policy.policy import Policy
from gspo_lightning.training import cold_start, supervised
from tests.runs import runs

HERE = [
    "--model.cold_start.demonstrations.size=64", "--model.cold_start.steps=6", "--model.cold_start.batch_size=4",
    "--trainer.max_epochs=1",
]  # fmt: skip


@pytest.fixture
def handlers() -> Iterator[None]:
    """The test's own process must survive a signal that nobody handles."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        (signal.SIGTERM, 143, "step"),
        (signal.SIGINT, 130, "save"),
        pytest.param(signal.SIGTERM, 143, "save", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, 130, "step", marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_a_cold_start_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    handlers: None,
    capfd: pytest.CaptureFixture[str],
    number: signal.Signals,
    code: int,
    moment: str,
) -> None:
    """After the third of six steps no other one begins, and the next run makes the fourth, with the same weights."""
    own = {"step": supervised._backward, "save": cold_start.write_curve, "again": supervised._backward}
    calls: list[str] = []

    def noted(name: str, at: int) -> Any:
        def called(*arguments: Any) -> Any:
            calls.append(name)
            if moment == name and calls.count(name) == at:
                os.kill(os.getpid(), number)
            return own[name](*arguments)

        return called

    with monkeypatch.context() as patched:
        patched.setattr(supervised, "_backward", noted("step", 3))
        patched.setattr(cold_start, "write_curve", noted("save", 1))
        runs.fit(tmp_path, *HERE, code=code)
    assert calls == ["step"] * 3 if moment == "step" else ["step"] * 6 + ["save"]
    said = capfd.readouterr().err
    assert "before the first update: there is no checkpoint" in said
    assert "Traceback" not in said
    left = {path.suffix for path in (tmp_path / "cold_start").iterdir()} - {".lock"}
    assert left == ({".progress"} if moment == "step" else set())
    assert ("interrupted after step 2; the same command goes on from there" in said) is (moment == "step")
    calls.clear()
    with monkeypatch.context() as patched:
        patched.setattr(supervised, "_backward", noted("again", 0))
        run = runs.fit(tmp_path, *HERE)
    assert len(calls) == (4 if moment == "step" else 6)
    assert (run / "summary.json").is_file()
    made = folder_of(tmp_path)
    assert made.with_name(f"{made.name}.manifest.json").is_file()
    assert not list(made.parent.glob("*.progress"))
    if moment == "save":
        return
    whole = tmp_path / "whole"
    runs.fit(whole, *HERE)
    assert (made / "model.safetensors").read_bytes() == (folder_of(whole) / "model.safetensors").read_bytes()
    assert (made / "cold_start.jsonl").read_bytes() == (folder_of(whole) / "cold_start.jsonl").read_bytes()


def folder_of(root: Path) -> Path:
    (made,) = (path for path in (root / "cold_start").iterdir() if path.is_dir())
    return made


def test_a_finished_run_leaves_no_handler_and_no_model(tmp_path: Path) -> None:
    """The next run of ``gspo compare`` shares the process: a terminated one must end, and memory must not grow."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before, known = [signal.getsignal(number) for number in numbers], policies()
    runs.fit(tmp_path, *runs.UNTAUGHT, "--trainer.max_epochs=1")
    assert [signal.getsignal(number) for number in numbers] == before
    assert policies() <= known


def policies() -> set[int]:
    gc.collect()
    return {id(found) for found in gc.get_objects() if type(found) is Policy}
