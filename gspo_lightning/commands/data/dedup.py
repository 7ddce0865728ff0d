"""``gspo data dedup``: keep one of each prompt, and write its duplicates to a separate file."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from tqdm import tqdm

from gspo_lightning.commands.data.drop import Found, drop
from gspo_lightning.commands.data.read import read_prompts
from gspo_lightning.commands.data.terminal import add_column, add_files, add_threshold, check_threshold
from gspo_lightning.data.corpus.duplicates import Kind, NearDuplicates, Repeats, equal_texts
from gspo_lightning.data.corpus.files import Inputs
from gspo_lightning.data.corpus.output import Outputs

DESCRIPTION = "Keep the first of all prompts that are the same or nearly the same."
_REASONS = {
    Kind.EXACT: "the same prompt",
    Kind.NORMALISED: "the same but for case and white space",
    Kind.NEAR: "nearly the same",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_files(parser)
    add_column(parser)
    add_threshold(parser)


def run(options: argparse.Namespace) -> None:
    """Drop prompts that repeat an earlier one.

    Raises:
        UserError: an option or a record is wrong.
    """
    check_threshold(options.threshold)

    def find(inputs: Inputs, outputs: Outputs) -> Found:
        repeats = find_repeats(inputs, options.column, options.threshold, outputs)
        counts = Counter(_REASONS[Kind(kind)] for kind in repeats.kind.tolist() if kind)
        by_reason = {reason: counts[reason] for reason in _REASONS.values()}
        return Found(lambda i: bool(repeats.of[i] < 0), lambda i: _why(inputs, repeats, i), by_reason)

    drop("dedup", options, find)


def find_repeats(inputs: Inputs, column: str, threshold: float, outputs: Outputs) -> Repeats:
    """Find exact, normalised and near-duplicates; every repeat points to the record that is kept."""
    prompts = read_prompts(inputs, column, outputs.scratch)
    repeats = equal_texts(prompts.texts, *prompts.hashes())
    places = np.flatnonzero(repeats.of < 0)
    with tqdm(desc="compare", total=2 * len(places), unit=" prompts", unit_scale=True) as bar:
        NearDuplicates(prompts.texts, places, threshold, outputs.scratch, bar.update).repeats(repeats)
    prompts.texts.close()
    for record in np.flatnonzero((repeats.kind != Kind.NEAR) & (repeats.of >= 0)).tolist():
        equal = repeats.of[record]
        kept = int(repeats.of[equal])
        if kept >= 0:  # the prompt it equals is itself a near-duplicate, and not kept
            repeats.similarity[record] = repeats.similarity[equal]
            repeats.of[record] = kept
            repeats.kind[record] = Kind.NEAR
    return repeats


def _why(inputs: Inputs, repeats: Repeats, index: int) -> Mapping[str, Any]:
    return {
        "reason": _REASONS[Kind(int(repeats.kind[index]))],
        "similarity": round(float(repeats.similarity[index]), 4),
        "repeats": inputs.place(int(repeats.of[index])),
    }
