#!/usr/bin/env bash
# bitsandbytes takes nesterov, dampening, amsgrad and a momentum of RMSprop, and ignores them; its Adam decays as AdamW.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check bitsandbytes==0.50.2 torch==2.13.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import sys
import warnings

import bitsandbytes
import torch

torch.manual_seed(0)
START = torch.randn(64, 96)
GRADIENTS = [torch.randn(64, 96) * (3 if step == 0 else 0.1) for step in range(20)]


def trained(optimizer_class, **settings):
    weight = torch.nn.Parameter(START.clone())
    optimizer = optimizer_class([weight], lr=1e-3, **settings)
    for gradient in GRADIENTS:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def difference(weights, others):
    return ((weights - others).norm() / (others - START).norm()).item()


print("bitsandbytes", bitsandbytes.__version__, "torch", torch.__version__, "- how much a setting changes 20 updates, here and there:")
as_described = True
plain = {"SGD": {"momentum": 0.9}, "Adam": {"betas": (0.9, 0.9)}, "RMSprop": {}}
changes = [
    ("SGD", {"nesterov": True}), ("SGD", {"dampening": 0.5}), ("Adam", {"amsgrad": True}), ("RMSprop", {"momentum": 0.9}),
]
for name, setting in changes:
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        here, there = (
            difference(trained(getattr(module.optim, name), **(plain[name] | setting)), trained(getattr(module.optim, name), **plain[name]))
            for module in (bitsandbytes, torch)
        )
    print(f"{name} with {setting}: bitsandbytes {here:.1%}, torch {there:.1%} - warnings: {len(raised)}")
    as_described = as_described and here == 0 and there > 0.01 and not raised

decayed = trained(bitsandbytes.optim.Adam, weight_decay=0.1)
to_adam, to_adamw = (difference(decayed, trained(kind, weight_decay=0.1)) for kind in (torch.optim.Adam, torch.optim.AdamW))
print(f"Adam with weight_decay 0.1: {to_adam:.1%} from torch's Adam, {to_adamw:.4%} from torch's AdamW")
sys.exit(not (as_described and to_adam > 0.02 and to_adamw < 1e-4))
PROGRAM
venv/bin/python program.py
