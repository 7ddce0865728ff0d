"""Kernels for log-probabilities beside their definition in float64: Triton's interpreter runs them on a CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.policy.kernels.fused import difference, kernels_for
from gspo_lightning.policy.logprobs import DEFINITION
from tests import ROOT

CPU = torch.device("cpu")
PROGRAM = """
import json, torch
from gspo_lightning.policy.kernels import fused_logprobs
from gspo_lightning.policy.kernels.fused import difference
from gspo_lightning.policy.logprobs import DEFINITION
found = {}
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for vocabulary in (3, 4096, 9001):
        found[f"{dtype} {vocabulary}"] = difference(
            fused_logprobs, torch.device("cpu"), dtype, vocabulary, DEFINITION)
logits, targets = torch.tensor([[2.0, -torch.inf, 1.0]]), torch.tensor([2])
out = [torch.empty(1) for _ in range(3)]
fused_logprobs.measure(logits, targets, 0.5, *out)
gradient = torch.empty_like(logits)
fused_logprobs.differentiate(gradient, logits, targets, 0.5, out[2], out[1], torch.ones(1), None)
print(json.dumps([found, [float(x) for x in out], gradient.tolist()]))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton, which comes with PyTorch for CUDA")
def test_kernels_give_what_the_definition_gives_in_float64() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, timeout=300,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found, (chosen, entropy, log_z), gradient = json.loads(done.stdout.splitlines()[-1])
    assert found == dict.fromkeys(found, "")
    # logits 4 and 2 after the temperature: p = (.8808, 0, .1192)
    assert (chosen, entropy, log_z) == pytest.approx((-2.126928, 0.365334, 4.126928), abs=1e-5)
    assert gradient[0] == pytest.approx([-2 * 0.880797, 0.0, 2 * 0.880797], abs=1e-5)


def as_kernels(measure: Callable[..., None], differentiate: Callable[..., None]) -> Any:
    return SimpleNamespace(measure=measure, differentiate=differentiate)


def test_the_comparison_at_the_start_sees_a_wrong_value_and_a_wrong_gradient() -> None:
    def without_temperature(logits: Tensor, targets: Tensor, temperature: float, *rest: Tensor) -> None:
        DEFINITION[0](logits, targets, 1.0, *rest)

    def without_entropy(*arguments: Any) -> None:
        DEFINITION[1](*arguments[:-1], None)

    assert difference(as_kernels(*DEFINITION), CPU, torch.float32, 5000, DEFINITION) == ""
    said = difference(as_kernels(without_temperature, DEFINITION[1]), CPU, torch.float32, 5000, DEFINITION)
    assert said.startswith("log-probabilities that are off by ")
    said = difference(as_kernels(DEFINITION[0], without_entropy), CPU, torch.bfloat16, 5000, DEFINITION)
    assert said.startswith("gradients that are off by ")


def test_a_cpu_computes_by_the_definition() -> None:
    assert kernels_for(torch.zeros(2, 5), DEFINITION) is None
