#!/usr/bin/env bash
# With think_end_token, lm-eval takes a thought that never ended for the answer, and its numbers are graded.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check lm-eval==0.4.13
cat > program.py <<'PROGRAM'
import sys
from importlib.metadata import version

from lm_eval.filters.extraction import RegexFilter
from lm_eval.models.utils import postprocess_generated_text

ANSWERS = {
    "a finished thought": "6 * 7 is 42? No, 7 * 7 is asked.</think>\n\nThe answer is 49",
    "a thought that was cut at max_gen_toks": "6 * 7 is 42? No, 7 * 7 is asked. So it is",
}

print("lm-eval", version("lm_eval"), '- think_end_token="</think>", then the last number:')
found = {}
for name, text in ANSWERS.items():
    kept = postprocess_generated_text(text, stop=[], think_end_token="</think>")
    [[number]] = RegexFilter(r"(\d+)", group_select=-1, fallback="no answer").apply([[kept]], [{}])
    found[name] = number
    print(f"{name}: kept {kept!r}, answer {number}")
sys.exit(list(found.values()) != ["49", "7"])
PROGRAM
venv/bin/python program.py
