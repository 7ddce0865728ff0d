"""What fails around a run: memory, the rollout source, signals on several ranks, the disk of the logs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.loop.update import micro_batches
from gspo_lightning.rollouts import GroupedSampler
from gspo_lightning.rollouts.sampler.decoding import SharedDecoder
from tests.runs import runs
from tests.runs.processes import Command

SGD = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.5", "--trainer.gradient_clip_val=null"]
OPTIONS = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0"]
ROWS = 4
"""Rows that fit into memory below: an allocation of an exabyte fails in the real allocator."""


def small_memory() -> None:
    original = micro_batches.micro_batch_loss

    def limited(part: Any, *rest: Any, **more: Any) -> torch.Tensor:
        if part.input_ids.shape[0] > ROWS:
            torch.empty(1 << 60)
        return original(part, *rest, **more)

    micro_batches.micro_batch_loss = limited  # type: ignore[assignment]


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "micro_batch_loss", micro_batches.micro_batch_loss)  # restored afterwards
    small_memory()


@pytest.mark.thorough
def test_out_of_memory_while_sampling_goes_on_with_fewer_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every response is the one that a roomier machine samples."""
    options = [*OPTIONS, "--trainer.max_epochs=2", "--data.record_rollouts=true"]
    roomy = runs.fit(tmp_path / "roomy", *options)
    original = SharedDecoder.step

    def limited(self: SharedDecoder, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if len(tokens) > 8:  # two groups of four
            torch.empty(1 << 60)
        return original(self, tokens, positions)

    monkeypatch.setattr(SharedDecoder, "step", limited)
    small = runs.fit(tmp_path / "small", *options)
    error = capsys.readouterr().err
    assert "GroupedSampler is out of memory" in error
    assert "responses go on from their tokens" in error
    first, second = (int(n) for n in re.findall(r"with at most (\d+) responses at a time", error))  # remembered
    assert 8 < first <= 16
    assert 4 <= second <= 8

    def responses(run: Path) -> list[Any]:
        lines = [line for file in sorted((run / "rollouts").glob("*.jsonl")) for line in file.read_text().splitlines()]
        rows = [json.loads(line) for line in lines]
        return sorted((r["iteration"], r["id"], r["completion_ids"]) for r in rows)

    assert responses(small) == responses(roomy)
    monkeypatch.setattr(SharedDecoder, "step", lambda *_: torch.empty(1 << 60))
    runs.fit(tmp_path / "none", *options, code=1)
    assert "fix: lower data.max_response_tokens or data.group_size" in capsys.readouterr().err


@pytest.mark.thorough
def test_out_of_memory_repeats_the_update_in_smaller_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = runs.fit(tmp_path / "whole", *OPTIONS, *SGD)
    with monkeypatch.context() as patched:
        patched.setattr(micro_batches, "micro_batch_loss", micro_batches.micro_batch_loss)
        small_memory()
        run = runs.fit(tmp_path / "small", *OPTIONS, *SGD)
    assert "out of memory in update 1: a micro-batch of 16 rows and" in capsys.readouterr().err
    assert runs.largest_difference(runs.weights(run), runs.weights(whole)) < 1e-6
    mine, theirs = runs.scalars(run), runs.scalars(whole)
    for tag in ("loss", "optim/gradient_norm", "ratio/log_sequence_std", "clip/tokens"):
        for (_, a), (_, b) in zip(mine[tag], theirs[tag], strict=True):
            assert a == pytest.approx(b, abs=1e-6), tag
    remembered = json.loads((run / "memory.json").read_text())
    assert remembered["configured"] == 4096
    assert remembered["budget"] < 200


@pytest.mark.thorough
def test_a_resume_takes_the_smaller_budget(
    tmp_path: Path, small_machine: None, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=1")
    assert "out of memory" in capsys.readouterr().err
    run = runs.fit(tmp_path, *OPTIONS, "--trainer.max_epochs=2", "--ckpt_path=last")
    error = capsys.readouterr().err
    assert "token budget of a micro-batch" in error
    assert "again with a token budget" not in error
    assert dict(runs.scalars(run)["data/micro_batches"])[3] >= 4


def test_a_sequence_that_does_not_fit_is_a_clear_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(globals(), "ROWS", 0)
    monkeypatch.setattr(micro_batches, "micro_batch_loss", micro_batches.micro_batch_loss)
    small_memory()
    runs.fit(tmp_path, *OPTIONS, code=1)
    error = capsys.readouterr().err
    assert "a micro-batch of 1 rows" in error
    assert "fix: lower data.max_response_tokens" in error
    assert "Traceback" not in error


def argv(root: Path, *more: str) -> list[str]:
    return ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, f"--trainer.default_root_dir={root}", *OPTIONS, *more]


TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]


