"""Faults of rewards during real runs: lost workers change nothing, a raising plug-in ends every rank at once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.runs import runs
from tests.runs.processes import Command

SLOW = '''
import os
import time
from pathlib import Path

from gspo_lightning.rewards import Reward


class GradedSlowly(Reward):
    """Depends on every character; leaves a file for each process that has judged a sample."""

    def score(self, completion: str) -> float:
        time.sleep(0.02)
        (Path(__file__).parent / "judges" / str(os.getpid())).touch()
        return (sum(i * ord(c) for i, c in enumerate(completion, 1)) % 7) / 7
'''
RAISING = '''
import os

from gspo_lightning.rewards import Reward, Sample


class RaisesOnOneRank(Reward):
    """Fine at start-up and on all other ranks."""

    def score(self, sample: Sample) -> float:
        if os.environ.get("LOCAL_RANK", "0") == os.environ["RAISING_RANK"] and not sample.id.startswith("canned"):
            raise LookupError("the grader has no entry for this")
        return 1.0
'''


SOMETIMES = '''
import json
from pathlib import Path

from gspo_lightning.rewards import Reward, Sample


class Sometimes(Reward):
    """Nothing to say on some samples, or on any that is not canned; writes down what it said."""

    def __init__(self, never: bool = False) -> None:
        self.never = never

    def score(self, sample: Sample) -> float | None:
        value = sum(i * ord(c) for i, c in enumerate(sample.completion, 1)) % 7
        said = None if value < 2 or self.never else value / 7
        with (Path(__file__).parent / "said.jsonl").open("a") as file:
            file.write(json.dumps([sample.id, said]) + "\\n")
        return said
'''


def read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # the process ended a moment ago
        return ""


def plug_in(folder: Path, source: str, name: str) -> list[str]:
    (folder / "judges").mkdir(parents=True)
    file = folder / f"{name.lower()}_for_test.py"
    file.write_text(source)
    return ["--model.cold_start=null", f"--plugins={file}", f'--data.rewards={{"graded": "{name}"}}']


def kill_workers(judges: Path, stop: threading.Event, killed: list[int]) -> None:
    """Kill processes that have judged a sample, after random times, until the run is over."""
    chance = random.Random(0)
    while not stop.is_set():
        for pid in {int(f.name) for f in judges.iterdir()} - set(killed):
            time.sleep(0.05 + 0.3 * chance.random())
            if stop.is_set() or not Path(f"/proc/{pid}").exists():
                continue
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        time.sleep(0.01)


@pytest.mark.thorough
def test_a_run_whose_workers_are_killed_at_random_is_the_undisturbed_run(tmp_path: Path) -> None:
    options = [*plug_in(tmp_path / "plugin", SLOW, "GradedSlowly"), "--trainer.max_epochs=4"]
    undisturbed = runs.fit(tmp_path / "undisturbed", *options)
    for file in (judges := tmp_path / "plugin" / "judges").iterdir():
        file.unlink()
    stop, killed = threading.Event(), list[int]()
    killer = threading.Thread(target=kill_workers, args=(judges, stop, killed))
    killer.start()
    try:
        run = runs.fit(tmp_path / "killed", *options)
    finally:
        stop.set()
        killer.join()
    assert len(killed) >= 3
    assert runs.scalars(run) == runs.scalars(undisturbed)  # rewards, statuses, advantages, losses at every update
    assert runs.largest_difference(runs.weights(run), runs.weights(undisturbed)) == 0.0


RAISED = "rewards.graded: raised LookupError: the grader has no entry for this on sample"


def on_two_ranks(folder: Path, strategy: str) -> list[str]:
    return [
        "fit", f"--config={runs.QUICKSTART}", f"--config={runs.ROOT / 'configs' / strategy}.yaml", *runs.SMALL,
        *plug_in(folder / "plugin", RAISING, "RaisesOnOneRank"), "--trainer.accelerator=cpu", "--trainer.devices=2",
        "--data.val=null", f"--trainer.default_root_dir={folder / 'run'}",
    ]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("rank", [0, 1])
def test_a_plug_in_that_raises_on_one_rank_ends_the_other_one_too(tmp_path: Path, rank: int) -> None:
    """Each rank a process that nobody else ends, as where torchrun has started them."""
    log, prepare = tmp_path / "log", (raise_on_the_first, raise_on_the_second)[rank]
    codes = Command(on_two_ranks(tmp_path, "ddp"), 2, log=log, prepare=prepare).start().wait(240)
    assert 0 not in codes
    assert -signal.SIGKILL not in codes
    assert log.read_text().count(RAISED) >= 1
    assert "a bug" not in log.read_text()


def raise_on_the_first() -> None:
    os.environ["RAISING_RANK"] = "0"


def raise_on_the_second() -> None:
    os.environ["RAISING_RANK"] = "1"


@pytest.mark.long
@pytest.mark.parametrize(("strategy", "rank"), [("ddp", 0), ("ddp", 1), ("fsdp", 1), ("fsdp2", 0), ("fsdp2", 1)])
def test_a_plug_in_that_raises_on_one_rank_ends_both_with_its_message(tmp_path: Path, strategy: str, rank: int) -> None:
    environment = {**os.environ, "RAISING_RANK": str(rank)}
    command = [sys.executable, "-m", "gspo_lightning", *on_two_ranks(tmp_path, strategy)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert found.returncode != 0
    assert RAISED in found.stderr
    assert "a bug" not in found.stderr
    assert not [f for f in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in read(f)]  # nobody is left behind


@pytest.mark.thorough
def test_missing_rewards_are_counted_and_leave_the_mean(tmp_path: Path) -> None:
    options = [*plug_in(tmp_path / "plugin", SOMETIMES, "Sometimes"), "--data.val=null", "--trainer.max_epochs=1"]
    scalars = runs.scalars(runs.fit(tmp_path / "run", *options))
    lines = [json.loads(line) for line in (tmp_path / "plugin" / "said.jsonl").read_text().splitlines()]
    said = [value for name, value in lines if not name.startswith("canned")]
    known = [value for value in said if value is not None]
    assert len(said) == 32
    assert 0 < len(known) < 32
    assert scalars["reward/missing"][0][1] == pytest.approx(1 - len(known) / 32)
    assert scalars["reward/mean"][0][1] == pytest.approx(sum(known) / len(known))
    assert scalars["optim/gradient_norm"][0][1] > 0


SILENT = [*runs.UNTAUGHT, '--data.rewards={"graded": "Silent"}']
ONLY_CANNED = [
    *runs.UNTAUGHT,
    '--data.rewards={"graded": {"class_path": "Silent", "init_args": {"canned": true}}}',
]


@pytest.mark.thorough
def test_a_reward_that_gives_nothing_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path / "run", *SILENT, code=2)
    shown = capsys.readouterr().err
    for word in ("rewards.graded: Silent gives none of", "x the reward returned None", "fix: "):
        assert word in shown
    assert not (tmp_path / "run").exists()


def test_an_iteration_without_any_reward_stops_the_run_and_counts_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.fit(tmp_path / "run", *ONLY_CANNED, "--data.val=null", code=2)
    shown = capsys.readouterr().err
    assert "no response of iteration 0 has a reward" in shown
    assert "32 x graded: the reward returned None" in shown
    assert not (run / "checkpoints").exists()


@pytest.mark.thorough
def test_held_out_answers_without_any_score_stop_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.fit(tmp_path / "run", *ONLY_CANNED, code=2)
    shown = capsys.readouterr().err
    assert "data.evaluation.accuracy_reward: 'graded' scored no held-out prompt completely" in shown
    assert "16 x graded: the reward returned None" in shown
