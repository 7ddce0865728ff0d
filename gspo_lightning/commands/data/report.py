"""``gspo data report``: summarise a file of prompts on the terminal and in a figure."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import NullFormatter, ScalarFormatter
from tqdm import tqdm

from gspo_lightning.commands.data.read import read_prompts
from gspo_lightning.commands.data.reference_answers import ReferenceAnswers, read_reference_answers
from gspo_lightning.commands.data.setting import Setting
from gspo_lightning.commands.data.terminal import add_column, add_threshold, check_threshold, show
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say
from gspo_lightning.data.corpus.decontamination_report import about
from gspo_lightning.data.corpus.duplicates import Kind, NearDuplicates, Repeats, equal_texts
from gspo_lightning.data.corpus.files import Inputs, Record
from gspo_lightning.report.style import GREY, INK, bare, canvas, save, style

DESCRIPTION = (
    "Counts, lengths, duplicates, answers that the reward cannot read, examples, and a picture. With --config the "
    "columns, the tokenizer, the limits and the rewards are those of a run."
)
PASSES_ON = True
_EXAMPLES = 3
"""Prompts that are shown."""
_SHOWN = 160
"""Most characters of one of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("input", nargs="+", type=Path, metavar="FILE", help="JSON lines or Parquet")
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help="of gspo fit")
    parser.add_argument(
        "--model", metavar="NAME", help="whose tokens lengths are counted in (default: the config's, or characters)"
    )
    parser.add_argument(
        "--reward",
        metavar="NAME[:JSON]",
        help="that reads the answers (default: CodeExecutor for tests, MathVerifier for texts)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE.png", help="default: FILE.report.png, written anew")
    add_column(parser)
    add_threshold(parser)


def run(options: argparse.Namespace, rest: Sequence[str]) -> None:
    """Read the files, print the report and draw the figure.

    Raises:
        UserError: an option, the config or a record is wrong.
    """
    check_threshold(options.threshold)
    if rest and not options.config:
        raise UserError(rest[0], "is no option of gspo data report without --config")
    picture = options.output or options.input[0].with_name(f"{options.input[0].name}.report.png")
    if picture.suffix != ".png" or not picture.parent.is_dir():
        raise UserError("--output", f"{picture} is no .png in a folder that exists")
    if options.config:
        from gspo_lightning.commands.data.configs import of_config  # torch

        model = [f"--model.name_or_path={options.model}"] if options.model else []
        setting = of_config(options.config, [*rest, *model])
    else:
        setting = Setting({} if options.column == "prompt" else {"prompt": options.column})
        if options.model:
            from gspo_lightning.commands.data.configs import lengths_in  # torch
            from gspo_lightning.policy.load.model_settings import ModelSettings

            setting.lengths = lengths_in(ModelSettings(options.model))
    _report(Inputs(options.input, "FILE"), setting, options, picture)


def _report(inputs: Inputs, setting: Setting, options: argparse.Namespace, picture: Path) -> None:
    column = setting.columns.get("prompt", options.column)
    if not isinstance(column, str) or "." in column:
        raise UserError("--config", "makes prompts of several columns", fix="gspo data convert first")
    measured: list[int] = []
    batch: list[tuple[str, dict[str, Any]]] = []

    def measure(record: Record, text: str) -> None:
        if setting.lengths is None:
            measured.append(len(text))
            return
        prompt = {"prompt": record.values[column], "tools": record.values.get("tools")}
        batch.append((inputs.name(record.file, record.number), prompt))
        if len(batch) >= 512:
            count_tokens()

    def count_tokens() -> None:
        if batch and setting.lengths is not None:
            measured.extend(setting.lengths(batch))
            batch.clear()

    with tempfile.TemporaryDirectory() as folder:
        prompts = read_prompts(inputs, column, Path(folder), measure)
        count_tokens()
        repeats = equal_texts(prompts.texts, *prompts.hashes())
        places = np.flatnonzero(repeats.of < 0)
        with tqdm(desc="compare", total=2 * len(places), unit=" prompts", unit_scale=True) as bar:
            NearDuplicates(prompts.texts, places, options.threshold, Path(folder), bar.update).repeats(repeats)
        prompts.texts.close()
    references = read_reference_answers(inputs, setting.columns, setting.rewards, options.reward)
    unit = "characters" if setting.lengths is None else "tokens"
    lengths = np.array(measured)
    faults = _faults(lengths, repeats, setting.limit)
    title = f"{', '.join(path.name for path in inputs.paths)}: {len(lengths):,} prompts"
    show(title, {"prompts": len(lengths), **faults}, len(lengths))
    _say(inputs, lengths, unit, references, column)
    draw(picture, lengths, unit, setting.limit, faults)
    say(f"written: {picture}")


