#!/usr/bin/env bash
# ExplainedVariance is 1.001 where it is .991, and 0 a little further: its sums of float32 squares cancel if the mean is large.
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
from torchmetrics.regression import ExplainedVariance

torch.manual_seed(0)
noise, error = torch.randn(1000), torch.randn(1000)
print("torchmetrics", torchmetrics.__version__, "torch", torch.__version__, "- a thousand targets of standard deviation 1:")
off = {}
for mean in (0, 100, 10_000, 100_000):
    target = noise + mean
    predicted = target + 0.1 * error
    exact = (1 - (target.double() - predicted.double()).var() / target.double().var()).item()
    said = ExplainedVariance()(predicted, target).item()
    off[mean] = abs(said - exact)
    print(f"mean {mean:7,}: ExplainedVariance {said:.4f}, float64 on the same numbers {exact:.4f}")
sys.exit(not (off[0] < 1e-4 and off[10_000] > 1e-3))
PROGRAM
venv/bin/python program.py
