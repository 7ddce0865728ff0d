"""``gspo doctor``: every line has a state, problems have a fix and make the exit code 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands.doctor import command
from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.sandbox import Interpreter, Kind, choose, probe


def test_this_machine_is_fine_and_the_chosen_sandbox_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert {"versions", "devices", "sandbox"} <= set(shown.split())
    assert "torch" in shown
    assert "chosen" in shown
    assert choose().kind in shown
    assert "C++ programs" in shown
    assert "no problems" in shown


def test_without_a_sandbox_it_is_a_problem_that_names_probe_and_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(wanted: str = "auto") -> probe.Isolation:
        raise UserError("CodeExecutor.isolation", "nothing works", fix=probe.INSTALL)

    def failed(wanted: str = "auto") -> Iterator[probe.Trial]:
        yield probe.Trial(Kind.BUBBLEWRAP, Interpreter.own(), (probe.Probe("start", False, "no namespaces"),))

    monkeypatch.setattr(command, "choose", refused)
    monkeypatch.setattr(command, "trials", failed)
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["doctor", "sandbox"]) == 1
    shown = capsys.readouterr().out
    assert "nothing works" in shown
    assert "start: no namespaces" in shown
    assert "apt-get install bubblewrap" in shown
    assert "1 problem" in shown


def test_an_old_or_missing_package_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PACKAGES", ("torch", "no-such-package"))
    monkeypatch.setattr(command, "LEAST", {"torch": (99, 0)})
    _, _, torch, missing = command.versions()
    assert (torch.state, torch.fix) == ("problem", "install torch 99.0 or newer")
    assert (missing.state, missing.found) == ("problem", "not installed")


def test_an_unknown_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "sandbx"]) == 2
    assert "it must be one of versions, devices, sandbox" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("system", "release", "state"),
    [
        ("Linux", "6.8.0-45-generic", "ok"), ("Darwin", "24.1.0", "note"),
        ("Linux", "5.15.167.4-microsoft-standard-WSL2", "note"),
    ],
)  # fmt: skip
def test_a_system_that_nobody_tried_is_noted(
    system: str, release: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.platform, "system", lambda: system)
    monkeypatch.setattr(command.platform, "release", lambda: release)
    finding = command.system()
    assert finding.state == state
    assert release in finding.found
    assert ("untested" in finding.fix) == (state == "note")
