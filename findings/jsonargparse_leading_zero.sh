#!/usr/bin/env bash
# jsonargparse reads 010 as 10 on the command line and as 8 in a configuration file or a list, where 08 is 8, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check jsonargparse==4.53.0 PyYAML==6.0.3
cat > program.py <<'PROGRAM'
import sys
from importlib.metadata import version
from pathlib import Path

import jsonargparse

parser = jsonargparse.ArgumentParser()
parser.add_argument("--config", action="config")
parser.add_argument("--steps", type=int)
parser.add_argument("--seeds", type=list[int])

print("jsonargparse", version("jsonargparse"))
as_described = True
for text, described in {"010": (10, 8, 8), "1:30": (90, 90, 90), "08": (8, 8, 8)}.items():
    Path("config.yaml").write_text(f"steps: {text}\n")
    actual = []
    for arguments in ([f"--steps={text}"], ["--config=config.yaml"], [f"--seeds=[{text}]"]):
        namespace = parser.parse_args(arguments)
        actual.append(namespace.steps if namespace.seeds is None else namespace.seeds[0])
    print(f"{text}: as an option {actual[0]}, in a file {actual[1]}, in a list {actual[2]}")
    as_described = as_described and tuple(actual) == described
sys.exit(not as_described)
PROGRAM
venv/bin/python program.py
