#!/usr/bin/env bash
# One run on several nodes by torchrun; start this on every node.
#   NODES=4 NODE_RANK=0 FIRST_NODE=10.0.0.1 examples/torchrun.sh my.yaml
# The folder that trainer.default_root_dir names must be shared by all nodes. The same command goes on after an accident; if a
# rank dies, torchrun itself starts all of them again from the last checkpoint, up to RESTARTS times.
set -euo pipefail
CONFIG=${1:?usage: torchrun.sh CONFIG.yaml [more options of gspo fit]}
shift
NODES=${NODES:-1} DEVICES=${DEVICES:-8}
exec torchrun --nnodes "$NODES" --nproc-per-node "$DEVICES" --node-rank "${NODE_RANK:-0}" \
  --max-restarts "${RESTARTS:-3}" \
  --master-addr "${FIRST_NODE:-127.0.0.1}" --master-port "${PORT:-29500}" \
  -m gspo_lightning fit --config "$CONFIG" --config "${OVERLAY:-configs/fsdp2.yaml}" \
  --trainer.num_nodes "$NODES" --trainer.devices "$DEVICES" --ckpt_path last "$@"
