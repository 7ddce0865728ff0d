"""The runner against rewards and texts that hang, leak, crash and lie."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.registry import import_plugins
from gspo_lightning.rewards import (
    EnvironmentReward,
    ExactMatch,
    FormatReward,
    FunctionReward,
    Reward,
    RewardRunner,
    Sample,
    SampleScore,
)
from gspo_lightning.rewards.workers.process import Usage, _session
from gspo_lightning.rewards.workers.runner_settings import default_workers
from tests import ROOT
from tests.rewards import misbehaving as bad


def samples(*completions: str, **columns: Any) -> list[Sample]:
    return [Sample(str(i), "p", text, (1,), columns) for i, text in enumerate(completions)]


def rewards_of(scores: list[SampleScore]) -> list[float | None]:
    return [score.reward for score in scores]


@pytest.fixture(scope="module")
def obeying() -> Iterator[RewardRunner]:
    with RewardRunner({"r": bad._Obeys()}, num_workers=2, deadline_s=0.5, memory_mb=300) as runner:
        yield runner


def test_results_are_complete_and_in_order() -> None:
    texts = ["x" * (i % 7) for i in range(500)]
    with RewardRunner({"r": bad._Obeys()}, num_workers=2) as runner:
        assert rewards_of(runner.score(samples(*texts))) == [float(len(t)) for t in texts]
        assert runner.score([]) == []


@pytest.mark.thorough("hang-timeout-0.0-CPU time")
@pytest.mark.parametrize(
    ("text", "status", "reward", "detail"),
    [
        ("hang", "timeout", 0.0, "CPU time"),
        ("regex", "timeout", 0.0, "CPU time"),
        ("fork", "timeout", 0.0, "CPU time"),
        ("hog", "model_error", 0.0, "memory"),
        ("huge", "model_error", 0.0, "memory"),
        ("segfault", "model_error", 0.0, "SIGSEGV"),
        ("killed", "missing", None, "SIGKILL, twice"),
        ("sleep", "missing", None, "without using the CPU, twice"),
        ("none", "missing", None, "returned None"),
    ],
)
def test_a_hostile_sample_is_judged_and_disturbs_no_other(
    obeying: RewardRunner, text: str, status: str, reward: float | None, detail: str
) -> None:
    texts = ["a"] * 9 + [text] + ["bb"] * 10
    scores = obeying.score(samples(*texts))
    assert scores[9].status == status
    assert scores[9].reward == reward
    assert detail in scores[9].detail
    assert rewards_of(scores[:9] + scores[10:]) == [1.0] * 9 + [2.0] * 10


@pytest.mark.thorough
def test_a_busy_machine_decides_no_reward() -> None:
    spin = "import time; end = time.monotonic() + 8\nwhile time.monotonic() < end: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3 * len(os.sched_getaffinity(0)))]
    try:
        with RewardRunner({"r": bad._Obeys()}, num_workers=2, deadline_s=0.5) as runner:
            scores = runner.score(samples("burn", "burn", "hang", "a"))
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert [str(s.status) for s in scores] == ["ok", "ok", "timeout", "ok"]


def test_waiting_for_a_cpu_is_not_sleep() -> None:
    spins = "import os\nif os.fork() == 0:\n    while True: pass\nos.waitpid(-1, 0)"  # who started it sleeps
    naps = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\nos.waitpid(-1, 0)"
    for program, runnable in ((spins, True), (naps, False)):
        with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
            try:
                latest = time.monotonic() + 20
                while len(list(_session(process.pid))) < 2 and time.monotonic() < latest:
                    time.sleep(0.01)
                time.sleep(0.5)
                states = {fields[0] for _, fields in _session(process.pid)}
            finally:
                os.killpg(process.pid, signal.SIGKILL)
        assert (b"R" in states) is runnable
    assert not Usage(wall=1.0, busy=0.0, runnable=True).asleep
    assert Usage(wall=1.0, busy=0.4, runnable=False).asleep
    assert not Usage(wall=1.0, busy=0.6, runnable=False).asleep


def test_children_of_a_killed_reward_worker_are_killed(obeying: RewardRunner) -> None:
    obeying.score(samples("fork"))
    mine = {str(pid) for pid in obeying.worker_pids()}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = stat.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if b"gspo_lightning.rewards.workers.worker" in command and fields[0] != "Z" and fields[3] in mine:
            assert stat.parent.name in mine


@pytest.mark.thorough
def test_a_batched_reward_is_taken_apart_to_find_the_culprit() -> None:
    texts = ["a", "hang", "bb", "hog", "ccc", "killed", "dddd"] + ["e"] * 9
    with RewardRunner({"r": bad._Batch()}, num_workers=1, deadline_s=0.4, memory_mb=300) as runner:
        scores = runner.score(samples(*texts))
    assert rewards_of(scores) == [1.0, 0.0, 2.0, 0.0, 3.0, None, 4.0] + [1.0] * 9
    assert [str(s.status) for s in scores[1:6:2]] == ["timeout", "model_error", "missing"]


@pytest.mark.parametrize("way", ["returns", "raises", "exits", "returns later"])
def test_a_reward_that_forks_and_comes_back_is_named(way: str) -> None:
    """Both processes would write verdicts into one pipe: the runner took a sample's score for the next one's."""

    def score_until_it_is_known() -> None:
        for _ in range(20 if way == "returns later" else 1):
            assert rewards_of(runner.score(samples("a", "bb", "ccc"))) == [1.0, 2.0, 3.0]
            time.sleep(0.1)

    with RewardRunner({"forks": bad._Forks(way)}, num_workers=1) as runner:
        with pytest.raises(UserError, match=r"rewards\.forks: forks, and the child comes back from score") as caught:
            score_until_it_is_known()
        assert "os._exit()" in str(caught.value)


def test_a_reward_may_fork_if_its_child_ends_there() -> None:
    with RewardRunner({"forks": bad._Forks("ends")}, num_workers=1) as runner:
        assert rewards_of(runner.score(samples("a", "bb", "ccc"))) == [1.0, 2.0, 3.0]


def test_a_reward_in_the_trainer_that_forks_makes_no_second_trainer(capfd: pytest.CaptureFixture[str]) -> None:
    reward = bad._Forks("raises")
    reward.where = "trainer"
    with RewardRunner({"forks": reward}, num_workers=1) as runner:
        assert rewards_of(runner.score(samples("a", "bb"))) == [1.0, 2.0]
    assert capfd.readouterr().err.count("rewards.forks: a child that it forked came back from score()") == 2


def test_async_scores_of_a_task_run_together() -> None:
    with RewardRunner({"r": bad._Async()}, num_workers=1) as runner:
        runner.check(set())
        start = time.perf_counter()
        scores = runner.score(samples(*["ab"] * 32))
        assert time.perf_counter() - start < 0.2 * 32 / 2
    assert rewards_of(scores) == [2.0] * 32


@pytest.mark.parametrize("where", ["worker", "trainer"])
@pytest.mark.parametrize("kind", [bad._Batch, bad._AsyncBatch, bad._Async, bad._Obeys])
def test_per_sample_batched_and_async_rewards_agree(kind: type[Reward], where: Any) -> None:
    reward = kind()
    reward.where = where
    texts = ["x" * (i % 4) for i in range(40)]
    with RewardRunner({"r": reward}, num_workers=1) as runner:
        runner.check(set())
        assert rewards_of(runner.score(samples(*texts))) == [float(len(t)) for t in texts]


def test_a_reward_that_raises_on_the_probe_is_refused_with_its_cause() -> None:
    for reward, cause in ((bad._Exits(), "SystemExit: on purpose"), (bad._Refuses(), "UserError: field")):
        with (
            RewardRunner({"r": reward}, num_workers=1) as runner,
            pytest.raises(UserError, match=rf"rewards\.r: raised {cause}.* on sample canned/0"),
        ):
            runner.check(set())


@pytest.mark.thorough
def test_workers_killed_at_random_change_no_reward(tmp_path: Path) -> None:
    texts = ["x" * (i % 5) for i in range(1000)]
    marks = tmp_path / "marks"
    with RewardRunner({"r": bad._Marks(str(marks))}, num_workers=2) as runner:
        runner.check(set())
        marks.write_bytes(b"")
        pending = runner.submit(samples(*texts))
        chance = random.Random(0)
        for kill_after in (100, 300, 500, 700):  # texts scored, by its own progress: a busy machine kills no sooner
            while marks.stat().st_size < kill_after:
                time.sleep(0.001)
            os.kill(chance.choice(runner.worker_pids()), signal.SIGKILL)
        scores = pending.result()
    assert marks.stat().st_size > len(texts)  # what a killed worker held was scored again
    assert rewards_of(scores) == [float(len(t)) for t in texts]


def test_scoring_overlaps_with_the_caller() -> None:
    with RewardRunner({"r": bad._Slow()}, num_workers=1) as runner:
        runner.check(set())
        first, second = runner.submit(samples(*["a"] * 50)), runner.submit(samples(*["bb"] * 50))
        deadline = time.monotonic() + 20
        while not second.done() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert second.done()
        assert rewards_of(second.result()) == [2.0] * 50
        assert rewards_of(first.result()) == [1.0] * 50


def test_a_raising_plug_in_stops_the_run_and_is_named() -> None:
    with RewardRunner({"polite": bad._Raises()}, num_workers=1) as runner:
        with pytest.raises(UserError, match=r"rewards\.polite: raised LookupError: no such key on sample 2") as caught:
            runner.score(samples("a", "b", "boom", "c"))
        assert any("misbehaving.py" in note for note in caught.value.__notes__)
        assert rewards_of(runner.score(samples("a"))) == [1.0]  # the runner is still usable
    with (
        RewardRunner({"r": bad._Refuses()}, num_workers=1) as runner,
        pytest.raises(UserError, match=r"rewards\.r: raised UserError: field: x+ on sample 0"),
    ):
        runner.score(samples("a"))
    with (
        RewardRunner({"r": bad._Exits()}, num_workers=1) as runner,
        pytest.raises(UserError, match="SystemExit: on purpose"),
    ):
        runner.score(samples("a"))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (bad._Returns(float("nan")), r"rewards\.r: sample 0: returned nan"),
        (bad._Returns(float("inf")), r"rewards\.r: sample 0: returned inf"),
        (bad._Returns("1"), r"rewards\.r: sample 0: returned '1', which is not a number"),
        (bad._TooShort(), r"rewards\.r: returned 1 values for 2 samples"),
        (
            FunctionReward("tests.rewards.misbehaving.one_value"),
            r"rewards\.r: sample 0: returned 1\.0; it must return a list",
        ),
    ],
)
def test_malformed_reward_is_an_error_in_worker_and_trainer(reward: Any, message: str) -> None:
    for where in ("worker", "trainer"):
        reward.where = where
        with RewardRunner({"r": reward}, num_workers=1) as runner:
            job = runner.submit(samples("a", "b", "c", "d", "e", "f", "g", "h"))
            with pytest.raises(UserError, match=message.replace("1 values for 2", r"\d values for \d")):
                job.result()


def test_noise_of_a_plug_in_does_not_reach_the_protocol() -> None:
    with RewardRunner({"r": bad._Prints()}, num_workers=1) as runner:
        assert rewards_of(runner.score(samples(*["a"] * 20))) == [0.0] * 20


def test_workers_have_no_torch_even_if_the_trainer_has() -> None:
    import torch  # noqa: F401

    parts = {"m": bad._Modules(), "e": ExactMatch(), "f": FormatReward(".")}
    with RewardRunner(parts, num_workers=1) as runner:
        assert runner.score(samples("a", answer="a"))[0].parts["m"].reward == 0.0


def test_rewards_can_run_in_the_trainer_and_are_weighted() -> None:
    parts = {"here": bad._InTrainer(), "there": bad._Obeys()}
    with RewardRunner(parts, {"there": 0.5, "here": 0.0}, num_workers=1) as runner:
        score = runner.score(samples("abc"))[0]
    assert score.parts["here"].reward == float(os.getpid())
    assert score.reward == 1.5


def test_a_missing_part_makes_the_sum_missing_unless_it_has_no_weight() -> None:
    parts = {"a": bad._Obeys(), "b": bad._Returns(2.0)}
    with RewardRunner(parts, num_workers=1) as runner:
        assert rewards_of(runner.score(samples("none"))) == [None]
    with RewardRunner(parts, {"a": 0}, num_workers=1) as runner:
        assert rewards_of(runner.score(samples("none"))) == [2.0]


@pytest.mark.thorough
def test_too_many_lost_samples_stop_the_run() -> None:
    runner = RewardRunner({"r": bad._Obeys()}, num_workers=2, deadline_s=0.3, max_missing_rate=0.2)
    with runner, pytest.raises(InfrastructureError, match=r"10 of 16 samples could not be scored.*SIGKILL"):
        runner.score(samples(*["killed"] * 10, *["a"] * 6))


@pytest.mark.thorough
def test_workers_that_cannot_start_are_an_error_not_a_hang() -> None:
    with (
        RewardRunner({"r": bad._DiesAtStart()}, num_workers=1) as runner,
        pytest.raises(InfrastructureError, match="while they start, with exit code 3"),
    ):
        runner.score(samples("a"))


def test_workers_are_recycled_when_nothing_waits() -> None:
    with RewardRunner({"r": bad._Obeys()}, num_workers=1, recycle_after=5) as runner:
        first = rewards_of(runner.score(samples(*["pid"] * 6)))
        latest = time.monotonic() + 20
        while int(first[0] or 0) in runner.worker_pids() and time.monotonic() < latest:
            time.sleep(0.01)
        second = rewards_of(runner.score(samples(*["pid"] * 6)))
        assert len(runner.worker_pids()) <= 2  # it and, once more, a successor
    assert len(set(first)) == 1
    assert len(set(second)) == 1
    assert set(first) != set(second)


@pytest.mark.thorough
def test_a_worker_that_leaks_is_replaced_before_its_memory_is_gone() -> None:
    with RewardRunner({"r": bad._Leaks()}, num_workers=1, memory_mb=300) as runner:
        assert rewards_of(runner.score(samples(*["a"] * 200))) == [1.0] * 200  # 4 MiB each


@pytest.mark.thorough
def test_nothing_is_left_after_close() -> None:
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    pids = []
    for _ in range(3):
        with RewardRunner({"r": bad._Obeys()}, num_workers=2, deadline_s=0.3) as runner:
            runner.submit(samples("hang", "sleep", *["a"] * 30))
            time.sleep(0.2)
            pids += runner.worker_pids()
    assert len(pids) == 6
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads


def test_closing_fails_what_is_not_scored_and_scoring_again_starts_again() -> None:
    runner = RewardRunner({"r": bad._Obeys()}, num_workers=1)
    pending = runner.submit(samples("sleep"))
    runner.close()
    with pytest.raises(InfrastructureError, match="closed"):
        pending.result()
    assert rewards_of(runner.score(samples("ab"))) == [2.0]
    runner.close()
    runner.close()


def test_busy_workers_end_with_their_parent() -> None:
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from tests.rewards import misbehaving as bad\n"
        "from gspo_lightning.rewards import RewardRunner, Sample\n"
        "runner = RewardRunner({'r': bad._Obeys()}, num_workers=1, deadline_s=50.0)\n"
        "runner.score([Sample('0', '', 'a')]); runner.submit([Sample('0', '', 'hang')])\n"
        "print(runner.worker_pids()[0], flush=True); time.sleep(60)\n"
    )
    folder = str(ROOT)
    with subprocess.Popen([sys.executable, "-c", program, folder], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        time.sleep(0.2)
        parent.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        if b"\nState:\tZ" in Path(f"/proc/{worker}/status").read_bytes():
            break  # dead; whoever adopted it has not noticed yet
        time.sleep(0.05)
    assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("cpus", "launcher", "workers"),
    [
        (16, {}, 15),
        (2, {}, 1),
        (1, {}, 1),
        (16, {"LOCAL_WORLD_SIZE": "2"}, 7),
        (16, {"WORLD_SIZE": "2"}, 7),
        (64, {"SLURM_NTASKS_PER_NODE": "8", "WORLD_SIZE": "16"}, 7),
        (64, {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, 15),
        (4, {"WORLD_SIZE": "8"}, 1),
    ],
)
def test_ranks_of_a_machine_share_its_cores(
    cpus: int, launcher: dict[str, str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    assert default_workers() == workers


@pytest.mark.thorough
def test_check_names_reward_parameter_and_columns() -> None:
    with RewardRunner({"hard": bad._NeedsColumn()}, num_workers=1) as runner:
        with pytest.raises(UserError, match=r"rewards\.hard: _NeedsColumn needs the column 'difficulty'.*answer"):
            runner.check({"answer"})
        runner.check({"difficulty"})
        with pytest.raises(UserError, match="returned 'high', which is not a number"):
            runner.check({"difficulty": "high"})
        runner.check({"difficulty": 0.5})
    with (
        RewardRunner({"r": bad._Kills()}, num_workers=1) as runner,
        pytest.raises(
            InfrastructureError, match="canned completion could not be scored: the worker ended with exit code 4"
        ),
    ):
        runner.check(set())


def test_check_refuses_a_reward_that_gives_nothing() -> None:
    with RewardRunner({"loud": bad._Obeys(), "quiet": bad._Applies("b")}, num_workers=1) as runner:
        with pytest.raises(UserError, match=r"rewards\.quiet: _Applies gives none of 3 .*: 3 x not of b\n  fix: "):
            runner.check({"source": "a"})
        runner.check({"source": "b"})
        runner.check({"source": "a"}, others=[({"source": "a"}, "p"), ({"source": "b"}, "p")])
        with pytest.raises(UserError, match=r"quiet: _Applies gives none of 6 canned completions"):
            runner.check({"source": "a"}, others=[({"source": "c"}, "p")])
        runner.check({"source"})  # only the names are known: nothing can be judged


def test_check_knows_what_a_conversation_brings() -> None:
    with RewardRunner({"paid": EnvironmentReward(), "polite": bad._ReadsMessages()}, num_workers=1) as runner:
        with pytest.raises(UserError, match="needs the column 'messages'"):
            runner.check({"answer": "1"})
        runner.check({"answer": "1"}, conversation=True)


def test_a_sample_without_its_column_is_missing() -> None:
    with RewardRunner({"r": ExactMatch()}, num_workers=1) as runner:
        assert "no column 'answer'" in runner.score(samples("#1"))[0].detail


def test_check_probes_with_canned_completions() -> None:
    class _Local:
        pass

    with (
        RewardRunner({"r": bad._Returns(float("nan"))}, num_workers=1) as runner,
        pytest.raises(UserError, match="sample canned/0: returned nan"),
    ):
        runner.check(set())
    with pytest.raises(UserError, match="cannot be sent to a worker process"):
        RewardRunner({"r": bad._Returns(lambda: None)})
    with pytest.raises(UserError, match="is a _Local, not a Reward"):
        RewardRunner({"r": _Local()})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "settings",
    [
        {"num_workers": 0},
        {"deadline_s": 0.0},
        {"deadline_s": float("nan")},
        {"memory_mb": 10},
        {"recycle_after": 0},
        {"max_missing_rate": 2.0},
        {"weights": {"q": 1.0}},
        {"weights": {"r": float("nan")}},
        {"rewards": {}},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        RewardRunner(**{"rewards": {"r": ExactMatch()}, **settings})


def test_plug_in_files_from_anywhere_reach_the_workers(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.py"
    file.write_text(
        "from gspo_lightning.rewards import Reward\n\n\nclass _Twice(Reward):\n"
        "    def score(self, completion: str) -> float:\n        return 2.0 * len(completion)\n"
    )
    (module,) = import_plugins([file])
    with RewardRunner({"r": sys.modules[module]._Twice()}, num_workers=1, plugins=[str(file)]) as runner:
        assert rewards_of(runner.score(samples("abc"))) == [6.0]


def test_megabytes_surrogates_and_null_bytes_go_through() -> None:
    texts = ["x" * 1_000_000, "\x00" * 10, "\ud800", "", "\U0001f600"]
    with RewardRunner({"r": bad._Obeys()}, num_workers=1) as runner:
        assert rewards_of(runner.score(samples(*texts * 8))) == [1e6, 10.0, 1.0, 0.0, 1.0] * 8
