"""The parts of the sandbox on their own: the filter's program, values on their way out, limits, what is chosen."""

from __future__ import annotations

import ctypes
import ctypes.util
import datetime
import errno
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter, OrderedDict, deque, namedtuple
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.rewards.sandbox import End, Interpreter, Kind, Limits, Sandbox, choose, probe, warm
from gspo_lightning.rewards.sandbox.inside import landlock, seccomp, syscalls
from gspo_lightning.rewards.sandbox.inside.encode import encode
from gspo_lightning.rewards.sandbox.launch import NOBODY
from gspo_lightning.rewards.sandbox.process import Opaque, decode

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


def judge(program: bytes, number: int, *arguments: int, architecture: int = ARCHITECTURES["x86_64"]) -> int:
    """What the kernel would make of a call: an interpreter of classic BPF, as far as the filter uses it."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator = at = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            at += if_true if holds else if_false


@pytest.mark.parametrize(
    ("number", "arguments", "shared", "alone"),
    [
        (0, (), ALLOW, ALLOW),  # read
        (41, (1, 1), REFUSE, REFUSE),  # socket
        (53, (1, 1), ALLOW, ALLOW),  # socketpair, AF_UNIX
        (53, (2, 1), REFUSE, REFUSE),  # socketpair, AF_INET
        (56, (17,), ALLOW, REFUSE),  # clone, SIGCHLD: a fork
        (56, (0x3D0F00,), ALLOW, ALLOW),  # clone, the flags of a thread
        (56, (0x10000000 | 17,), REFUSE, REFUSE),  # clone, CLONE_NEWUSER
        (57, (), ALLOW, REFUSE),  # fork
        (59, (), REFUSE, REFUSE),  # execve
        (62, (77,), ALLOW, ALLOW),  # kill, itself
        (62, (78,), ALLOW, REFUSE),  # kill, another
        (62, (0xFFFFFFFF,), ALLOW, REFUSE),  # kill, everybody
        (72, (3, 1), ALLOW, ALLOW),  # fcntl, F_GETFD
        (72, (3, 8), ALLOW, REFUSE),  # fcntl, F_SETOWN
        (90, (), ALLOW, REFUSE),  # chmod
        (9, (0, 4096, 3, 0x22, 2**64 - 1), ALLOW, ALLOW),  # mmap, private and anonymous
        (9, (0, 4096, 3, 0x01, 3), ALLOW, ALLOW),  # mmap, shared, of a file
        (9, (0, 4096, 3, 0x21, 2**64 - 1), REFUSE, REFUSE),  # mmap, shared and anonymous
        (9, (0, 4096, 3, 0x23, 2**64 - 1), REFUSE, REFUSE),  # mmap, the same by MAP_SHARED_VALIDATE
        (9, (0, 4096, 3, 0x40022, 2**64 - 1), REFUSE, REFUSE),  # mmap, huge pages
        (28, (0, 4096, 4), ALLOW, ALLOW),  # madvise, MADV_DONTNEED
        (28, (0, 4096, 21), REFUSE, REFUSE),  # madvise, MADV_PAGEOUT
        (13, (17, 0x7F0000000000), REFUSE, ALLOW),  # rt_sigaction, SIGCHLD, an address without low bits
        (13, (17, 0x1000), REFUSE, ALLOW),  # rt_sigaction, SIGCHLD
        (13, (17, 0), ALLOW, ALLOW),  # rt_sigaction, asking what is set
        (13, (2, 0x1000), ALLOW, ALLOW),  # rt_sigaction, SIGINT
        (16, (0, 0x5401), ALLOW, ALLOW),  # ioctl, TCGETS
        (16, (0, 0x5412), REFUSE, REFUSE),  # ioctl, TIOCSTI
        (157, (15,), ALLOW, ALLOW),  # prctl, PR_SET_NAME
        (157, (22,), REFUSE, REFUSE),  # prctl, PR_SET_SECCOMP
        (302, (0,), ALLOW, ALLOW),  # prlimit64, itself
        (302, (5,), REFUSE, REFUSE),  # prlimit64, another
        (435, (), UNKNOWN, UNKNOWN),  # clone3: the C library falls back to clone
        (425, (), REFUSE, REFUSE),  # io_uring_setup
        (999, (), REFUSE, REFUSE),  # of a future kernel
        (0x40000000, (), KILL, KILL),  # read, as x32
    ],
)
def test_the_filter_decides(number: int, arguments: tuple[int, ...], shared: int, alone: int) -> None:
    assert judge(seccomp.assemble("x86_64"), number, *arguments) == shared
    assert judge(seccomp.assemble("x86_64", only_process=77), number, *arguments) == alone


def test_the_compilers_filter_starts_programs_and_signals_none() -> None:
    program = seccomp.assemble("x86_64", executes=True)
    assert judge(program, 59) == judge(program, 57) == judge(program, 58) == ALLOW  # execve, fork, vfork
    assert judge(program, 56, 17) == ALLOW  # clone
    assert judge(program, 56, 0x10000000 | 17) == REFUSE  # clone, CLONE_NEWUSER
    for number in 62, 200, 234, 41, 322, 272:  # kill, tkill, tgkill, socket, execveat, unshare
        assert judge(program, number, 1) == REFUSE


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_a_foreign_machine_is_killed(machine: str) -> None:
    program = seccomp.assemble(machine)
    read = syscalls.numbers(syscalls.ALWAYS, machine)["read"]
    assert judge(program, read, architecture=ARCHITECTURES[machine]) == ALLOW
    assert judge(program, read, architecture=0x40000003) == KILL


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_system_calls_have_the_numbers_that_libseccomp_knows(machine: str) -> None:
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("needs libseccomp: install libseccomp2")
    resolve = ctypes.CDLL(name).seccomp_syscall_resolve_name_arch
    table = syscalls.ALWAYS + syscalls.METADATA + syscalls.CONDITIONAL
    ours = syscalls.numbers(table, machine)
    theirs = {n: resolve(ctypes.c_uint32(ARCHITECTURES[machine]), n.encode()) for n in ours}
    assert ours == theirs
    assert len(set(ours.values())) == len(ours) > 100


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers()), inner)
        | st.sets(st.integers() | st.text())
    ),
    max_leaves=20,
)


@pytest.mark.thorough
@given(plain)
def test_values_come_out_as_they_went_in(value: Any) -> None:
    found = decode(json.loads(encode(value)))
    assert found == value
    assert repr(found) == repr(value) or isinstance(value, set | frozenset) or "{" in repr(value)


_PRIME = 2**61 - 1
"""Whole numbers have their remainder by it as their hash."""


@pytest.mark.parametrize(
    "keys",
    [
        [k * _PRIME for k in range(200)],
        [{"int": hex(k * _PRIME)} for k in range(200)],
        [{"tuple": [1, k * _PRIME]} for k in range(200)],
        [{"complex": [-1_000_003 * k, k]} for k in range(200)],
        [*range(100_000), *(k * _PRIME + 7 for k in range(200))],
    ],
    ids=["integers", "large integers", "tuples", "complex numbers", "some of many"],
)
def test_keys_that_were_chosen_to_collide_are_no_value(keys: list[Any]) -> None:
    for data in {"set": keys}, {"dict": [[key, 0] for key in keys]}:
        with pytest.raises(ValueError, match="the same hash"):
            decode(data)


@pytest.mark.parametrize(
    "value",
    [
        {2**k for k in range(5000)},
        {float(2**k) for k in range(1000)},
        {complex(x, y) for x in range(100) for y in range(100)},
        {(x, y): x for x in range(-100, 100) for y in range(-100, 100)},
        {-k: str(k) for k in range(100_000)},
    ],
    ids=["powers of two", "powers of two as floats", "a complex grid", "a grid", "numbers below 0"],
)
def test_honest_keys_are_values(value: Any) -> None:
    assert decode(json.loads(encode(value))) == value


def test_values_that_are_no_plain_data_equal_nothing() -> None:
    found, again = (decode(json.loads(encode([object(), lambda: 0]))) for _ in range(2))
    assert all(isinstance(v, Opaque) for v in found)
    assert found != again
    point = namedtuple("point", "x y")(1, 2)
    assert decode(json.loads(encode(point))).y == 2
    assert decode(json.loads(encode([Counter("aa"), OrderedDict(a=1), point]))) == [{"a": 2}, {"a": 1}, (1, 2)]


@pytest.mark.parametrize(
    "data",
    [
        {"set": [[1]]},
        {"what": 1},
        {"int": "x"},
        {"a": 1, "b": 2},
        {"dict": [1]},
        {},
        {"complex": []},
        {"complex": ["a", 1]},
        {"named": []},
        {"named": ["P", 1, [1]]},
        {"fraction": [1, 0]},
        {"fraction": [1]},
        {"decimal": "x"},
        {"decimal": "sNaN"},
        {"range": ["a"]},
        {"range": [1, 2, 0]},
        {"date": [0, 0, 0]},
        {"timedelta": [10**30]},
        {"counter": [1]},
        {"frozenset": [[1]]},
        {"deque": 1},
        {"tuple": 1},
        {"bytes": "x"},
    ],
)
def test_malformed_value_from_the_sandbox_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):
        decode(data)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (0, "the kernel has no Landlock, or has turned it off; version 3 is needed (Linux 6.2)"),
        (1, "the kernel's Landlock is version 1; version 3 is needed (Linux 6.2)"),
        (2, "the kernel's Landlock is version 2; version 3 is needed (Linux 6.2)"),
    ],
)
def test_a_landlock_that_would_let_files_be_truncated_is_refused_by_its_version(
    version: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What :func:`landlock.restrict` says is what a failed probe gives as its reason."""
    monkeypatch.setattr(landlock, "abi", lambda: version)
    with pytest.raises(OSError, match=re.escape(reason)):
        landlock.restrict(["/"], "/")


