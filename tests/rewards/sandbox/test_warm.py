"""A process that waits for its next program: it saves a start, and hands nothing of one program to the next."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.rewards.sandbox import End, Isolation, Kind, Limits, Outcome, Sandbox, choose, warm

LEAVES = """
import builtins, json, os, random, sys, threading, time
kept = [input(), MARK]
builtins.kept = sys.kept = kept
sys.modules["left"] = sys
os.environ["LEFT"] = kept[0]
json.loads = random.random = None
for name in ("left.py", "/tmp/left.py", "/dev/shm/left"):
    try:
        open(name, "w").write(kept[0])
    except OSError:
        pass
print(kept[0])
"""
SEARCHES = """
import builtins, gc, json, os, random, re, sys
word = input().encode()
theirs, mine = (re.compile(word[:6] + other + word[7:]) for other in (b"[^_]", b"_"))
assert json.loads("1") == 1 and random.random() < 1
found = [name for name in ("kept", "left") if hasattr(builtins, name) or hasattr(sys, name) or name in sys.modules]
found += [name for name in ("left.py", "/tmp/left.py", "/dev/shm/left") if os.path.exists(name)]
found += os.environ
counts = [0, 0]
try:
    memory, maps = open("/proc/self/mem", "rb", 0), open("/proc/self/maps")
except OSError:
    maps = []
for line in maps:
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    if "rw" in line and end - start < 1 << 26:
        memory.seek(start)
        seen = memory.read(end - start)
        counts = [count + len(words.findall(seen)) for count, words in zip(counts, (theirs, mine))]
print(sorted(found), counts[0], counts[1] > 0)
"""


@pytest.fixture(scope="module", params=[Kind.BUBBLEWRAP, Kind.LANDLOCK])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    try:
        return choose(request.param.value)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    """Before a test; what it leaves is ended."""
    warm.close_waiting()
    yield
    warm.close_waiting()


def run(isolation: Isolation, program: str, text: str = "", cpu_s: float = 6.0) -> tuple[Outcome, int]:
    """The outcome, and the process that served it."""
    with Sandbox(isolation.kind, isolation.python, program, Limits(cpu_s=cpu_s)) as box:
        return box.run({"stdin": True, "input": text}), box._driver.process.pid


def test_one_driver_serves_many_programs(isolation: Isolation) -> None:
    served = [run(isolation, f"print({i})") for i in range(5)]
    assert [outcome.stdout for outcome, _ in served] == [f"{i}\n" for i in range(5)]
    assert len({pid for _, pid in served}) == 1


def test_program_finds_no_memory_of_the_previous_one(isolation: Isolation) -> None:
    """Its source, its input and what it made; the word that the searching program was given itself is found."""
    word, mark = secrets.token_hex(16), secrets.token_hex(16)
    marks = ", ".join(repr(mark * n) for n in range(1, 40))  # of many sizes, so that some would be left somewhere
    first, pid = run(isolation, LEAVES.replace("MARK", marks), f"{word}\n" + f"{word}{' ' * 50}\n" * 5000)
    assert first.stdout == f"{word}\n"
    for secret in word, mark:
        found, same = run(isolation, SEARCHES, secret[:6] + "_" + secret[7:])
        assert (found.end, found.stdout) == (End.FINISHED, f"[] 0 {isolation.kind is Kind.BUBBLEWRAP}\n"), found
        assert same == pid


def test_sandbox_serves_the_next_program_after_every_failure(isolation: Isolation) -> None:
    assert run(isolation, "raise ValueError")[0].end is End.RUNTIME_ERROR
    assert run(isolation, "import os; os._exit(3)")[0].end is End.RUNTIME_ERROR
    assert run(isolation, "while True: pass", cpu_s=0.2)[0].end is End.TIMEOUT
    assert run(isolation, "x = bytearray(8 << 30)")[0].end is End.MEMORY
    assert run(isolation, "print(7)")[0].stdout == "7\n"


def test_driver_ends_after_a_program_that_slept(isolation: Isolation) -> None:
    outcome, pid = run(isolation, "import time; time.sleep(30)", cpu_s=0.2)
    assert outcome.asleep
    assert not Path(f"/proc/{pid}").exists()


def test_driver_ends_after_it_could_not_confine_a_program(isolation: Isolation) -> None:
    with Sandbox(isolation.kind, isolation.python, "print(1)", Limits(memory_mb=-(1 << 50))) as box:
        pid = box._driver.process.pid
        with pytest.raises(InfrastructureError, match="could not be confined"):
            box.run({"stdin": True, "input": ""})
    assert not Path(f"/proc/{pid}").exists()


def test_driver_closed_twice_is_kept_once(isolation: Isolation) -> None:
    with Sandbox(isolation.kind, isolation.python, "print(1)", Limits()) as box:
        box.close()
    assert len(warm._local.waiting.drivers) == 1


def test_killed_idle_driver_is_replaced(isolation: Isolation) -> None:
    _, pid = run(isolation, "print(1)")
    (driver,) = warm._local.waiting.drivers
    driver.process.kill()
    driver.process.wait()
    outcome, other = run(isolation, "print(2)")
    assert outcome.stdout == "2\n"
    assert other != pid


def test_drivers_are_recycled_and_few_stay_idle(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_MOST_PROGRAMS", 2)
    pids = [run(isolation, "print(1)")[1] for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    monkeypatch.undo()
    boxes = [Sandbox(isolation.kind, isolation.python, "", Limits()) for _ in range(6)]
    ids = [box._driver.process.pid for box in boxes]
    for box in boxes:
        box.close()
    assert [driver.process.pid for driver in warm._local.waiting.drivers] == ids[2:]
    assert not any(Path(f"/proc/{pid}").exists() for pid in ids[:2])


def test_idle_drivers_end_with_their_thread(isolation: Isolation) -> None:
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(run(isolation, "print(1)")[1]))
    thread.start()
    thread.join()
    assert not Path(f"/proc/{pids[0]}").exists()
    assert run(isolation, "print(1)")[1] != pids[0]


def test_forked_process_has_its_own_driver(isolation: Isolation) -> None:
    _, pid = run(isolation, "print(1)")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outcome, other = run(isolation, "print(2)")
            os.write(writing, f"{outcome.stdout.strip()} {other != pid}".encode())
            warm.close_waiting()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"2 True"
    os.close(reading)
    os.close(writing)
    assert run(isolation, "print(3)")[1] == pid


@pytest.mark.parametrize("without", [("seccomp",), ("watch", "memory")])
def test_driver_without_a_sandbox_layer_is_not_kept(isolation: Isolation, without: tuple[str, ...]) -> None:
    with Sandbox(isolation.kind, isolation.python, "print(1)", Limits(), without=without) as box:
        pid = box._driver.process.pid
    assert warm._local.waiting.drivers == []
    assert not Path(f"/proc/{pid}").exists()
