"""Families in processes of their own: one that hangs, eats the memory or dies takes nobody with it."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import resource
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["measure_all", "serve"]

ROOT = Path(__file__).parents[2]


def serve(memory: int) -> None:
    """What a process does: a family a line on standard input, a row of the table a line on the old standard output.

    Args:
        memory: bytes of address space.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what models print
    import torch

    from tools.models.measure import measure

    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(measure(line.strip()))), file=answers, flush=True)


class _Worker:
    """A process that is started again when it is lost."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, family: str, limit: float) -> dict[str, object]:
        """The row of a family; one that says why where there is none."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tools.models", "--serve", str(self.memory)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
                "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{family}\n".encode())
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], limit)
        line = self.process.stdout.readline() if ready else b""
        if line:
            answer: dict[str, object] = json.loads(line)
            return answer
        reason = "its process died" if ready else f"took more than {limit:g} s"
        self.close()
        from tools.models.tiny import class_name  # not before a process has a limit: this imports torch

        return {"family": family, "kind": class_name(family), "reason": reason, "built": False}

    def close(self) -> None:
        """Nothing of it is left."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def measure_all(
    families: Sequence[str], jobs: int, limit: float, memory: int, done: Callable[[dict[str, object]], None]
) -> None:
    """Ask ``jobs`` processes for the rows of all families; ``done`` is told each as it comes, in any order.

    Args:
        families: model types.
        jobs: processes at a time.
        limit: seconds for a family; the first of a process pays for its imports, too.
        memory: bytes of a process.
        done: called by one thread at a time.
    """
    waiting: queue.Queue[str] = queue.Queue()
    for family in families:
        waiting.put(family)
    lock = threading.Lock()

    def work() -> None:
        worker = _Worker(memory)
        try:
            while True:
                row = worker.ask(waiting.get_nowait(), limit)
                with lock:
                    done(row)
        except queue.Empty:
            pass
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(min(jobs, len(families)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
