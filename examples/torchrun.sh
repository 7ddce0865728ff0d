#!/usr/bin/env bash
# One run on several nodes by torchrun; start this on every node.
#   NODES=4 FIRST_NODE=10.0.0.1 examples/torchrun.sh my.yaml
# The folder that trainer.default_root_dir names must be shared by all nodes. The same command goes on after an accident; if a
# rank dies, torchrun itself starts all of them again from the last checkpoint, up to RESTARTS times. With NODES=2:4 the run
# starts with 2 to 4 nodes, and goes on with those that are left.
set -euo pipefail
CONFIG=${1:?usage: torchrun.sh CONFIG.yaml [more options of gspo fit]}
shift
# without it, ranks that are started again read addresses of those that have ended (pytorch#135712)
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec torchrun --nnodes "${NODES:-1}" --nproc-per-node "${DEVICES:-8}" \
  --rdzv-backend c10d --rdzv-endpoint "${FIRST_NODE:-127.0.0.1}:${PORT:-29500}" --rdzv-id "${RUN:-gspo}" \
  --max-restarts "${RESTARTS:-3}" \
  -m gspo_lightning fit --config "$CONFIG" --config "${OVERLAY:-configs/fsdp2.yaml}" --ckpt_path last "$@"