STANDARD = [
    Decimal("0.10"), Fraction(1, 3), range(1, 9, 2), deque([1, (2,)]), Counter("aab"), OrderedDict(b=1, a=2),
    frozenset({1, "a"}), {frozenset({1}): 2}, datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 30),
    datetime.timedelta(days=1, seconds=2), [Decimal("1e400"), 1j], float("inf"),
]  # fmt: skip


@pytest.mark.parametrize("value", STANDARD, ids=lambda v: type(v).__name__)
def test_values_of_the_standard_library_come_out_as_what_they_are(value: Any) -> None:
    found = decode(json.loads(encode(value)))
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_unsafe_is_refused_to_root_and_must_be_asked_for() -> None:
    if os.geteuid() == 0:
        with pytest.raises(UserError, match="never run as root"):
            choose("unsafe")
        with pytest.raises(UserError, match="never run as root"):
            CodeExecutor(isolation="unsafe")
        with pytest.raises(InfrastructureError, match="never run without isolation as root"):
            Sandbox(Kind.UNSAFE, Interpreter.own(), "print(1)", Limits())
    else:
        assert choose("unsafe").kind is Kind.UNSAFE
    assert choose().kind is not Kind.UNSAFE
    with pytest.raises(UserError, match="did you mean landlock"):
        choose("landlok")


