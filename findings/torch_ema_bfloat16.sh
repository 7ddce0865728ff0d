#!/usr/bin/env bash
# An average of bfloat16 weights never moves: at decay .999 each step is less than half of the last bit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import sys

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

UPDATES = 5000


def moved(dtype, decay):
    """Share of the way from the old weights to the new ones, and share of weights that moved at all."""
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 256, bias=False).to(dtype)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    average.update_parameters(model)
    start = average.module.weight.detach().clone()
    with torch.no_grad():
        model.weight.mul_(1.5)
    for _ in range(UPDATES):
        average.update_parameters(model)
    way = (model.weight - start).float().norm()
    return ((average.module.weight - start).float().norm() / way).item(), (average.module.weight != start).float().mean().item()


print("torch", torch.__version__, f"- weights grow by half at once, then {UPDATES} updates of their average:")
found = {}
for dtype in (torch.float32, torch.bfloat16):
    for decay in (0.999, 0.9):
        found[dtype, decay] = moved(dtype, decay)
        print(f"{dtype}, decay {decay}: {found[dtype, decay][0]:.1%} of the way; {found[dtype, decay][1]:.1%} of weights moved")
half = found[torch.bfloat16, 0.9][0]
sys.exit(not (found[torch.float32, 0.999][0] > 0.99 and found[torch.bfloat16, 0.999] == (0, 0) and half < 0.99))
PROGRAM
venv/bin/python program.py
