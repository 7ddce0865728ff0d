"""What a processor says of itself decides about the products of a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gspo_lightning.policy.kernels import processor
from gspo_lightning.policy.kernels.processor import bfloat16_instructions, multiplies_bfloat16, prefers_onednn


def test_only_processors_of_another_maker_with_avx512_prefer_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processor, "CPU_INFO", tmp_path / "cpuinfo")
    for maker, wide, wanted in (
        ("AuthenticAMD", "AVX512", True),
        ("GenuineIntel", "AVX512", False),
        ("AuthenticAMD", "AVX2", False),
    ):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda wide=wide: wide)
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nvendor_id : {maker}\n")
        assert prefers_onednn.__wrapped__() is wanted
    (tmp_path / "cpuinfo").unlink()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert prefers_onednn.__wrapped__() is False


def test_instructions_for_bfloat16_are_read_from_the_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPU_INFO", path)
    for flags, wanted in (
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile amx_bf16\n\nprocessor\t: 1\n", "AMX-BF16"),
        ("flags\t\t: fpu avx512f avx512_bf16\n", "AVX512-BF16"),
        ("flags\t\t: fpu avx512f\nbugs\t\t: amx_bf16\n", None),
    ):
        path.write_text(flags)
        assert bfloat16_instructions() == wanted
        assert multiplies_bfloat16.__wrapped__() is (wanted is not None and _supported())
    path.unlink()
    assert bfloat16_instructions() is None


def _supported() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
