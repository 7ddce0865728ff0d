"""``gspo data filter``: keep prompts by their pass rate."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from typing import Any

from gspo_lightning.commands.data.drop import Found, drop
from gspo_lightning.commands.data.terminal import add_files, reading
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.tolerance import at_least
from gspo_lightning.data.corpus.files import Identifiers, Inputs, Record
from gspo_lightning.data.corpus.output import Outputs

DESCRIPTION = "Keep prompts whose pass rate lies in a range, both ends included; gspo data difficulty writes it."
COLUMN = "pass_rate"
UNKNOWN = "no pass rate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_files(parser)
    parser.add_argument(
        "--pass_rate", nargs=2, type=float, required=True, metavar=("LOW", "HIGH"), help="shares, for example .1 .9"
    )


def run(options: argparse.Namespace) -> None:
    """Keep prompts whose pass rate lies in the range.

    Raises:
        UserError: an option or a record is wrong.
    """
    low, high = options.pass_rate
    if not 0 <= low <= high <= 1:
        raise UserError("--pass_rate", f"is {low:g} {high:g}; write two shares from 0 to 1, the lower one first")

    def find(inputs: Inputs, outputs: Outputs) -> Found:
        rates = []
        identifiers = Identifiers(inputs)
        with reading(inputs, "read") as step:
            for record in inputs.records([COLUMN, "id"]):
                identifiers.add(record)
                rates.append(_rate(inputs, record))
                step(record)
        counts = Counter(_reason(rate, low) for rate in rates if not _within(rate, low, high))
        return Found(
            lambda i: _within(rates[i], low, high),
            lambda i: {"reason": _reason(rates[i], low), COLUMN: rates[i] if rates[i] >= 0 else None},
            {name: counts[name] for name in ("too hard", "too easy", UNKNOWN)},
        )

    drop("filter", options, find)


def _within(rate: float, low: float, high: float) -> bool:
    """True if a rate lies in the range, or outside of it by rounding only."""
    return bool(at_least(rate, low) and at_least(-rate, -high))


def _reason(rate: float, low: float) -> str:
    if rate < 0:
        return UNKNOWN
    return "too hard" if rate < low else "too easy"


def _rate(inputs: Inputs, record: Record) -> float:
    """Return the pass rate of a record, or -1 if it is null."""
    where = inputs.name(record.file, record.number)
    value: Any = record.values.get(COLUMN)
    if value is None and COLUMN in record.values:
        return -1.0
    if value is None:
        raise UserError(where, f"has no {COLUMN!r}", fix="gspo data difficulty writes it")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise UserError(where, f"its {COLUMN!r} is {value!r:.40}; it must be a share from 0 to 1")
    return float(value)
