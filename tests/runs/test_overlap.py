"""Rollouts ahead of training under FSDP and FSDP2: the numbers of one process, and no rank that waits for ever."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from gspo_lightning.rollouts import VLLMEngine, VLLMServer
from tests.rollouts.toy_server import ToyServer
from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_named_faults import ENDLESS, argv, sentence, wait_for
from tests.runs.test_strategies import OPTIONS, Case, assert_same_run, weights

AHEAD = [
    "--data.max_staleness=1", "--trainer.max_epochs=3", "--model.objective=GSPO",
    "--model.objective.correction=sequence", "--model.optimizer.lr=0.1",
]  # fmt: skip


def through(server: ToyServer, **more: Any) -> str:
    given = {"urls": [server.url], "exact_seeds": True, "timeout_s": 60, **more}
    return f"--data.rollouts={json.dumps({'class_path': 'VLLMServer', 'init_args': given})}"


def no_collectives_of_jobs() -> None:
    """Any collective that a job begins raises in its thread, and so ends the run."""

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert not threading.current_thread().name.startswith("rollouts-")
            return original(*args, **kwargs)

        return call

    for name in ("all_gather_object", "gather_object", "broadcast_object_list", "all_reduce", "all_gather", "gather"):
        setattr(dist, name, watched(getattr(dist, name)))


@pytest.fixture
def server() -> Iterator[ToyServer]:
    with ToyServer() as toy:
        yield toy


def assert_ahead_as_one(server: ToyServer, strategy: str, root: Path, *more: str, ranks: int = 2) -> Path:
    case = Case(strategy, [*AHEAD, *more, through(server)])
    options = [*OPTIONS, *case.options]
    found = fit_on_ranks(root / "all", *options, overlay=strategy, ranks=ranks, prepare=no_collectives_of_jobs)
    assert server.loads == 4  # the evaluation before the first update, and after each iteration
    assert_same_run(case, found, root / "one")
    scalars = runs.scalars(found)
    assert [age for _, age in scalars["staleness/max_age"]] == [0, 0, 2, 2, 2, 2]
    assert [v for step, v in scalars["ratio/log_sequence_std"] if step % 2 == 1] == [0.0] * 3  # old: start of training
    shares = [e.value for e in runs.events(found).Scalars("time/rollout_wait_share")]
    assert shares[:2] == [1.0, 1.0]
    assert all(0 < share < 1 for share in shares[2:])
    return found


@pytest.mark.thorough
def test_two_ranks_sample_ahead_what_one_process_samples_ahead(server: ToyServer, tmp_path: Path) -> None:
    assert_ahead_as_one(server, "fsdp2", tmp_path)


@pytest.mark.long
def test_ranks_that_sampled_ahead_resume_as_one_process_does(server: ToyServer, tmp_path: Path) -> None:
    """What was in flight is sampled again, from the weights of the checkpoint."""
    snapshot, resumed = "--model.old_policy=ResidentSnapshot", list[Path]()
    whole = assert_ahead_as_one(server, "fsdp", tmp_path, snapshot)
    for run, strategy in ((whole, "fsdp"), (tmp_path / "one" / "quickstart" / "version_0", "")):
        root = tmp_path / f"resumed{strategy}"
        copy = root / "quickstart" / "version_0"
        shutil.copytree(run, copy, symlinks=True)
        for file in (copy / "checkpoints").glob("step-00000006.ckpt*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        options = [*OPTIONS, *AHEAD, snapshot, through(server), "--ckpt_path=last"]
        fit_on_ranks(root, *options, overlay=strategy) if strategy else runs.fit(root, *options)
        resumed.append(copy)
    a, b = (weights(run / "checkpoints" / "last.ckpt") for run in resumed)
    assert runs.largest_difference(a, b) < 1e-6
    assert [age for _, age in runs.scalars(resumed[0])["staleness/max_age"]] == [0, 0, 2, 2, 0, 0]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_four_ranks_sample_ahead_what_one_process_samples_ahead(
    server: ToyServer, strategy: str, tmp_path: Path
) -> None:
    assert_ahead_as_one(server, strategy, tmp_path, "--data.prompts_per_rollout=8", ranks=4)


@pytest.mark.long
def test_weights_of_shards_reach_requests_in_flight(tmp_path: Path) -> None:
    with ToyServer(pace_s=0.2) as server:
        source = through(server, weights_in_flight=True)
        options = [*OPTIONS, *AHEAD, source, "--trainer.check_val_every_n_epoch=5", "--model.optimizer.lr=0.003"]
        run = fit_on_ranks(tmp_path / "two", *options, overlay="fsdp2", prepare=no_collectives_of_jobs)
        assert server.loads == 4
    ages = [age for _, age in runs.scalars(run)["staleness/mean_age"]]
    assert ages[:2] == [0.0, 0.0]
    assert 0 < sum(ages[2:]) < 0.97 * 2 * 4  # all would be two updates old without it


@pytest.mark.thorough("options2-sample on servers (data.rollouts: VLLMServer)")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--data.max_staleness=1"], "no rank has whole weights under FSDP2Strategy, and GroupedSampler samples"),
        (["--data.max_staleness=2", "--data.rollouts=VLLMServer"], "servers hold one version of the weights"),
        (["--data.max_staleness=1", "--data.rollouts=VLLMEngine"], "sample on servers (data.rollouts: VLLMServer)"),
    ],
)
def test_shards_refuse_staleness_that_their_source_cannot_serve(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in (VLLMServer, VLLMEngine):
        monkeypatch.setattr(source, "open", lambda *_: None)  # without vLLM
    argv = [f"--config={runs.ROOT / 'configs' / 'fsdp2.yaml'}", "--trainer.accelerator=cpu", "--trainer.devices=1"]
    runs.fit(tmp_path, *runs.UNTAUGHT, *argv, *options, code=2)
    shown = " ".join(capsys.readouterr().err.split())
    assert "data.max_staleness: is" in shown
    assert says in shown


@pytest.mark.thorough
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_while_rollouts_are_in_flight_is_named_by_the_other(killed: int, tmp_path: Path) -> None:
    log, root = tmp_path / "log", tmp_path / "root"
    overlay = f"--config={runs.ROOT / 'configs' / 'fsdp2.yaml'}"
    with ToyServer(pace_s=0.05) as server:
        options = [overlay, "--data.max_staleness=1", through(server), "--trainer.accelerator=cpu"]
        command = Command([*argv(root, *options, ENDLESS), "--trainer.devices=2"], 2, log=log).start()
        last, alive = root / "quickstart/version_0/checkpoints/last.ckpt", command.processes
        wait_for(last.exists, lambda: all(p.is_alive() for p in alive))
        asked = server.asked
        wait_for(lambda: server.asked > asked, lambda: all(p.is_alive() for p in alive))
        pid = command.processes[killed].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        command.processes[1 - killed].join(60)
        code = command.processes[1 - killed].exitcode
        command.kill()
    assert code == 1, log.read_text()
    said = sentence(log.read_text())
    assert re.match(f"error: rank {1 - killed} cannot continue: another rank has ended", said)
