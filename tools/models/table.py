"""The table of model families as Markdown, written and read back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.models.measure import LONGEST, TEMPERATURE, Row
from tools.models.tiny import WINDOW

__all__ = ["PATH", "read", "version", "write"]

PATH = Path(__file__).parents[2] / "docs" / "models.md"
REASON = 150
"""Characters of a reason."""
HEAD = f"""# Model families

Every family that `AutoModelForCausalLM` of transformers {{transformers}} knows, tried on a tiny model with random
weights and every window, chunk and index {WINDOW} tokens long, in float32 on a CPU with torch {{torch}}. Written by
`python -m tools.models` (a minute or two); `make test` compares eight families with it and `make test-long` all.

{{counts}}

* **layout**: how training computes rows: `packed`, a prompt once for all its responses and no padding, or `padded`,
  with the reason. A window only matters where it is shorter than the longest row, so a family that is padded here for
  its window is packed in a run whose rows fit into it.
* **sampled**: how `GroupedSampler` decodes: `lean`, without the model's own modules (CPU), `shared`, a prompt's keys
  and values kept once, `padded`, in transformers' own cache, or `generate`, transformers' own `generate`. What is
  refused is refused before the first rollout, by what is measured on the model itself and not by its name
  (`gspo_lightning/rollouts/verify.py`).
* **training** and **sampling**: largest difference of the log-probability of a token, in nats, from
  `log_softmax(model(row).logits / {TEMPERATURE})` of the model as it was built, one row at a time, in rows of up to
  {LONGEST} tokens.

A tiny model says that the code of a family fits, not that a checkpoint of it does: every run measures its own again.
Models that attend to a few selected tokens only (`index_topk`: DeepSeek-V3.2, GLM-DSA) are refused where rows are
longer than that number, 8 here and thousands in their checkpoints: ties and rounding decide which tokens these are,
and so does whatever stands beside a row.
"""


def write(rows: Sequence[Row], versions: dict[str, str]) -> str:
    """The document."""
    rows = sorted(rows, key=lambda row: row.family)
    taken = [row for row in rows if row.sampler]
    refused = [row for row in rows if row.built and not row.sampler and not row.crashed]
    crashed = [row for row in rows if row.crashed]
    unbuilt = [row for row in rows if not row.built]
    packed = sum(row.layout == "packed" for row in taken)
    counts = (
        f"**{len(taken)} can be trained** ({packed} packed, {len(taken) - packed} padded), {len(refused)} are refused "
        f"by name, {len(crashed)} end with an error of their own code, "
        f"{len(unbuilt)} could not be built from a small config."
    )
    parts = [HEAD.format(counts=counts, **versions)]
    parts.append(_table("Trained", ("layout", "sampled", "training", "sampling", "why not packed"), taken))
    parts.append(_table("Refused", ("training", "why"), refused))
    parts.append(_table("Errors of their own code", ("why",), crashed))
    parts.append(_table("Not built", ("why",), unbuilt))
    return "\n".join(parts)


def _table(title: str, columns: Sequence[str], rows: Iterable[Row]) -> str:
    lines = [f"## {title}", "", f"| family | class | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for row in rows:
        cells = {
            "layout": row.layout,
            "sampled": row.sampler,
            "training": _number(row.training),
            "sampling": _number(row.sampling),
        }
        values = [cells.get(name, _short(row.reason)) for name in columns]
        lines.append(f"| {row.family} | {row.kind} | {' | '.join(values)} |")
    return "\n".join([*lines, ""])


def _number(gap: float | None) -> str:
    return "" if gap is None else f"{gap:.0e}"


def _short(reason: str) -> str:
    text = re.sub(r"\s+", " ", reason).replace("|", "/")
    return text if len(text) <= REASON else f"{text[: REASON - 3]}..."


def version(text: str) -> str:
    """Of transformers, in a document."""
    found = re.search(r"of transformers (\S+) knows", text)
    return found[1] if found else ""


def read(text: str) -> dict[str, tuple[str, str]]:
    """Family -> layout and sampler in a document; both empty for one that is refused or could not be built."""
    found: dict[str, tuple[str, str]] = {}
    title = ""
    for line in text.splitlines():
        title = line.removeprefix("## ") if line.startswith("## ") else title
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "family":
            found[cells[0]] = (cells[2], cells[3]) if title == "Trained" else ("", "")
    return found