def _faults(lengths: np.ndarray, repeats: Repeats, limit: int | None) -> dict[str, int]:
    """Return the numbers of prompts that repeat others or are too long, by a description of the fault."""
    faults = {
        "the same prompt as an earlier one": int(np.count_nonzero(repeats.kind == Kind.EXACT)),
        "the same but for case and white space": int(np.count_nonzero(repeats.kind == Kind.NORMALISED)),
        "nearly the same as an earlier one": int(np.count_nonzero(repeats.kind == Kind.NEAR)),
    }
    if limit is not None:
        faults[f"longer than {limit} tokens: never trained on"] = int(np.count_nonzero(lengths > limit))
    return faults


def _say(inputs: Inputs, lengths: np.ndarray, unit: str, references: ReferenceAnswers, column: str) -> None:
    low, median, high, most = (int(x) for x in np.percentile(lengths, [0, 50, 99, 100]))
    say(f"length: {low:,} to {most:,} {unit}, median {median:,}, 99 % up to {high:,}")
    for line in references.lines():
        say(line)
    for path in inputs.paths:
        description = about(path)
        if description is not None:
            sentence, is_current = description
            say(sentence if is_current else f"warning: {sentence}")
    say("examples:")
    step = max(1, len(lengths) // _EXAMPLES)
    for index, record in enumerate(inputs.records()):
        if index % step == 0 and index < step * _EXAMPLES:
            text = " ".join(str(record.values[column]).split())
            if len(text) > _SHOWN:
                text = f"{text[: _SHOWN - 3]}..."
            say(f"  {inputs.name(record.file, record.number)}: {text}")


def draw(path: Path, lengths: np.ndarray, unit: str, limit: int | None, faults: Mapping[str, int]) -> None:
    """Draw the figure and write it to a file.

    Args:
        path: PNG file to write.
        lengths: lengths of the prompts.
        unit: unit of the lengths.
        limit: longer prompts are dropped in training; None draws no line.
        faults: name -> number of prompts.
    """
    figure = canvas(8, 5, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2, 1])
    colour = style(0)[0]
    bins = np.unique(np.geomspace(max(1, lengths.min()), lengths.max() + 1, 40).astype(int))
    above.hist(lengths, bins=bins if len(bins) > 1 else 1, color=colour)
    if max(lengths.max(), limit or 0) > 10 * lengths.min():  # otherwise a logarithmic axis has one label, or none
        above.set_xscale("log")
        above.xaxis.set_major_formatter(ScalarFormatter())
        above.xaxis.set_minor_formatter(NullFormatter())
    above.set_xlabel(f"{unit} of a prompt", color=GREY, fontsize=8)
    above.set_ylabel("prompts", color=GREY, fontsize=8)
    if limit is not None:
        above.axvline(limit, color=INK, linewidth=1)
        above.annotate(f" limit {limit}", (limit, 0.95), xycoords=("data", "axes fraction"), color=INK, fontsize=8)
    shares = [100 * count / len(lengths) for count in faults.values()]
    below.barh(range(len(faults)), shares, color=colour, height=0.6)
    below.set_yticks(range(len(faults)), list(faults), fontsize=8)
    below.invert_yaxis()
    below.set_xlim(0, max([1.0, *shares]) * 1.15)
    for place, (share, count) in enumerate(zip(shares, faults.values(), strict=True)):
        below.annotate(f" {count:,}", (share, place), va="center", color=INK, fontsize=8)
    below.set_xlabel("% of the prompts", color=GREY, fontsize=8)
    for axes in (above, below):
        bare(axes, "top", "right")
    save(figure, path)
