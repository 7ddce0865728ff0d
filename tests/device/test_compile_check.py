"""Kernels compiled for a GPU that is not there: reading, comparing, and what is compiled at all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from benchmarks import compile_check
from benchmarks.compile_check import DTYPES, PARTS, SHARED, SIZES, TABLE, found_worse, main
from benchmarks.models import build_model, word_tokenizer
from benchmarks.simulated import compiler
from benchmarks.simulated.compiler import Kernel, read_log
from benchmarks.simulated.kernels import SHAPE, counted_kernels
from gspo_lightning.policy.attention.flex import BLOCK, kernel_options
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.policy import Policy

LOG = """ptxas info    : Function properties for triton_tem_fused_flex_attention_backward_1
    528 bytes stack frame, 624 bytes spill stores, 544 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 528 bytes cumulative stack size
"""
KERNEL = Kernel("forward", "M=64 N=64", 4, 2, 100_000, 255, 624, wgmma=True, seconds=1.0)


def test_ptxas_is_read() -> None:
    assert read_log(LOG) == {"registers": 255, "spill_bytes": 624}
    with pytest.raises(ValueError, match="does not say registers and spills"):
        read_log("ptxas info    : 0 bytes gmem")


@pytest.mark.parametrize(("change", "said"), [
    ({}, []),
    ({"spill_bytes": 0, "registers": 32, "seconds": 99.0}, []),
    ({"spill_bytes": 628}, ["spills: 624 to 628 bytes"]),
    ({"shared_bytes": 100_004, "wgmma": False}, ["shared memory: 100000 to 100004 bytes", "no wgmma any more"]),
    ({"shared_bytes": SHARED}, [f"shared memory: 100000 to {SHARED} bytes"]),
])  # fmt: skip
def test_compile_check_names_each_kernel_regression(change: dict[str, int], said: list[str]) -> None:
    before = dataclasses.asdict(KERNEL)
    assert found_worse(before | change, before) == said


def test_a_new_kernel_must_fit_only() -> None:
    assert found_worse(dataclasses.asdict(KERNEL), {}) == []
    too_large = dataclasses.asdict(KERNEL) | {"shared_bytes": SHARED + 1}
    assert found_worse(too_large, {}) == ["does not fit into 232448 bytes of shared memory"]


def test_a_run_compares_with_the_table_that_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [dataclasses.replace(KERNEL, part=part) for part in PARTS]
    monkeypatch.setattr(compile_check, "TABLE", tmp_path / "table.json")
    monkeypatch.setattr(compiler, "versions", lambda: {"torch": "2"})
    monkeypatch.setattr(compiler, "attention_kernels", lambda *_: iter(made))
    only = ["--sizes", "64", "--dtypes", "bfloat16"]
    assert main([*only, "--write"]) == 0
    assert main([*only, "--output", str(tmp_path / "now.json")]) == 0
    assert (tmp_path / "now.json").read_text() == (tmp_path / "table.json").read_text()
    made[1] = dataclasses.replace(made[1], spill_bytes=700)
    assert main(only) == 1
    assert "worse: spills: 624 to 700 bytes" in capsys.readouterr().out
    made.pop()
    assert main([*only, "--write"]) == 1
    assert "1 of 3 kernels were not compiled" in capsys.readouterr().err


def test_every_committed_kernel_fits() -> None:
    kernels = json.loads(TABLE.read_text())["kernels"]
    assert list(kernels) == [f"{size} {dtype} {part}" for size in SIZES for dtype in DTYPES for part in PARTS]
    assert all(found_worse(kernel, kernel) == [] for kernel in kernels.values())


def test_blocks_of_the_options_divide_the_blocks_of_the_mask() -> None:
    for size in SIZES:
        for dtype in DTYPES:
            options = kernel_options(size, getattr(torch, dtype))
            assert all(BLOCK % value == 0 for name, value in options.items() if "BLOCK" in name)


@pytest.mark.thorough
def test_kernel_options_are_constants_of_the_graphs() -> None:
    graphs = compiler.traced(96, torch.float32)
    assert sorted(graphs) == sorted(PARTS)
    for graph, _ in graphs.values():
        (options,) = (x for node in graph.graph.nodes for x in node.args if isinstance(x, dict))
        assert kernel_options(96, torch.float32).items() <= options.items()


def test_checks_of_a_model_compile_nothing_in_the_dtype_of_its_weights() -> None:
    with counted_kernels() as found:
        policy = Policy(build_model(SHAPE), word_tokenizer(SHAPE.vocabulary))
        choose_layout(policy, "packed", 75, torch.device("cpu"), torch.bfloat16)
        assert found.compiled == 0
        choose_layout(policy, "packed", 75, torch.device("cpu"), torch.float32)
    assert found.dtypes == {torch.float32}
