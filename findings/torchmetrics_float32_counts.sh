#!/usr/bin/env bash
# SumMetric counts in float32: at 16,777,216 it stops, and a weighted MeanMetric takes no small weights any more.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import sys

import torch
import torchmetrics

total = torchmetrics.SumMetric()
total.update(2**24)
mean = torchmetrics.MeanMetric()
mean.update(1.0, weight=2**25)
for _ in range(1000):
    total.update(1)
    mean.update(0.0, weight=1)
wide = torchmetrics.SumMetric().set_dtype(torch.float64)
wide.update(2**24)
for _ in range(1000):
    wide.update(1)

print("torchmetrics", torchmetrics.__version__, "torch", torch.__version__)
print("2^24, then a thousand times 1:", int(total.compute().item()), "- exact:", 2**24 + 1000)
print("the same after set_dtype(torch.float64):", int(wide.compute().item()))
print("mean of 2^25 ones and 1,000 zeros:", mean.compute().item(), "- exact:", 2**25 / (2**25 + 1000))
sys.exit(not (total.compute() == 2**24 and wide.compute() == 2**24 + 1000 and mean.compute() == 1))
PROGRAM
venv/bin/python program.py
