"""What a test must not leave to the next one of its process: a process group, variables of ranks, threads."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Set
from weakref import WeakSet

__all__ = ["RANK_VARIABLES", "describe", "end_group_and_ranks", "threads_left"]

RANK_VARIABLES = (
    "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
)  # fmt: skip
"""What Lightning and torchrun tell ranks by: a process that has them takes itself for one."""

HARMLESS = {
    r"tqdm_monitor": "tqdm's own, one for the whole process: it only refreshes bars that have not moved",
    r"ThreadPoolExecutor-\d+_\d+": "transformers' loading leaves its pool to the garbage collector where it fails",
    r"child-process-observer": "Lightning's, which sleeps 5 s between two looks at the ranks that it has started",
    r"environment-method": "a plain method of a user that hangs is left behind (rollouts/environments/environment.py)",
    r"environments-blocked": "so can an async one that never awaits (rollouts/environments/host.py)",
}
"""Patterns of the names of threads that may outlive a test, and why; what the package starts else is joined."""

GRACE_S = 5.0
"""For a thread that is just ending: its owner was closed without waiting for it."""

_named: WeakSet[threading.Thread] = WeakSet()


def end_group_and_ranks() -> list[str]:
    """End the default process group and take away the variables of ranks; says what there was."""
    import torch.distributed as dist  # not above: see tests/conftest.py

    left = []
    if dist.is_available() and dist.is_initialized():
        left.append(f"a torch.distributed process group ({dist.get_backend()}, {dist.get_world_size()} ranks)")
        dist.destroy_process_group()
    variables = [name for name in RANK_VARIABLES if os.environ.pop(name, None) is not None]
    return left + ([f"the environment variables {', '.join(variables)}"] if variables else [])


def threads_left(before: Set[threading.Thread]) -> list[str]:
    """The threads that were started since and do not end, each named once; harmless ones are not among them."""
    end = time.monotonic() + GRACE_S
    left = [t for t in threading.enumerate() if t not in before | set(_named) and not _harmless(t)]
    for thread in left:
        thread.join(max(0.0, end - time.monotonic()))
    left = [thread for thread in left if thread.is_alive()]
    _named.update(left)
    return [f"the thread {thread.name!r}" for thread in left]


def describe(left: Iterable[str], of: str) -> str:
    """What was left behind, by whom, and how to clean up."""
    return (
        f"{of} left behind {'; '.join(left)}. A later test of the same process may fail by it.\n"
        "  fix: dist.destroy_process_group() in a finally or after the yield of a fixture; monkeypatch.setenv for "
        "variables of ranks; close() or join() what has started a thread, or use it as a context manager. Where a "
        "command of gspo left it, mend the command."
    )


def _harmless(thread: threading.Thread) -> bool:
    return any(re.fullmatch(pattern, thread.name) for pattern in HARMLESS)
