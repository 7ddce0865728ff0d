"""Training through real vLLM: it learns, sees every update, and outlives a server that is killed or hangs."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.rollouts.serving.client import Client
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.process import LocalServer
from gspo_lightning.rollouts.vllm import local
from tests.real_vllm import served
from tests.runs import runs

pytestmark = served.VLLM
GROUP, PROMPTS, UPDATES = 4, 8, 2
"""Of an iteration of runs.SMALL."""
RECORD = "--data.record_rollouts=true"


def through(**settings: Any) -> str:
    return f"--data.rollouts={json.dumps({'class_path': 'VLLMServer', 'init_args': settings})}"


def recorded(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted((run / "rollouts").iterdir()) for line in file.open()]


def test_the_quickstart_learns_through_a_server(url: str, taught: Callable[[Path], None], tmp_path: Path) -> None:
    taught(tmp_path)
    run = runs.fit(tmp_path, served.HEADS, through(urls=[url]), RECORD, small=False)
    served.check_learnt(run)
    rows = recorded(run)
    assert [(r["iteration"], r["policy_version"]) for r in rows[:: 32 * 8]] == [(i, 4 * i) for i in range(20)]
    assert len(rows) == 32 * 8 * 20


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[LocalServer]:
    """Every server that a run starts."""
    found: list[LocalServer] = []

    class Noted(LocalServer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            found.append(self)

    monkeypatch.setattr(local, "LocalServer", Noted)
    return found


def on_group(monkeypatch: pytest.MonkeyPatch, signals: dict[int, Callable[[], None]]) -> None:
    """What happens before that request for a group to train on; those before it are under way."""
    complete, count = Client.complete, itertools.count(1)

    async def counted(self: Client, body: dict[str, Any], **how: Any) -> Any:
        if body["n"] == GROUP:
            signals.get(next(count), lambda: None)()
        return await complete(self, body, **how)

    monkeypatch.setattr(Client, "complete", counted)


def send(signum: signal.Signals, process: LocalServer) -> None:
    for pid in served.processes_of(process):
        os.kill(pid, signum)


def test_training_goes_on_when_servers_are_killed_and_hang(
    tmp_path: Path, started: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two share the load. One hangs: the other takes over what it was asked until it is started anew, and then dies."""
    signals: dict[int, Callable[[], None]] = {
        3: lambda: send(signal.SIGSTOP, started[0]),
        PROMPTS + 3: lambda: send(signal.SIGKILL, started[1]),
    }
    on_group(monkeypatch, signals)
    settings = through(start=2, health_every_s=0.5, health_timeout_s=8.0, backoff_s=0.1, **served.QUICK_START)
    only = ["--data.val=null", "--trainer.num_sanity_val_steps=0"]  # nothing that would start a server for evaluation
    run = runs.fit(tmp_path, *runs.UNTAUGHT, served.HEADS, settings, RECORD, *only)
    assert_complete(recorded(run), 2)
    assert len(started) >= 3
    assert not any(process.running for process in started)
    assert all(served.processes_of(process) == [] for process in started)


def test_a_server_that_does_not_come_back_stops_the_run_which_can_go_on_later(
    url: str,
    running: tuple[Endpoint, LocalServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    _, process = running
    settings = through(urls=[url], health_every_s=0.5, health_timeout_s=8.0, backoff_s=0.1, retries=1)
    options = [*runs.UNTAUGHT, served.HEADS, settings, RECORD, "--trainer.max_epochs=3", "--data.rollout_retries=0"]
    with monkeypatch.context() as patched:
        on_group(patched, {PROMPTS + 3: lambda: send(signal.SIGSTOP, process)})
        try:
            run = runs.fit(tmp_path, *options, code=1)
        finally:
            send(signal.SIGCONT, process)
    assert "--ckpt_path last" in capfd.readouterr().err
    assert_complete(recorded(run), 1)
    assert runs.checkpoint(run)["global_step"] == UPDATES
    assert runs.fit(tmp_path, *options, "--ckpt_path=last") == run
    assert_complete(recorded(run), 3)


def assert_complete(rows: list[dict[str, Any]], iterations: int) -> None:
    """Whole groups, each sampled by the weights of its iteration."""
    groups = [(r["iteration"], r["policy_version"], r["id"].rpartition("/")[0]) for r in rows]
    assert sorted(Counter(groups).values()) == [GROUP] * PROMPTS * iterations
    assert {(i, version) for i, version, _ in groups} == {(i, UPDATES * i) for i in range(iterations)}
    assert all(len(r["logprobs"]) == len(r["completion_ids"]) > 0 for r in rows)
