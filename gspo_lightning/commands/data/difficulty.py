"""``gspo data difficulty``: measure the pass rate of each prompt, by sampling or from recorded rollouts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.commands.data.pass_counts import (
    COLUMNS,
    PassCount,
    columns_of,
    journal_of,
    recorded_pass_counts,
    rewrite,
)
from gspo_lightning.commands.data.terminal import add_column, add_files, show
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say
from gspo_lightning.data.corpus.decontamination_report import inherited, report_file
from gspo_lightning.data.corpus.files import Inputs
from gspo_lightning.data.corpus.output import Outputs, same_format

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
        problem = "is one of two that say who answers" if options.config else "is missing"
        raise UserError("--config", problem, fix="give --config FILE, or --recorded FILE")
    if rest and options.recorded:
        raise UserError(rest[0], "is no option of gspo data difficulty --recorded")
    if options.samples < 1:
        raise UserError("--samples", f"is {options.samples}; it must be at least 1")
    inputs = Inputs(options.input)
    same_format(inputs, [options.output])
    report = inherited(inputs.paths)
    targets = [report_file(options.output), options.output] if report else [options.output]
    with Outputs(targets, inputs.paths) as outputs:
        if options.recorded:
            pass_counts = recorded_pass_counts(inputs, options.column, options.recorded, options.reward)
        else:
            from gspo_lightning.commands.data.sampling import sampled_pass_counts  # torch

            pass_counts = sampled_pass_counts(inputs, options, rest)
        rewrite(inputs, outputs.path(options.output), pass_counts)
        outputs.write_report(report, options.output)
    if not options.recorded:
        journal_of(options.output).unlink(missing_ok=True)
    _summarize(pass_counts, options.output)


def _summarize(pass_counts: Sequence[PassCount | None], output: Path) -> None:
    rates = [columns_of(pass_count)["pass_rate"] for pass_count in pass_counts]
    measured = [rate for rate in rates if rate is not None]
    rows = {
        "records": len(rates),
        "never passed": sum(rate == 0 for rate in measured),
        "passed now and then": sum(0 < rate < 1 for rate in measured),
        "always passed": sum(rate == 1 for rate in measured),
        "no verdict": len(rates) - len(measured),
    }
    show("gspo data difficulty", rows, len(rates))
    say(f"written: {output}")
