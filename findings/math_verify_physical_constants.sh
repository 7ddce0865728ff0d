#!/usr/bin/env bash
# math-verify takes Planck's constant for an electron's charge and 1e-7 for 3e-7, but tells 1.5e-9 from 2.5e-7.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check math-verify==0.9.0 sympy==1.14.0
cat > program.py <<'PROGRAM'
import sys
from importlib.metadata import version

from math_verify import parse, verify

print("math-verify", version("math-verify"))
PAIRS = [  # gold, answer, what verify says
    # the difference of numbers in powers of ten counts as zero if it is very small, whatever their ratio
    (r"$6.626\times10^{-34}$", r"$1.602\times10^{-19}$", True),
    (r"$1.38\times10^{-23}$", r"$9.109\times10^{-31}$", True),
    (r"$1.5\times10^{-9}$", r"$2.5\times10^{-7}$", False),
    # a plain decimal is rounded to six places
    (r"$0.0000001$", r"$0.0000003$", True),
    (r"$0.0000001$", r"$-6.674\times10^{-11}$", True),
    (r"$0.000001$", r"$0.000003$", False),
]
as_described = True
for gold, answer, described in PAIRS:
    actual = verify(parse(gold), parse(answer))
    print(f"gold {gold:24} answer {answer:24} ->", "right" if actual else "wrong")
    as_described = as_described and actual == described
sys.exit(not as_described)
PROGRAM
venv/bin/python program.py
