#!/usr/bin/env bash
# One run on several nodes by SLURM:   sbatch examples/slurm.sh my.yaml
# Lightning finds ranks and addresses in SLURM's variables. TERM comes two minutes before the time limit and leaves a
# checkpoint between two updates; submitted again, the script goes on from it.
#SBATCH --job-name=gspo
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=%x-%j.log
set -euo pipefail
CONFIG=${1:?usage: sbatch slurm.sh CONFIG.yaml [more options of gspo fit]}
shift
exec srun --kill-on-bad-exit=1 gspo fit --config "$CONFIG" --config "${OVERLAY:-configs/fsdp2.yaml}" \
  --trainer.num_nodes "$SLURM_NNODES" --trainer.devices "$SLURM_NTASKS_PER_NODE" --ckpt_path last "$@"
