"""``gspo data split``: hold prompts out, with no near-duplicates across the split."""

from __future__ import annotations

import argparse
from hashlib import blake2b
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gspo_lightning.commands.data.read import read_prompts
from gspo_lightning.commands.data.terminal import add_column, add_files, add_threshold, check_threshold, show
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say
from gspo_lightning.data.corpus.decontamination_report import inherited, report_file
from gspo_lightning.data.corpus.duplicates import NearDuplicates, equal_texts
from gspo_lightning.data.corpus.files import Inputs
from gspo_lightning.data.corpus.output import Outputs, copy, same_format

DESCRIPTION = "Split prompts in two; those that are nearly the same stay on one side."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_files(parser)
    parser.add_argument(
        "--held_out", type=Path, metavar="FILE", help="default: OUTPUT with .held_out before its suffix"
    )
    parser.add_argument("--share", type=float, default=0.1, help="of the records that are held out (default: 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn (default: 0)")
    add_column(parser)
    add_threshold(parser)


def run(options: argparse.Namespace) -> None:
    """Split the records into training and held-out files.

    Raises:
        UserError: an option or a record is wrong, or there are too few distinct prompts.
    """
    check_threshold(options.threshold)
    if not 0 < options.share < 1:
        raise UserError("--share", f"is {options.share:g}; it must lie between 0 and 1")
    held_out = options.held_out or options.output.with_suffix(f".held_out{options.output.suffix}")
    inputs = Inputs(options.input)
    targets = [options.output, held_out]
    same_format(inputs, targets)
    report = inherited(inputs.paths)
    reports = [report_file(path) for path in targets] if report else []
    with Outputs([*reports, *targets], inputs.paths) as outputs:
        clusters = _clusters(inputs, options.column, options.threshold, outputs)
        is_held_out = _drawn(clusters, options.share, options.seed)
        with tqdm(desc="write", total=len(inputs), unit=" records", unit_scale=True) as bar:
            copy(inputs, outputs, targets, lambda i: int(is_held_out[i]), progress=bar.update)
        for path in targets:
            outputs.write_report(report, path)
    total = len(is_held_out)
    count = int(np.count_nonzero(is_held_out))
    show("gspo data split", {"read": total, "held out": count, "output": total - count}, total)
    for path in targets:
        say(f"written: {path}")


def _clusters(inputs: Inputs, column: str, threshold: float, outputs: Outputs) -> np.ndarray:
    """Return a cluster number per record; records connected by a chain of near-duplicates share one."""
    prompts = read_prompts(inputs, column, outputs.scratch)
    repeats = equal_texts(prompts.texts, *prompts.hashes())
    places = np.flatnonzero(repeats.of < 0)
    with tqdm(desc="compare", total=2 * len(places), unit=" prompts", unit_scale=True) as bar:
        near = NearDuplicates(prompts.texts, places, threshold, outputs.scratch, bar.update)
        clusters = np.empty(len(repeats.of), dtype=np.int64)
        clusters[places] = places[near.clusters()]
    prompts.texts.close()
    repeating = np.flatnonzero(repeats.of >= 0)
    clusters[repeating] = clusters[repeats.of[repeating]]
    return clusters


def _drawn(clusters: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return a mask of held-out records: whole clusters in an order drawn from the seed, as long as they fit."""
    budget = max(1, round(share * len(clusters)))
    heads, sizes = np.unique(clusters, return_counts=True)
    draws = [blake2b(f"{seed}/{head}".encode(), digest_size=8).digest() for head in heads.tolist()]
    taken = []
    count = 0
    for place in sorted(range(len(heads)), key=draws.__getitem__):
        if count + int(sizes[place]) <= budget:
            taken.append(int(heads[place]))
            count += int(sizes[place])
        if count == budget:
            break
    if not taken or count == len(clusters):
        problem = f"has {len(heads)} groups of prompts that differ: none is small enough for {budget} held-out records"
        raise UserError("--input", problem, fix="raise --share, or gspo data dedup first")
    return np.isin(clusters, taken)
