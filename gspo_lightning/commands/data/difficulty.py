"""``gspo data difficulty``: measure the pass rate of each prompt, by sampling or from recorded rollouts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.commands.data.recorded import recorded_tallies
from gspo_lightning.commands.data.table import show
from gspo_lightning.commands.data.tallies import COLUMNS, Tally, columns_of, journal_of, rewrite
from gspo_lightning.commands.data.words import add_column, add_files
from gspo_lightning.corpus.certificate import certificate_file, inherited
from gspo_lightning.corpus.files import Inputs
from gspo_lightning.corpus.output import Outputs, same_format
from gspo_lightning.errors import UserError
from gspo_lightning.escape import say

__all__ = ["DESCRIPTION", "PASSES_ON", "add_arguments", "run"]

DESCRIPTION = (
    f"Add {', '.join(COLUMNS)} to every record: the share of responses that earn 1 from the config's accuracy reward "
    "(the first one, or data.evaluation.accuracy_reward), with a 95 % interval. An interrupted command continues."
)
PASSES_ON = True
"""True: other options are passed on to ``gspo fit``, for the config."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_files(parser)
    parser.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="of gspo fit: model, rollout source, rewards"
    )
    parser.add_argument("--samples", type=int, default=8, metavar="K", help="responses to each prompt (default: 8)")
    parser.add_argument("--ckpt_path", metavar="FILE", help="sample from this checkpoint, or last")
    parser.add_argument(
        "--recorded", nargs="+", type=Path, metavar="PATH", help="count in recorded rollouts instead: files, folders"
    )
    parser.add_argument("--reward", metavar="NAME", help="with --recorded: which part decides (default: the total)")
    add_column(parser)


def run(options: argparse.Namespace, rest: Sequence[str]) -> None:
    """Sample responses or read recorded rollouts, then write the pass rates.

    Raises:
        UserError: an option, the config or a record is wrong.
        InfrastructureError: too many responses could not be graded.
    """
    if bool(options.config) == bool(options.recorded):
        said = "is one of two that say who answers" if options.config else "is missing"
        raise UserError("--config", said, fix="give --config FILE, or --recorded FILE")
    if rest and options.recorded:
        raise UserError(rest[0], "is no option of gspo data difficulty --recorded")
    if options.samples < 1:
        raise UserError("--samples", f"is {options.samples}; it must be at least 1")
    inputs = Inputs(options.input)
    same_format(inputs, [options.output])
    certificate = inherited(inputs.paths)
    targets = [*([certificate_file(options.output)] if certificate else []), options.output]
    with Outputs(targets, inputs.paths) as outputs:
        if options.recorded:
            tallies = recorded_tallies(inputs, options.column, options.recorded, options.reward)
        else:
            from gspo_lightning.commands.data.sampling import sampled_tallies  # torch

            tallies = sampled_tallies(inputs, options, rest)
        rewrite(inputs, outputs.path(options.output), tallies)
        outputs.write_certificate(certificate, options.output)
    if not options.recorded:
        journal_of(options.output).unlink(missing_ok=True)
    _told(tallies, options.output)


def _told(tallies: Sequence[Tally | None], output: Path) -> None:
    rates = [columns_of(one)["pass_rate"] for one in tallies]
    known = [rate for rate in rates if rate is not None]
    rows = {
        "records": len(rates),
        "never passed": sum(rate == 0 for rate in known),
        "passed now and then": sum(0 < rate < 1 for rate in known),
        "always passed": sum(rate == 1 for rate in known),
        "no verdict": len(rates) - len(known),
    }
    show("gspo data difficulty", rows, len(rates))
    say(f"written: {output}")
