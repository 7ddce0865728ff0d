"""Freed memory is kept for the next allocation where it is wanted, and only there."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

ALLOCATE = """
import resource, sys, torch
from gspo_lightning.core.host_memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] != "never":
    keep_freed_memory(torch.device(sys.argv[1]))
def block():
    torch.ones(12 << 20)  # 48 MiB: more than glibc keeps by itself
for _ in range(20):  # what is left over of an aligned block is cached, seven times, before blocks are reused
    block()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    block()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(device: str, **variables: str) -> int:
    """Return the page faults of five allocations of the same size, after a first one."""
    environment = {n: v for n, v in os.environ.items() if n not in ("LD_PRELOAD", "GLIBC_TUNABLES")} | variables
    command = [sys.executable, "-c", ALLOCATE, device]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_memory_freed_in_training_on_a_cpu_is_not_mapped_again() -> None:
    returned = page_faults("never")
    kept = page_faults("cpu")
    assert kept * 10 < returned
    assert page_faults("cuda") * 2 > returned
    assert page_faults("cpu", MALLOC_TRIM_THRESHOLD_="131072") * 2 > returned