@pytest.mark.thorough
def test_out_of_memory_on_two_ranks_stops_both_and_the_resume_fits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    failed = Command(argv(tmp_path, *TWO, "--ckpt_path=last"), 2, log=log, prepare=small_memory).start().wait()
    text = log.read_text()
    assert failed == [1, 1], text
    assert "out of memory in update 1: a micro-batch of 8 rows and" in text
    assert "--ckpt_path last" in text
    assert "Traceback" not in text
    for _ in range(3):  # 8 rows -> 4
        codes = Command(argv(tmp_path, *TWO, "--ckpt_path=last"), 2, log=log, prepare=small_memory).start().wait()
        if codes == [0, 0]:
            break
    assert codes == [0, 0], log.read_text()


@pytest.mark.thorough
def test_sigterm_to_one_of_two_ranks_stops_both_with_a_checkpoint(tmp_path: Path) -> None:
    log, root = tmp_path / "log", tmp_path / "stopped"
    whole = Command(argv(tmp_path / "whole", *TWO, "--trainer.max_epochs=6"), 2, log=log).start()
    assert whole.wait() == [0, 0], log.read_text()
    command = Command(argv(root, *TWO, "--trainer.max_epochs=6"), 2, log=log).start()
    checkpoints = root / "quickstart" / "version_0" / "checkpoints"
    while not checkpoints.exists() and any(p.is_alive() for p in command.processes):
        time.sleep(0.01)
    pid = command.processes[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    assert command.wait() == [143, 0], log.read_text()
    assert "Terminated after" in log.read_text()
    resumed = Command(argv(root, *TWO, "--trainer.max_epochs=6", "--ckpt_path=last"), 2, log=log).start()
    assert resumed.wait() == [0, 0], log.read_text()
    run, reference = root / "quickstart" / "version_0", tmp_path / "whole" / "quickstart" / "version_0"
    assert runs.largest_difference(runs.weights(run), runs.weights(reference)) == 0.0
    assert runs.scalars(run) == runs.scalars(reference)


class _Flaky(GroupedSampler):
    """Refuses the second rollout a number of times, as a server that restarts."""

    failures = 2
    calls = 0

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        type(self).calls += 1
        if 1 < type(self).calls <= 1 + self.failures:
            raise ConnectionRefusedError("connection refused")
        return super().generate(*args, **kwargs)


@pytest.mark.thorough
@pytest.mark.parametrize(("failures", "code"), [(2, 0), (9, 1)])
def test_a_rollout_source_that_fails_for_a_while(
    failures: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_Flaky, "failures", failures)
    monkeypatch.setattr(_Flaky, "calls", 0)
    flaky = f"--data.rollouts={__name__}._Flaky"
    run = runs.fit(tmp_path, *OPTIONS, flaky, "--data.rollout_retry_s=0.01", code=code)
    error = capsys.readouterr().err
    assert "_Flaky failed (connection refused); trying again in 0.04 s" in error
    if code:
        assert "_Flaky failed 4 times, last: connection refused" in error
        assert "Traceback" not in error
        assert runs.checkpoint(run)["global_step"] == 2
    else:
        whole = runs.fit(tmp_path / "whole", *OPTIONS)
        assert runs.largest_difference(runs.weights(run), runs.weights(whole)) == 0.0


def no_room_for_events() -> None:
    """Files of this process may not grow at all beyond their first bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


@pytest.mark.thorough
def test_a_disk_that_is_full_when_events_are_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert Command(argv(tmp_path, "--ckpt_path=last"), log=log, prepare=no_room_for_events).start().wait() == [1]
    text = log.read_text()
    assert "File too large" in text
    assert "fix: make room" in text
    assert "did not expect" not in text
    assert Command(argv(tmp_path, "--ckpt_path=last"), log=log).start().wait() == [0], log.read_text()
    whole = Command(argv(tmp_path / "whole"), log=log).start()
    assert whole.wait() == [0]
    run, reference = tmp_path / "quickstart" / "version_0", tmp_path / "whole" / "quickstart" / "version_0"
    assert runs.scalars(run) == runs.scalars(reference)
