#!/usr/bin/env bash
# In GGUF eight bits can be worse than four: Q8_0 turns a block below 4e-6 into zeros, and Q4_0 keeps it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import sys
from importlib.metadata import version

import numpy
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

print("gguf", version("gguf"), "- relative error of a matrix after quantizing, by the size of its entries:")
# an adapter's B begins at zero, so after one update of a small learning rate it is this small
draw = numpy.random.default_rng(0)
directions = numpy.sign(draw.standard_normal((64, 256))) * draw.uniform(0.5, 1, (64, 256))
off = {}
for size in (1e-2, 1e-4, 1e-5, 3e-6, 1e-6):
    matrix = (size * directions).astype(numpy.float32)
    for kind in (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0):
        back = dequantize(quantize(matrix, kind), kind)
        off[kind.name, size] = float(numpy.linalg.norm(back - matrix) / numpy.linalg.norm(matrix))
    print(f"{size:.0e}: " + ", ".join(f"{name} {off[name, size]:.1%}" for name in ("Q8_0", "Q4_0")))
sys.exit(not (off["Q8_0", 1e-2] < off["Q4_0", 1e-2] and off["Q8_0", 1e-6] == 1 and off["Q4_0", 1e-6] < 0.2))
PROGRAM
venv/bin/python program.py
