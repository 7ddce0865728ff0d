#!/usr/bin/env bash
# Dataset.map writes into a column's old type where that can be done: true becomes 0.5 and is stored as true again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1
cat > program.py <<'PROGRAM'
import sys

import datasets

datasets.disable_progress_bars()


def mapped(values, function):
    """What a column of ``values`` holds after ``function`` was mapped over it."""
    rows = datasets.Dataset.from_dict({"reward": values}).map(lambda row: {"reward": function(row["reward"])})
    return list(rows["reward"]), rows.features["reward"].dtype


print("datasets", datasets.__version__)
cases = {
    "half of a boolean": ([True, True], lambda value: value / 2, [True, True]),
    "a boolean as -1 or 1": ([True, False], lambda value: 2 * value - 1, [True, True]),
    "an integer as text": ([1, 2], str, [1, 2]),
    "half of an even integer": ([2, 4], lambda value: value / 2, [1, 2]),
    "half of an odd integer": ([1, 3], lambda value: value / 2, [0.5, 1.5]),
}
as_described = True
for name, (values, function, described) in cases.items():
    actual, kind = mapped(values, function)
    print(f"{name}: {[function(value) for value in values]} is stored as {actual} ({kind})")
    as_described = as_described and actual == described
try:  # rows are written a thousand at a time, and the first thousand set the type
    print("1,000 even integers, then an odd one:", mapped([2] * 1000 + [1], lambda value: value / 2)[1])
    as_described = False
except Exception as error:
    print("half of 1,000 even integers, then of an odd one:", type(error).__name__, "-", error)
sys.exit(not as_described)
PROGRAM
HF_HOME="$folder/home" venv/bin/python program.py
