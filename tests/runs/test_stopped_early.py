"""Signals before the first update: in the steps of a cold start, and while its model is written."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    """After the third of six steps no other one begins; nothing half-written stays; the next run makes it."""
    own = {"step": supervised._backward, "save": cold_start.write_curve}
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
    assert "before the first update: nothing was trained, nothing was saved" in said
    assert "Traceback" not in said
    assert [path.suffix for path in (tmp_path / "cold_start").iterdir()] in ([], [".lock"])
    run = runs.fit(tmp_path, *HERE)
    assert (run / "summary.json").is_file()
    (made,) = (path for path in (tmp_path / "cold_start").iterdir() if path.is_dir())
    assert made.with_name(f"{made.name}.manifest.json").is_file()