def test_without_isolation_it_refuses_and_names_the_probe_and_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bubblewrap that ends at once, and a kernel without Landlock, as the driver would find them."""
    nothing = Interpreter("/bin/false", "/usr")
    monkeypatch.setattr(probe, "_interpreters", lambda: (nothing,))
    choose.cache_clear()
    try:
        with pytest.raises(UserError) as caught:
            choose()
    finally:
        choose.cache_clear()
    text = str(caught.value)
    assert re.search(r"bubblewrap with /bin/false: start: .*landlock with /bin/false: start: ", text)
    assert "apt-get install bubblewrap" in text


def test_a_probe_that_does_not_hold_is_a_reason_not_to_choose() -> None:
    trial = probe.Trial(Kind.LANDLOCK, Interpreter.own(), (probe.Probe("reads", False, "it worked"),))
    assert not trial.works
    assert trial.reason == "reads: it worked"


@pytest.mark.parametrize("kind", [Kind.BUBBLEWRAP, Kind.LANDLOCK])
def test_the_isolation_that_a_target_is_for_is_really_used(kind: Kind) -> None:
    if os.environ.get("GSPO_TESTS_EXPECT") != kind:
        pytest.skip("only make test-sandbox installs bubblewrap, and only .ci/run hides it")
    assert choose().kind is kind


LATE = """
import made

def late():
    from made import part
    with open("notes", "w") as file:
        file.write("mine")
    try:
        open(part.__file__, "a")
    except OSError:
        return [part.value, open("notes").read()]
