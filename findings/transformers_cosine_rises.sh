#!/usr/bin/env bash
# get_cosine_schedule_with_warmup rises after its last step: twice as many steps end at the full learning rate.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check transformers==5.19.0 torch==2.13.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import sys

import torch
import transformers

STEPS = 10


def rates(name, **options):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = transformers.get_scheduler(name, optimizer, 0, STEPS, options or None)
    found = []
    for _ in range(2 * STEPS + 1):
        found.append(round(schedule.get_last_lr()[0], 3))
        optimizer.step()
        schedule.step()
    return found


print("transformers", transformers.__version__, f"- made for {STEPS} steps, used for {2 * STEPS}: rates at steps 0, 5, 10, 15, 20")
cosine, lowest = rates("cosine"), rates("cosine_with_min_lr", min_lr_rate=0.1)
for name, found in {"cosine": cosine, "cosine_with_min_lr": lowest, "linear": rates("linear")}.items():
    print(f"{name}:", found[::5])
sys.exit(not (cosine[10] == 0 and cosine[20] == 1 and rates("linear")[20] == 0))
PROGRAM
venv/bin/python program.py
