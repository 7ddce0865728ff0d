#!/usr/bin/env bash
# In a worker of Ray Train each print is seen twice: Ray has replaced sys.stdout itself, and takes that for a redirection.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check ray==2.60.0 pandas==3.1.1 pyarrow==26.0.1 \
  fsspec==2026.6.0 pydantic==2.14.3 requests==2.34.2
cat > program.py <<'PROGRAM'
import sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def worker():
    import sys

    print("a line that is printed")
    sys.stdout.write("a line that is written\n")
    print("sys.stdout is Python's own:", sys.stdout is sys.__stdout__, file=sys.__stdout__, flush=True)


folder, patch = sys.argv[1:]
ray.init(num_cpus=2, include_dashboard=False)
run_config = RunConfig(
    storage_path=folder, worker_runtime_env={"env_vars": {"RAY_TRAIN_ENABLE_PRINT_PATCH": patch}}
)
DataParallelTrainer(worker, scaling_config=ScalingConfig(num_workers=1), run_config=run_config).fit()
ray.shutdown()
PROGRAM
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled RAY_DEDUP_LOGS=0 RAY_ADDRESS=local
echo "ray $(venv/bin/python -c 'import ray; print(ray.__version__)') - one worker, which prints a line and writes another:"
status=0
for patch in 1 0; do
  venv/bin/python program.py "$folder" "$patch" > "$patch.log" 2>&1 || { cat "$patch.log"; exit 1; }
  printed=$(grep -c "a line that is printed" "$patch.log") || true
  written=$(grep -c "a line that is written" "$patch.log") || true
  own=$(grep -o "Python's own: .*" "$patch.log") || true
  echo "RAY_TRAIN_ENABLE_PRINT_PATCH=$patch: printed $printed times, written $written times; sys.stdout is $own"
  [ "$printed $written $own" = "$((1 + patch)) 1 Python's own: False" ] || status=1
done
exit "$status"
