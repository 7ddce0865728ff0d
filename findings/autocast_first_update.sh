#!/usr/bin/env bash
# Under autocast to bfloat16 the first small update of AdamW is tens of times too large from a float16 checkpoint, and not seen from a bfloat16 one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import sys

import torch

RATE, SIZE = 1e-6, 512


def moved(dtype, updates):
    """How far `updates` steps of AdamW against one gradient move a layer's outputs under autocast, relative to float32."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(SIZE, SIZE, bias=False)
    x, goal = torch.randn(256, SIZE).bfloat16().float(), torch.randn(256, SIZE)
    with torch.no_grad():
        layer.weight.copy_((0.09 * torch.randn(SIZE, SIZE)).to(dtype))  # a checkpoint in this dtype, loaded in float32

    def outputs():
        with torch.no_grad():
            plain = layer(x)
            with torch.autocast("cpu", torch.bfloat16):
                copy = layer.weight.to(torch.bfloat16).float()  # what autocast multiplies with
            return plain.double(), x.double() @ copy.double().t()

    optimizer = torch.optim.AdamW(layer.parameters(), lr=RATE, weight_decay=0.0)
    before, before_rounded = outputs()
    for _ in range(updates):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (layer(x).float() * goal).sum()
        loss.backward()
        optimizer.step()
    after, after_rounded = outputs()
    move = after - before
    return float(((after_rounded - before_rounded) * move).sum() / move.square().sum())


print("torch", torch.__version__, f"- AdamW, rate {RATE:g}; move of outputs under autocast, relative to the move in float32:")
found = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    found[dtype] = [moved(dtype, updates) for updates in (1, 30)]
    print(f"weights of a {dtype} checkpoint: {found[dtype][0]:.2f} after one update, {found[dtype][1]:.2f} after thirty")
half, brain = found[torch.float16], found[torch.bfloat16]
sys.exit(not (0.7 < found[torch.float32][0] < 1.3 and half[0] > 15 and half[1] < 3 and max(brain) < 0.15))
PROGRAM
venv/bin/python program.py
