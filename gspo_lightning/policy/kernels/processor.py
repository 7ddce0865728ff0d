"""Choices by the flags of this machine's processor, and not by a timing: the same in every run."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import torch

BFLOAT16 = {"amx_bf16": "AMX-BF16", "avx512_bf16": "AVX512-BF16"}
"""Flag of a processor -> name of its instructions for products of bfloat16, the faster ones first."""
CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def prefers_onednn() -> bool:
    """True if oneDNN has wider kernels than MKL on this processor."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    return CPU_INFO.is_file() and "AuthenticAMD" in CPU_INFO.read_text(errors="replace")


def bfloat16_instructions() -> str | None:
    """Return the name of this processor's instructions for products of bfloat16; None without them or off Linux."""
    if not CPU_INFO.is_file():
        return None
    flags = re.search(r"^flags\s*:(.*)$", CPU_INFO.read_text(errors="replace"), re.MULTILINE)
    words = set() if flags is None else set(flags[1].split())
    return next((name for flag, name in BFLOAT16.items() if flag in words), None)


@functools.cache
def multiplies_bfloat16() -> bool:
    """True if products of bfloat16 are the fast ones here: the instructions are there, and oneDNN may use them.

    ``ATEN_CPU_CAPABILITY`` and ``ONEDNN_MAX_CPU_ISA`` may forbid them; PyTorch then refuses packed weights.
    """
    if bfloat16_instructions() is None or not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
