"""``gspo data report``: summarise a file of prompts on the terminal and in a figure."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gspo_lightning.commands.data.golds import Golds, read_golds
from gspo_lightning.commands.data.picture import draw
from gspo_lightning.commands.data.read import read_prompts
from gspo_lightning.commands.data.setting import Setting
from gspo_lightning.commands.data.table import show
from gspo_lightning.commands.data.words import add_column, add_threshold, check_threshold
from gspo_lightning.corpus.certificate import about
from gspo_lightning.corpus.duplicates import Kind, NearDuplicates, Repeats, equal_texts
from gspo_lightning.corpus.files import Inputs, Record
from gspo_lightning.errors import UserError
from gspo_lightning.escape import say

__all__ = ["DESCRIPTION", "PASSES_ON", "add_arguments", "run"]

DESCRIPTION = (
    "Counts, lengths, duplicates, answers that the reward cannot read, examples, and a picture. With --config the "
    "columns, the tokenizer, the limits and the rewards are those of a run."
)
PASSES_ON = True
_EXAMPLES, _SHOWN = 3, 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("input", nargs="+", type=Path, metavar="FILE", help="JSON lines or Parquet")
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help="of gspo fit")
    parser.add_argument("--model", metavar="NAME", help="whose tokens lengths are counted in (default: characters)")
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

        setting = of_config(options.config, rest)
    else:
        setting = Setting({} if options.column == "prompt" else {"prompt": options.column})
        if options.model:
            from gspo_lightning.commands.data.configs import tokenizer_of  # torch

            setting.tokenizer = tokenizer_of(options.model)
    _report(Inputs(options.input, "FILE"), setting, options, picture)


def _report(inputs: Inputs, setting: Setting, options: argparse.Namespace, picture: Path) -> None:
    column = setting.columns.get("prompt", options.column)
    if not isinstance(column, str) or "." in column:
        raise UserError("--config", "makes prompts of several columns", fix="gspo data convert first")
    lengths: list[int] = []
    texts: list[str] = []

    def see(record: Record, text: str) -> None:
        if setting.tokenizer is None:
            lengths.append(len(text))
            return
        texts.append(text)
        if len(texts) >= 512:
            count()

    def count() -> None:
        if texts:
            lengths.extend(map(len, setting.tokenizer(texts)["input_ids"]))
            texts.clear()

    with tempfile.TemporaryDirectory() as folder:
        prompts = read_prompts(inputs, column, Path(folder), see)
        count()
        found = equal_texts(prompts.texts, *prompts.hashes())
        places = np.flatnonzero(found.of < 0)
        with tqdm(desc="compare", total=2 * len(places), unit=" prompts", unit_scale=True) as bar:
            NearDuplicates(prompts.texts, places, options.threshold, Path(folder), bar.update).repeats(found)
        prompts.texts.close()
    golds = read_golds(inputs, setting.columns, setting.rewards, options.reward)
    unit = "characters" if setting.tokenizer is None else "tokens"
    rows = _rows(np.array(lengths), found, golds, setting.limit)
    show(f"{', '.join(path.name for path in inputs.paths)}: {len(lengths):,} prompts", rows, len(lengths))
    _say(inputs, np.array(lengths), unit, golds, column)
    draw(picture, np.array(lengths), unit, setting.limit, {k: n for k, n in rows.items() if k != "prompts"})
    say(f"written: {picture}")


def _rows(lengths: np.ndarray, found: Repeats, golds: Golds, limit: int | None) -> dict[str, int]:
    rows = {
        "prompts": len(lengths),
        "the same prompt as an earlier one": int(np.count_nonzero(found.kind == Kind.EXACT)),
        "the same but for case and white space": int(np.count_nonzero(found.kind == Kind.NORMALISED)),
        "nearly the same as an earlier one": int(np.count_nonzero(found.kind == Kind.NEAR)),
    }
    if limit is not None:
        rows[f"longer than {limit} tokens: never trained on"] = int(np.count_nonzero(lengths > limit))
    return rows


def _say(inputs: Inputs, lengths: np.ndarray, unit: str, golds: Golds, column: str) -> None:
    low, median, high, most = (int(x) for x in np.percentile(lengths, [0, 50, 99, 100]))
    say(f"length: {low:,} to {most:,} {unit}, median {median:,}, 99 % up to {high:,}")
    for line in golds.lines():
        say(line)
    for path in inputs.paths:
        if (said := about(path)) is not None:
            say(said[0] if said[1] else f"warning: {said[0]}")
    say("examples:")
    step = max(1, len(lengths) // _EXAMPLES)
    for index, record in enumerate(inputs.records()):
        if index % step == 0 and index < step * _EXAMPLES:
            shown = " ".join(str(record.values[column]).split())
            cut = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
            say(f"  {inputs.name(record.file, record.number)}: {cut}")
