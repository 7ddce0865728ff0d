#!/usr/bin/env bash
# Under FSDP1 with use_orig_params, Adafactor and LBFGS train without a word, but with other steps than on one process.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import os
import sys

import torch
from torch import distributed, multiprocessing, nn, optim
from torch.distributed.fsdp import FullyShardedDataParallel

OPTIMIZERS = {
    "AdamW": lambda weights: optim.AdamW(weights, lr=1e-3),
    "Adafactor": lambda weights: optim.Adafactor(weights, lr=1e-2),
    "LBFGS": lambda weights: optim.LBFGS(weights, lr=0.1, max_iter=3),
}

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 64))

def step(network, optimizer):
    inputs, targets = torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(1))  # the same rows on each rank

    def loss():
        optimizer.zero_grad()
        value = nn.functional.mse_loss(network(inputs), targets)
        value.backward()
        return value

    optimizer.step(loss)

def flat(network):
    return torch.cat([weight.detach().flatten().clone() for weight in network.parameters()])

def rank_main(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    off = {}
    for name, build in OPTIMIZERS.items():
        alone, sharded = model(), FullyShardedDataParallel(model(), use_orig_params=True, device_id=torch.device("cpu"))
        for network in (alone, sharded):
            step(network, build(network.parameters()))
        with FullyShardedDataParallel.summon_full_params(sharded):
            off[name] = ((flat(sharded) - flat(alone)).norm() / (flat(alone) - flat(model())).norm()).item()
        if rank == 0:
            print(f"{name:9} off one process by {off[name]:.1%}")
    distributed.destroy_process_group()
    sys.exit(not (off["AdamW"] < 1e-5 and off["Adafactor"] > 0.3 and off["LBFGS"] > 0.03))

if __name__ == "__main__":
    print("torch", torch.__version__, "- the first update on two ranks with the same rows:")
    multiprocessing.spawn(rank_main, (os.getcwd(),), nprocs=2)
PROGRAM
venv/bin/python -W ignore program.py
