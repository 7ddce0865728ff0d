#!/usr/bin/env bash
# Three optimizers never train a matrix of a low-rank adapter, a fourth throws it away: its first gradient, or it, is 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 pytorch-optimizer==4.1.0 \
  heavyball==3.2.1
cat > program.py <<'PROGRAM'
import sys
import warnings
from importlib.metadata import version

import heavyball
import pytorch_optimizer
import torch

RATE, STEPS = 1e-4, 20
OPTIMIZERS = (
    (pytorch_optimizer, "AdamW"), (pytorch_optimizer, "SGDSaI"), (pytorch_optimizer, "RACS"),
    (heavyball, "ADOPT"), (heavyball, "HyperBallAdamW"),
)

warnings.filterwarnings("ignore")
moves = {}
for package, name in OPTIMIZERS:
    torch.manual_seed(0)
    inputs, targets = torch.randn(64, 32), torch.randn(64, 24)
    frozen = torch.randn(24, 32) / 6
    a = torch.nn.Parameter(torch.randn(4, 32) / 6)  # as PEFT begins: A random, B zero
    b = torch.nn.Parameter(torch.zeros(24, 4))
    begin = a.detach().clone()
    optimizer = getattr(package, name)([a, b], lr=RATE, weight_decay=0.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (inputs @ (frozen + b @ a).t() - targets).square().mean().backward()
        optimizer.step()
    moves[name] = ((a.detach() - begin).norm().item(), b.detach().norm().item())

for package in ("torch", "pytorch-optimizer", "heavyball"):
    print(package, version(package))
print(f"{STEPS} steps at a rate of {RATE:g}; the first gradient of A is 0, because B is 0:")
for name, (of_a, of_b) in moves.items():
    print(f"{name:14} A moves by {of_a:.1e}, B by {of_b:.1e}")
as_described = moves["SGDSaI"][0] == 0 < moves["SGDSaI"][1] and moves["RACS"][0] < 1e-6 * moves["RACS"][1]
as_described &= moves["ADOPT"][0] > 30 * moves["AdamW"][0] and moves["HyperBallAdamW"] == (0, 0)
sys.exit(not as_described)
PROGRAM
venv/bin/python program.py
