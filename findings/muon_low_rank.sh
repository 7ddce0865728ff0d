#!/usr/bin/env bash
# Muon of torch rounds to bfloat16 whatever the weights are: of a step on eight rows, two fifths are rounding.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import sys

import torch

SIZE = 256


def muon_step(gradient):
    weight = torch.nn.Parameter(torch.zeros_like(gradient))
    weight.grad = gradient.clone()
    torch.optim.Muon([weight], lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0).step()
    return -weight.detach()


def step_of_singular_values(gradient, rounds=5):
    """The same polynomial, applied to the singular values in float64: no product of matrices rounds."""
    left, values, right = torch.linalg.svd(gradient.double())
    values = values / values.norm()
    for _ in range(rounds):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return (left * values) @ right


torch.manual_seed(0)
off = {}
outside = {}
for rows in (1024, 8):
    layer = torch.nn.Linear(SIZE, SIZE, bias=False)
    torch.nn.functional.mse_loss(layer(torch.randn(rows, SIZE)), torch.randn(rows, SIZE)).backward()
    gradient = layer.weight.grad
    step, exact = muon_step(gradient).double(), step_of_singular_values(gradient)
    off[rows] = ((step - exact).norm() / exact.norm()).item()
    right = torch.linalg.svd(gradient.double())[2][: min(rows, SIZE)]
    outside[rows] = ((step - step @ right.T @ right).norm() / step.norm()).item()

print("torch", torch.__version__, f"- a step of {SIZE} x {SIZE} float32 weights, and the same polynomial in float64:")
for rows in off:
    print(f"gradient of {rows:4} rows: off by {off[rows]:.1%}, {outside[rows]:.1%} of the step outside the inputs' span")
sys.exit(not (off[1024] < 0.05 and off[8] > 0.2))
PROGRAM
venv/bin/python program.py
