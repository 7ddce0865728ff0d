"""Two ranks: a function in two processes of one gloo group, or a whole ``gspo fit`` on several."""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies.launchers import subprocess_script

from tests.runs import runs
from tests.runs.processes import SERVER, Command, _child

__all__ = ["WORLD", "fit_on_ranks", "launched", "started", "two_ranks"]

WORLD = 2


def two_ranks(task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``task(rank, *arguments)`` in two processes of one group; its results, or errors as text, by rank."""
    results = SERVER.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        ranks = [SERVER.Process(target=_join, args=(rank, store, results, task, arguments)) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        try:
            by_rank = dict(results.get(timeout=60) for _ in ranks)
        finally:
            for process in ranks:
                process.join(20)
                process.kill()
    return [by_rank[rank] for rank in range(WORLD)]


def _join(rank: int, store: str, results: Any, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=20))
    try:
        result: Any = task(rank, *arguments)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    results.put((rank, result))
    dist.destroy_process_group()


def fit_on_ranks(
    root: Path, *options: str, overlay: str = "", config: Path = runs.QUICKSTART, ranks: int = WORLD,
    prepare: Callable[[], None] | None = None,
) -> Path:  # fmt: skip
    """``gspo fit`` on so many ranks, small and on a CPU; ``overlay`` is a strategy's config. Returns the only run."""
    argv = ["fit", f"--config={config}", *([f"--config={runs.ROOT / 'configs' / overlay}.yaml"] if overlay else [])]
    argv += [option for option in runs.SMALL if option != runs.FEW_PROMPTS or config == runs.QUICKSTART]
    argv += ["--trainer.accelerator=cpu", *options, f"--trainer.devices={ranks}", f"--trainer.default_root_dir={root}"]
    log = root.with_suffix(".log")
    codes = Command(argv, ranks, log=log, prepare=prepare).start().wait(240)
    assert set(codes) == {0}, log.read_text()
    (run,) = (root / config.stem).iterdir()
    return run


def launched(
    argv: Sequence[str], folder: Path, log: Path, prepare: Callable[[], None] | None = None
) -> tuple[list[int | None], list[str]]:
    """``gspo`` on two ranks, of which the first hands its arguments to the second, as Lightning's launcher does.

    Both ranks are forked from the tests' server: an interpreter started anew would only add its imports.

    Args:
        argv: arguments of the command, with ``--trainer.devices=2``.
        folder: working directory.
        log: what both ranks say.
        prepare: called in the first rank before the command; must be importable.

    Returns:
        The exit codes, and the arguments of the second rank.
    """
    handed = log.with_suffix(".handed")
    handed.unlink(missing_ok=True)
    first = Command(argv, log=log, prepare=partial(_hand_on, str(folder), str(handed), prepare)).start()
    while not handed.is_file():
        if not first.processes[0].is_alive():  # it ended before it had started another rank
            return first.wait(), []
        time.sleep(0.01)
    content = json.loads(handed.read_text())
    second = SERVER.Process(
        target=_child, args=(content["argv"], content["variables"], "", str(log), partial(os.chdir, folder))
    )
    second.start()
    first.processes.append(second)
    return first.wait(240), content["argv"]


def _hand_on(folder: str, handed: str, prepare: Callable[[], None] | None) -> None:
    """In the first rank: write the second one's arguments to a file instead of starting it."""
    os.chdir(folder)
    if prepare is not None:
        prepare()

    def start(command: list[str], env: dict[str, str], cwd: str | None) -> SimpleNamespace:
        assert cwd is None
        names = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")
        variables = {name: env[name] for name in names}
        unfinished = Path(f"{handed}.unfinished")
        unfinished.write_text(json.dumps({"argv": sys.argv[1:], "variables": variables}))
        unfinished.rename(handed)
        assert command[-len(sys.argv[1:]) :] == sys.argv[1:]
        return SimpleNamespace(poll=lambda: None, pid=None, send_signal=lambda _: None)

    subprocess_script.subprocess = SimpleNamespace(Popen=start)


def started(argv: Sequence[str], log: Path, seconds: float = 60.0) -> int:
    """``gspo`` as one process that starts the other ranks itself, and ends as a command does; all of them forked.

    Returns:
        The exit code of the first rank.

    Raises:
        TimeoutError: it has not ended, with what it said.
    """
    (code,) = Command(argv, log=log, prepare=_start_ranks).start().wait(seconds)
    return -1 if code is None else code


def _start_ranks() -> None:
    """In the first rank, before the command: fork the second one, which waits until Lightning starts it."""
    parent_end, child_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_wait_to_start, args=(parent_end, child_end))
    process.start()
    subprocess_script.subprocess = SimpleNamespace(Popen=partial(_Forked, process, parent_end))
    util.Finalize(None, _as_a_command_ends, (parent_end,), exitpriority=10)


def _as_a_command_ends(parent_end: Connection) -> None:
    """A forked process ends without this."""
    atexit._run_exitfuncs()
    parent_end.close()


def _wait_to_start(parent_end: Connection, child_end: Connection) -> None:
    from gspo_lightning.cli import main

    parent_end.close()
    with contextlib.suppress(EOFError):  # the command did not come so far
        argv, variables = child_end.recv()
        os.environ.update(variables)
        os.setsid()
        code = main(argv)
        sys.stdout.flush()
        sys.exit(code)


class _Forked:
    """The second rank: what is used of a :class:`subprocess.Popen`."""

    def __init__(
        self, process: BaseProcess, parent_end: Connection, command: list[str], env: dict[str, str], cwd: str | None
    ) -> None:
        assert cwd is None
        assert command[-len(sys.argv[1:]) :] == sys.argv[1:]
        names = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")
        parent_end.send((sys.argv[1:], {name: env[name] for name in names}))
        assert process.pid is not None
        self._lock, self._process, self.pid = threading.Lock(), process, process.pid

    def poll(self) -> int | None:
        with self._lock:  # several threads ask
            return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.02)
        return code

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended in this moment
                os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
