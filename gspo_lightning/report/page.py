"""Write the report of runs: a Markdown page beside a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import cell, code
from gspo_lightning.core.temp_files import temp_path
from gspo_lightning.report.answers import ANSWERS, copy_thumbnails, picture_cell, read_answers
from gspo_lightning.report.figure import draw
from gspo_lightning.report.read import read_run
from gspo_lightning.report.run import Run, labels
from gspo_lightning.report.scalars import Scalars
from gspo_lightning.report.style import save
from gspo_lightning.report.verdicts import verdicts
from gspo_lightning.report.words import headline, table

PICTURE = "report.png"
PAGE = "report.md"
EVALUATIONS = 5
"""Largest number of evaluation columns in the table of answers over time."""


def write_report(run_dirs: Sequence[Path], out: Path, scalars: Scalars | None = None) -> Path:
    """Write ``report.png`` and ``report.md``; unfinished and killed runs are reported as far as they went.

    Args:
        run_dirs: one run folder, or several to draw side by side.
        out: the folder to write into, made if missing.
        scalars: the numbers of a single run, if they are in memory.

    Returns:
        The path of the picture.

    Raises:
        UserError: a folder is not a run, or ``out`` cannot be written.
    """
    return write_runs(read_runs(run_dirs, scalars), out)


def read_runs(run_dirs: Sequence[Path], scalars: Scalars | None = None) -> list[Run]:
    """Read each folder once, and give each run a distinct label; ``scalars`` as for :func:`write_report`.

    Raises:
        UserError: no folder is given, or one is not a run.
    """
    unique = list({Path(d).resolve(): Path(d) for d in run_dirs}.values())
    if not unique:
        raise UserError("gspo report", "no run folder given", fix="gspo report runs/NAME/version_0")
    runs = [read_run(folder, scalars) for folder in unique]
    for run, label in zip(runs, labels(runs), strict=True):
        run.label = label
    return runs


def write_runs(runs: Sequence[Run], out: Path) -> Path:
    """Write the report of runs that were already read; see :func:`write_report`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        save(draw(runs), out / PICTURE)
        for run in runs:
            copy_thumbnails(run.folder, [*_examples_of(run), *read_answers(run.folder)], out)
        unfinished = temp_path(out / PAGE)
        unfinished.write_text(page(runs), encoding="utf-8")
        os.replace(unfinished, out / PAGE)
    except OSError as error:
        raise UserError("--output", f"{out} cannot be written: {error}", fix="choose a folder with --output") from error
    return out / PICTURE


def page(runs: Sequence[Run]) -> str:
    """Return the Markdown page."""
    alone = len(runs) == 1
    title = f"{runs[0].objective}, seed {runs[0].seed}" if alone else " / ".join(run.label for run in runs)
    lines = [f"# {cell(title)}", ""]
    for run in runs:
        start = _sentence(headline(run)) if alone else f"- **{cell(run.label)}**: {headline(run)}"
        where = code(run.folder, table=False)
        lines.append(f"{start}. Model {cell(run.model)}, {cell(run.date)}, {where}.")
    lines += ["", f"![curves]({PICTURE})", "", *_markdown_table(runs), "## Verdict", ""]
    for run in runs:
        if not alone:
            lines += [f"### {cell(run.label)}", ""]
        lines += _verdict_lines(run)
        lines += ["", *(f"> {cell(problem)}\n" for problem in run.problems)]
    for run in runs:
        suffix = "" if alone else f": {cell(run.label)}"
        lines += _examples(run, suffix)
        lines += _over_time(run, suffix)
    lines.append("What every number means: `gspo list metrics`.")
    return "\n".join(lines) + "\n"


def _verdict_lines(run: Run) -> list[str]:
    lines = []
    for verdict in verdicts(run):
        judgement = f"**{_sentence(verdict.topic)}: {verdict.word}.**"
        lines.append(f"- {verdict.mark} {judgement} {cell(_sentence(verdict.sentence))}.")
    return lines or ["Nothing was logged."]


def _markdown_table(runs: Sequence[Run]) -> list[str]:
    heads = ["before → after"] if len(runs) == 1 else [cell(run.label) for run in runs]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(runs)]
    lines += [f"| {cell(name)} | " + " | ".join(map(cell, cells)) + " |" for name, cells in table(runs)]
    note = (
        "An arrow, or a change, goes from the first to the last iteration, or evaluation; of a run of one iteration "
        "there is one number. All others are over the whole run."
    )
    return [*lines, "", note, ""]


def _examples(run: Run, suffix: str) -> list[str]:
    examples = _examples_of(run)
    if not examples:
        return []
    names = ("prompt", "answer", "before", "after")
    rows = [[code(example.get(name, ""), 400) for name in names] for example in examples]
    return [f"## Examples{suffix}", "", *_answers_table(run, names, examples, rows), ""]


def _examples_of(run: Run) -> list[dict[str, Any]]:
    return [e for e in run.summary.get("examples") or [] if isinstance(e, dict)]


def _answers_table(
    run: Run, names: Sequence[str], prompts: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[str]]
) -> list[str]:
    """Return a table of answers, with a first column for pictures if any prompt has pictures."""
    pictures = [picture_cell(run.folder, prompt) for prompt in prompts]
    if any(picture.strip() for picture in pictures):
        names = ("pictures", *names)
        rows = [(picture, *row) for picture, row in zip(pictures, rows, strict=True)]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _over_time(run: Run, suffix: str) -> list[str]:
    """Return the answers to the same held-out prompts, one column per evaluation; at most 5, evenly spaced."""
    rows = read_answers(run.folder)
    updates = sorted({row["update"] for row in rows})
    if len(updates) < 2:
        return []
    columns = updates
    if len(updates) > EVALUATIONS:
        columns = [updates[round(i * (len(updates) - 1) / (EVALUATIONS - 1))] for i in range(EVALUATIONS)]
    completions = {(row["update"], row.get("id")): str(row.get("completion", "")) for row in rows}
    names = ["prompt", "answer", *(f"update {update}" for update in columns)]
    prompts = [row for row in rows if row["update"] == updates[0]]
    table_rows = []
    for prompt in prompts:
        of_prompt = [completions.get((update, prompt.get("id")), "") for update in columns]
        texts = (prompt.get("prompt", ""), prompt.get("answer", ""), *of_prompt)
        table_rows.append([code(text, 160) for text in texts])
    lines = [f"## Held-out answers over time{suffix}", "", *_answers_table(run, names, prompts, table_rows)]
    return [*lines, "", f"All {len(updates)} evaluations, with their rewards, are in `{ANSWERS}`.", ""]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
