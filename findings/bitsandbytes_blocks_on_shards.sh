#!/usr/bin/env bash
# Under FSDP1, 8-bit optimizers and LARS of bitsandbytes take other steps than on one process: a shard is their weight.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 bitsandbytes==0.50.2
cat > program.py <<'PROGRAM'
import os
import sys

import bitsandbytes
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.fsdp import FullyShardedDataParallel

STEPS = 10
OPTIMIZERS = {"AdamW": {}, "AdamW8bit": {}, "SGD8bit": {"momentum": 0.9}, "LARS": {"momentum": 0.9}}

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(100, 50), nn.Linear(50, 70), nn.Tanh(), nn.Linear(70, 100))

def train(network, optimizer):
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        # small tokens are much more frequent, as in text, so that gradients of rows differ in size
        tokens = (100 * torch.rand(256, generator=draw) ** 8).long()
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(tokens), tokens.roll(1)).backward()  # the same on each rank
        optimizer.step()

def flat(network):
    return torch.cat([weight.detach().flatten().clone() for weight in network.parameters()])

def rank_main(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    off = {}
    for name, options in OPTIMIZERS.items():
        alone, sharded = model(), FullyShardedDataParallel(model(), use_orig_params=True, device_id=torch.device("cpu"))
        for network in (alone, sharded):
            build = getattr(bitsandbytes.optim, name)
            train(network, build(network.parameters(), lr=1e-2, min_8bit_size=1, **options))
        with FullyShardedDataParallel.summon_full_params(sharded):
            off[name] = ((flat(sharded) - flat(alone)).norm() / (flat(alone) - flat(model())).norm()).item()
        if rank == 0:
            print(f"{name:12} off one process by {off[name]:.2%}")
    distributed.destroy_process_group()
    others = (off["AdamW8bit"], off["SGD8bit"], off["LARS"] / 10)
    sys.exit(not (off["AdamW"] < 1e-4 and min(others) > 5e-4))

if __name__ == "__main__":
    print("torch", torch.__version__, "bitsandbytes", bitsandbytes.__version__)
    print(STEPS, "updates on two ranks with the same rows:")
    multiprocessing.spawn(rank_main, (os.getcwd(),), nprocs=2)
PROGRAM
venv/bin/python -W ignore program.py
