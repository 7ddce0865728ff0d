#!/usr/bin/env bash
# Dataset.map reuses its cache after a function of a module was edited: rewards of yesterday's rules, and nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1
printf '{"text": "a"}\n{"text": "b"}\n' > records.jsonl
cat > program.py <<'PROGRAM'
import sys
import warnings
from importlib.metadata import version

import datasets
import rules

datasets.disable_progress_bars()
BONUS = float(sys.argv[1])


def scored(row):
    return {"reward": rules.reward(row["text"])}


def written_here(row):
    return {"reward": BONUS}


with warnings.catch_warnings(record=True) as raised:
    warnings.simplefilter("always")
    rows = datasets.load_dataset("json", data_files="records.jsonl", split="train")
    mapped = list(rows.map(scored)["reward"])
    own = list(rows.map(written_here)["reward"])
called = [rules.reward(row["text"]) for row in rows]
print("datasets", version("datasets"), "- rules.py returns", called[0])
print("  mapped by a function that calls rules.reward:", mapped, "- warnings:", len(raised))
print("  mapped by a function with a number of its own:", own)
stale = sys.argv[2] == "edited"
expected = [1.0, 1.0] if stale else called
sys.exit(not (mapped == expected and own == called and not raised))
PROGRAM
export HF_HOME="$folder/home" PYTHONDONTWRITEBYTECODE=1
printf 'def reward(text):\n    return 1.0\n' > rules.py
venv/bin/python program.py 1.0 new
printf 'def reward(text):\n    return 0.0\n' > rules.py
venv/bin/python program.py 0.0 edited