"""


@pytest.mark.parametrize("parent", ["/var/tmp", "/tmp", "/dev/shm"])
@pytest.mark.parametrize("kind", [Kind.BUBBLEWRAP, Kind.LANDLOCK])
def test_packages_may_lie_where_the_sandbox_has_its_own_files(kind: Kind, parent: str) -> None:
    """Parts that are imported late, too, when the working directory has taken the place of /tmp."""
    try:
        python = choose(kind.value).python
    except UserError:
        pytest.skip(f"{kind} does not work here")
    with tempfile.TemporaryDirectory(prefix="gspo-package-", dir=parent) as folder:
        package = Path(folder, "made")
        package.mkdir()
        for path, text in ((package / "__init__.py", ""), (package / "part.py", "value = 7\n")):
            path.write_text(text)
            path.chmod(0o644)
        for path in (Path(folder), package):
            path.chmod(0o755)
        python = replace(python, packages=(("made", (str(package),)),))
        with Sandbox(kind, python, LATE, Limits()) as box:
            outcome = box.run({"entry": "late", "arguments": []})
    assert (outcome.end, outcome.value) == (End.FINISHED, [7, "mine"]), outcome


def test_a_test_that_sleeps_is_marked_for_a_second_try() -> None:
    chosen = choose()
    with Sandbox(chosen.kind, chosen.python, "import time\ntime.sleep(60)", Limits(cpu_s=0.2)) as box:
        outcome = box.run({"stdin": True, "input": ""})
    assert (outcome.end, outcome.asleep) == (End.TIMEOUT, True)


def test_a_sandbox_that_dies_is_the_infrastructures_fault() -> None:
    chosen = choose()
    with Sandbox(chosen.kind, chosen.python, "print(1)", Limits()) as box:
        assert box.run({"stdin": True, "input": ""}).stdout == "1\n"
        box._driver.process.kill()
        box._driver.process.wait()
        with pytest.raises(InfrastructureError, match="the sandbox ended with"):
            box.run({"stdin": True, "input": ""})


def test_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in (f"gspo-sandbox-{ended.pid}-x", f"gspo-sandbox-{os.getpid()}-y", "gspo-sandbox-z", "other"):
        (tmp_path / name / "test1").mkdir(parents=True)
    warm.sweep()
    assert sorted(os.listdir(tmp_path)) == [f"gspo-sandbox-{os.getpid()}-y", "gspo-sandbox-z", "other"]


ORDINARY = """
import sys
from gspo_lightning.rewards import CodeExecutor
for kind in sys.argv[1:]:
    reward = CodeExecutor(isolation=kind, timeout_s=2)
    tests = {"type": "stdin", "tests": [{"input": "3 4", "output": "7"}]}
    print(kind, reward.score("print(sum(map(int, input().split())))", tests).reward)
    peek = "import os\\nprint(7 if os.path.exists('/etc/passwd') and open('/etc/passwd').read() else 0)"
    print(reward.score(peek, tests).reward)
"""


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_an_ordinary_user_has_the_same_sandboxes() -> None:
    """With the system's interpreter, which such a user can read. ``unsafe`` shows that the peek is no empty try."""
    if not Path("/usr/bin/python3").exists() or os.getuid() == NOBODY:
        pytest.skip("needs /usr/bin/python3: install python3")
    kinds = [trial.kind.value for trial in probe.trials() if trial.works and trial.python.executable.startswith("/usr")]
    package = Path(sys.modules["gspo_lightning"].__file__ or "").parents[1]
    found = subprocess.run(
        ["/usr/bin/python3", "-B", "-c", ORDINARY, *kinds, "unsafe"],
        env={"PYTHONPATH": str(package)},
        user=4242,
        group=4242,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )
    isolated = [word for kind in kinds for word in (kind, "1.0", "0.0")]
    assert found.stdout.split() == [*isolated, "unsafe", "1.0", "1.0"], found.stderr
    assert kinds


def test_settings_that_cannot_work_are_refused() -> None:
    for settings, message in [
        ({"scoring": "some"}, "CodeExecutor.scoring"),
        ({"timeout_s": 0}, "CodeExecutor.timeout_s"),
        ({"total_timeout_s": float("inf")}, "CodeExecutor.total_timeout_s"),
        ({"memory_mb": 1}, "CodeExecutor.memory_mb"),
    ]:
        with pytest.raises(UserError, match=message):
            CodeExecutor(**settings)  # type: ignore[arg-type]
