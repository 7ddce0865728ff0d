"""Files of the page, and the same page as one file that opens without a server."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.temp_files import temp_path
from gspo_lightning.report.view.run_data import RunData

_FOLDER = Path(__file__).with_name("page")
SCRIPTS = (
    "tools.js", "charts.js", "zoom.js", "reading.js", "histograms.js", "overview.js", "runs.js", "responses.js",
    "group.js", "compare.js", "others.js", "app.js",
)  # fmt: skip
"""Scripts of the page, in their order."""
ASSETS = {"style.css": "text/css"} | dict.fromkeys(SCRIPTS, "text/javascript")
"""Files beside the page -> their content type."""
ROLLOUTS_INSIDE = 600
"""Responses with tokens that a file holds of each run, spread over its iterations."""
WHOLE_RUNS = 5
"""Runs up to which a file holds :data:`ROLLOUTS_INSIDE` of each; of more runs, it holds as many in all."""


def asset(name: str) -> str:
    """Return a file of the page."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def write_page(runs: Sequence[RunData], out: Path) -> None:
    """Write the page with the data of the runs into one file.

    Raises:
        UserError: the file cannot be written.
    """
    rollouts = ROLLOUTS_INSIDE * min(len(runs), WHOLE_RUNS) // max(1, len(runs))
    data = json.dumps([_inside(run, rollouts) for run in runs], ensure_ascii=False)
    for character in "<>&\u2028\u2029":  # no text can end the element that holds it
        data = data.replace(character, f"\\u{ord(character):04x}")
    style, scripts = asset("style.css"), [asset(name) for name in SCRIPTS]
    sources = " ".join(_hash(script) for script in scripts)
    policy = (
        f"default-src 'none'; script-src {sources}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    html, head = asset("index.html"), '<meta charset="utf-8">'
    parts = {
        '<link rel="stylesheet" href="style.css">': f"<style>{style}</style>",
        "\n".join(f'<script defer src="{name}"></script>' for name in SCRIPTS): "",
        head: f'{head}\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "</body>": f'<script type="application/json" id="data">{data}</script>\n'
        + "\n".join(f"<script>{script}</script>" for script in scripts)
        + "\n</body>",
    }
    for old, new in parts.items():
        if html.count(old) != 1:
            raise ValueError(f"index.html has {html.count(old)} times {old!r}")
        html = html.replace(old, new)
    unfinished = temp_path(out)
    try:
        unfinished.unlink(missing_ok=True)  # of a killed one; it would keep its mode
        with open(unfinished, "w", encoding="utf-8", opener=_private) as file:  # prompts and answers
            file.write(html)
        unfinished.replace(out)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise UserError(
            "--output", f"{out} cannot be written: {error.strerror or error}", fix="choose a file"
        ) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inside(run: RunData, rollouts: int) -> dict[str, Any]:
    """Return everything of a run that the file holds, with about so many responses."""
    run.refresh()
    overview = run.overview()
    step = max(1, overview["facts"]["rollouts"] // rollouts)
    iterations = [row[0] for row in run.index.columns("DISTINCT iteration")]
    rows = [row for i in iterations[::step] for row in run.rows({"iteration": str(i)})["rows"]]
    return {
        "overview": overview,
        "series": run.series(list(overview["tags"])),
        "rows": rows[: 4 * rollouts],
        "answers": run.answers(),
        "prompts": run.prompts(),
        "ratios": run.ratios(),
        "histograms": run.histograms(),
        "pictures": dict(_pictures(run, rows[: 4 * rollouts])),
    }


def _pictures(run: RunData, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the pictures of responses and held-out answers, as addresses that hold them."""
    lists = [row.get("pictures") for row in (*run.answers()["rows"], *rows)]
    for name in dict.fromkeys(str(name) for names in lists if isinstance(names, list) for name in names):
        with suppress(KeyError):
            yield name, f"data:image/png;base64,{base64.b64encode(run.picture(name)).decode()}"
