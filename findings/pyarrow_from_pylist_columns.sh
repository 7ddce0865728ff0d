#!/usr/bin/env bash
# Table.from_pylist has the columns of the first row: what only later rows have is left out, and nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check pyarrow==26.0.1
cat > program.py <<'PROGRAM'
import io
import json
import sys
import warnings

import pyarrow as pa
import pyarrow.json

rows = [{"prompt": "1 + 1", "answer": "2"}, {"prompt": "2 + 2", "answer": "4", "source": "made"}]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    columns = pa.Table.from_pylist(rows).column_names
lines = "\n".join(map(json.dumps, rows)).encode()
read = pyarrow.json.read_json(io.BytesIO(lines)).column_names
nested = pa.Table.from_pylist([{"record": row} for row in rows]).column("record").type

print("pyarrow", pa.__version__, "- two rows, the second with a third column:")
print("Table.from_pylist:", columns, "- warnings:", len(said))
print("the same rows as JSON lines, by pyarrow.json:", read)
print("the same rows inside a column:", nested)
as_described = columns == ["prompt", "answer"] and not said and "source" in read and "source" in str(nested)
sys.exit(not as_described)
PROGRAM
venv/bin/python program.py
