#!/usr/bin/env bash
# Two optimizers move weights that have no gradient: the first step of FTRL replaces all of them by 0, Gravity adds noise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 pytorch-optimizer==4.1.0
cat > program.py <<'PROGRAM'
import sys
from importlib.metadata import version

import pytorch_optimizer
import torch

OPTIMIZERS = ("AdamW", "Lion", "Adan", "SOAP", "FTRL", "Gravity")
RATE = 1e-6

moved = {}
for name in OPTIMIZERS:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(0.02 * torch.randn(256, 256))  # as a transformer's
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    settings = {"lr": RATE} if name == "Gravity" else {"lr": RATE, "weight_decay": 0.0}
    getattr(pytorch_optimizer, name)([weight], **settings).step()
    moved[name] = ((weight.detach() - before).norm() / before.norm()).item()

print("pytorch-optimizer", version("pytorch-optimizer"), "torch", torch.__version__)
print(f"one step at a rate of {RATE:g} with a gradient of 0, weight decay 0:")
for name, share in moved.items():
    print(f"{name:8} moves the weights by {share:.1%}")
as_described = moved["FTRL"] == 1.0 and moved["Gravity"] > 0.2
sys.exit(not (as_described and all(moved[name] == 0 for name in OPTIMIZERS[:4])))
PROGRAM
venv/bin/python program.py
