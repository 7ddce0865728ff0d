"""A test that leaves a process group, variables of ranks or a thread behind fails by name, and hurts no other."""

from __future__ import annotations

import pytest

from tests.support import leftovers

CONFTEST = """
import sys

from tests.conftest import no_thread_left_behind_by_a_file, nothing_left_behind


def pytest_sessionfinish():
    sys.modules["test_inner"].over.set()
"""
TESTS = """
import os
import threading

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

over = threading.Event()


def begin():
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())


def test_group():
    begin()


def test_after_a_group():
    assert not dist.is_initialized()
    begin()
    dist.destroy_process_group()


def test_variable():
    os.environ["LOCAL_RANK"] = "1"


def test_after_a_variable(monkeypatch):
    assert "LOCAL_RANK" not in os.environ
    monkeypatch.setenv("LOCAL_RANK", "1")


def test_thread():
    threading.Thread(target=over.wait, name="mine", daemon=True).start()


def test_that_fails_and_leaves():
    begin()
    assert 1 == 2


def test_thread_that_ends():
    threading.Thread(target=lambda: None).start()


@pytest.mark.parametrize("name", ["tqdm_monitor", "ThreadPoolExecutor-3_0"])
def test_thread_of_a_library(name):
    threading.Thread(target=over.wait, name=name, daemon=True).start()


@pytest.fixture(scope="module")
def worker():
    thread = threading.Thread(target=over.wait, name="of the fixture", daemon=True)
    thread.start()
    yield thread


def test_uses_a_thread_of_the_file(worker):
    assert worker.is_alive()


def test_the_last(worker):
    assert worker.is_alive()
"""


class Seen:
    """What the inner session reports."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        """Name of a test and phase -> why it failed there."""
        self.passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("::")[1]
        if report.failed:
            self.found[f"{name} {report.when}"] = str(report.longrepr)
        elif report.when == "call":
            self.passed.add(name)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("inner")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_inner.py").write_text(TESTS)
    seen = Seen()
    options = ["-c", str(folder / "pytest.ini"), "-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:xdist"]
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(leftovers, "GRACE_S", 0.05)
    code = pytest.main([*options, str(folder / "test_inner.py")], plugins=[seen])
    monkeypatch.undo()
    assert code == pytest.ExitCode.TESTS_FAILED
    return seen


def test_who_leaves_something_fails_by_name_and_only_then(seen: Seen) -> None:
    assert set(seen.found) == {
        "test_group teardown", "test_variable teardown", "test_thread teardown", "test_that_fails_and_leaves call",
        "test_that_fails_and_leaves teardown", "test_the_last teardown",
    }  # fmt: skip


def test_the_next_test_is_not_hurt(seen: Seen) -> None:
    assert {"test_after_a_group", "test_after_a_variable", "test_thread_that_ends"} <= seen.passed


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("test_group", "test_inner.py::test_group left behind a torch.distributed process group (fake, 2 ranks)"),
        ("test_variable", "test_inner.py::test_variable left behind the environment variables LOCAL_RANK"),
        ("test_thread", "test_inner.py::test_thread left behind the thread 'mine'"),
        ("test_that_fails_and_leaves", "test_that_fails_and_leaves left behind a torch.distributed process group"),
        ("test_the_last", "a fixture of test_inner.py left behind the thread 'of the fixture'"),
    ],
)
def test_the_message_says_what_and_how_to_clean(seen: Seen, phase: str, words: str) -> None:
    message = seen.found[f"{phase} teardown"]
    assert words in message
    assert "fix: dist.destroy_process_group()" in message
