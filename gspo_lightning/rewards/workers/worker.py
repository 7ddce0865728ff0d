"""Reward worker: ``python -m gspo_lightning.rewards.workers.worker``, frames in on stdin, frames out on stdout.

The process never imports torch (unless a plug-in's own module does) and has a bounded address space and CPU time. It
ends with its parent: at the end of stdin when idle, by a signal of the kernel when busy.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import mmap
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import InfrastructureError, UserError, is_own, place_of
from gspo_lightning.core.escape import escaped_logs
from gspo_lightning.core.output import forgiving
from gspo_lightning.core.registry import load_source
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Sample, Score, ScoreStatus
from gspo_lightning.rewards.workers.judge import is_refusal, judge
from gspo_lightning.rewards.workers.protocol import LENGTH_BYTES, Setup, body_length, json_frame

_PR_SET_PDEATHSIG = 1
_MEBIBYTE = 1 << 20
_DETAIL_CHARACTERS = 500
_TRACE_CHARACTERS = 20_000


@escaped_logs()
def main() -> int:
    """Serve until stdin ends, then return exit code 0; return 1 if the worker could not start."""
    requests, descriptor = take_over_pipes()
    replies = _Replies(descriptor)
    setup: Setup | None = _read(requests)
    if setup is None:
        return 0
    die_with_parent(setup.parent_pid)
    try:
        rewards = _start(setup)
    except BaseException as error:
        replies.say(t="broken", error=_one_line(error), trace=_trace())
        return 1
    replies.say(t="ready", cpu=time.process_time())
    while (task := _read(requests)) is not None:
        name, samples = task
        _serve(replies, name, rewards[name], samples, rewards[name].deadline_s or setup.deadline_s)
        replies.say(t="done", mb=_address_space_mb(), cpu=time.process_time())
    return 0


class _Replies:
    """The pipe to the runner, written only by the worker process itself.

    A reward may fork. A child that returns from the reward, with a result or an exception, would go on as a second
    worker on the same pipes. It is ended here, and leaves a flag in shared memory.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._worker = os.getpid()
        self._word = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def child_returned(self) -> bool:
        """True if a forked child has returned from a reward."""
        return self._word[0] == 1

    def say(self, **message: object) -> None:
        """Send a message, or end the process if it is not the worker."""
        if os.getpid() != self._worker:
            self._word[0] = 1
            os._exit(1)
        view = memoryview(json_frame(message))
        while view:
            view = view[os.write(self._descriptor, view) :]


def take_over_pipes() -> tuple[int, int]:
    """Take private copies of stdin and stdout: plug-ins then print to stderr and read an empty stdin.

    Writing to stderr never fails a reward, even if its reader is gone.
    """
    requests = os.dup(0)
    replies = os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = forgiving(sys.stdout)
    sys.stderr = forgiving(sys.stderr)
    return requests, replies


def die_with_parent(parent_pid: int, by: int = signal.SIGKILL) -> None:
    """Have the kernel kill this process when its parent thread ends; a busy worker does not notice the end of stdin."""
    with contextlib.suppress(OSError, AttributeError):  # another C library: the CPU limit still ends an orphan
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before it could be watched
        os._exit(0)


def _start(setup: Setup) -> dict[str, Reward]:
    sys.path[:] = setup.sys_path
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rewards: dict[str, Reward] = _Unpickler(setup).load()
    _limit(resource.RLIMIT_AS, setup.memory_mb * _MEBIBYTE)
    for reward in rewards.values():
        reward.prepare()
    return rewards


class _Unpickler(pickle.Unpickler):
    """Unpickler that imports a plug-in file only for a reward defined in it.

    Other files are not imported: an objective in the same list of plug-ins would bring torch into the worker.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(io.BytesIO(setup.rewards))
        self._setup = setup

    def find_class(self, module_name: str, global_name: str) -> Any:
        file = self._setup.plugin_files.get(module_name)
        if file is not None and module_name not in sys.modules:
            load_source(module_name, Path(file))
        return super().find_class(module_name, global_name)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (ceiling, hard))


def _serve(replies: _Replies, name: str, reward: Reward, samples: Sequence[Sample], deadline_s: float) -> bool:
    """Score the samples of a task, sending each score when it is found; False if the reward failed."""
    done = 0
    try:
        while done < len(samples):
            _limit_cpu(deadline_s)
            try:
                for score in judge(name, reward, samples[done:]):
                    _check_children(replies, name)
                    _send(replies, score)
                    done += 1
                    _limit_cpu(deadline_s)
            except MemoryError:
                if reward.batched and len(samples) > 1:  # score one by one to find the sample
                    return all(_serve(replies, name, reward, [sample], deadline_s) for sample in samples)
                _send(replies, Score.model_error("memory"))
                done += 1
    except InfrastructureError as error:
        replies.say(t="unavailable", reason=_one_line(error))
        return False
    except BaseException as error:  # a plug-in's SystemExit, too: the runner decides
        if is_refusal(error, name) or (isinstance(error, UserError) and is_own(type(reward))):
            replies.say(t="refused", field=error.field, problem=error.problem, fix=error.fix)
        else:
            at = str(place_of(error) or "")
            replies.say(t="raised", id=samples[done].id, error=_one_line(error), trace=_trace(), at=at)
        return False
    return True


def _limit_cpu(deadline_s: float) -> None:
    """Limit CPU time in the kernel, as a backup of the runner's deadline: an orphan cannot burn CPU for ever."""
    _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + 2 * deadline_s + 5))


def _check_children(replies: _Replies, name: str) -> None:
    """Check that no child of a reward has returned from it."""
    if replies.child_returned:
        raise UserError(
            f"rewards.{name}",
            "forks, and the child comes back from score() as if it were the worker",
            fix="end the child with os._exit(), or start it with subprocess",
        )


def _send(replies: _Replies, score: Score) -> None:
    detail = score.detail[:_DETAIL_CHARACTERS]
    more: dict[str, Any] = {}  # what most scores do not have
    if score.logged:
        more["m"] = dict(score.logged)
    if score.extra:
        more["x"] = dict(score.extra)
    if score.steps:
        more["p"] = score.steps
    if score.single:
        more["f"] = True
    status = ScoreStatus(score.status).value
    replies.say(t="score", r=score.reward, s=status, d=detail, cpu=time.process_time(), **more)


def _read(requests: int) -> Any:
    """Read the next request; None at the end of the stream."""
    header = _read_exactly(requests, LENGTH_BYTES)
    if header is None:
        return None
    body = _read_exactly(requests, body_length(header))
    return None if body is None else pickle.loads(body)


def _read_exactly(requests: int, count: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < count:
        piece = os.read(requests, min(count - len(pieces), _MEBIBYTE))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)


def _address_space_mb() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize() // _MEBIBYTE


def _trace() -> str:
    """Return the end of the current traceback; messages may hold whole completions, so it is cut in front."""
    return traceback.format_exc()[-_TRACE_CHARACTERS:]


def _one_line(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text[:_DETAIL_CHARACTERS]}" if text else type(error).__name__


if __name__ == "__main__":
    try:
        code = main()
    except (KeyboardInterrupt, BrokenPipeError):  # Ctrl-C and a closed runner are no errors of this process
        code = 0
    os._exit(code)  # threads of plug-ins cannot hold it up
