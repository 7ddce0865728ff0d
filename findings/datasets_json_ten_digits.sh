#!/usr/bin/env bash
# Dataset.to_json writes ten decimal places: a log-probability loses six digits, 1.5e-11 becomes 0; CSV and Parquet keep all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1
cat > program.py <<'PROGRAM'
import json
import sys

import datasets

datasets.disable_progress_bars()
values = [-0.12345678901234567, 1 / 3, 1.5e-11]
rows = datasets.Dataset.from_dict({"logprob": values})
rows.to_json("rows.jsonl")
rows.to_csv("rows.csv")
rows.to_parquet("rows.parquet")
with open("rows.jsonl") as file:
    lines = [json.loads(line)["logprob"] for line in file]
with open("rows.csv") as file:
    cells = [float(line) for line in file.read().split()[1:]]
columns = list(datasets.Dataset.from_parquet("rows.parquet")["logprob"])

print("datasets", datasets.__version__)
for name, kept in {"written": values, "JSON lines": lines, "CSV": cells, "Parquet": columns}.items():
    print(f"{name}: {kept}")
sys.exit(not (columns == values and lines == [-0.123456789, 0.3333333333, 0.0] and max(map(abs, map(float.__sub__, cells, values))) < 1e-16))
PROGRAM
HF_HOME="$folder/home" venv/bin/python program.py
