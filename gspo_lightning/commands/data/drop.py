"""Common part of verbs that drop records: the files, the copy, the decontamination report and the table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gspo_lightning.commands.data.terminal import dropped_table
from gspo_lightning.data.corpus.decontamination_report import DecontaminationReport, inherited, report_file
from gspo_lightning.data.corpus.files import Inputs
from gspo_lightning.data.corpus.output import Outputs, copy, dropped_file, same_format


@dataclass(frozen=True, slots=True)
class Found:
    """Decision of a verb on which records to drop; records are numbered from 0 over all inputs."""

    keeps: Callable[[int], bool]
    """Record number -> True if the record is kept."""
    why: Callable[[int], Mapping[str, Any]]
    """Number of a dropped record -> fields written with it, such as the reason."""
    counts: Mapping[str, int]
    """Reason -> number of dropped records, for the table."""
    report: DecontaminationReport | None = None
    """Decontamination report of the output; None keeps that of the inputs."""


def drop(
    verb: str,
    options: argparse.Namespace,
    find: Callable[[Inputs, Outputs], Found],
    *,
    against: Sequence[Path] = (),
    certifies: bool = False,
) -> None:
    """Copy kept records to ``--output`` and dropped ones, with the reason, to a file in the same folder.

    Args:
        verb: name of the verb, for the table.
        options: parsed options, with ``input`` and ``output``.
        find: reads the inputs and decides which records to drop.
        against: further input files; no output may be one of them.
        certifies: True if ``find`` returns a decontamination report.

    Raises:
        UserError: an option or a record is wrong.
    """
    inputs = Inputs(options.input)
    output = options.output
    same_format(inputs, [output])
    inputs_report = None if certifies else inherited(inputs.paths)
    dropped = dropped_file(output)
    reports = [report_file(output)] if certifies or inputs_report else []
    with Outputs([dropped, *reports, output], [*inputs.paths, *against]) as outputs:
        decision = find(inputs, outputs)

        def target(index: int) -> int:
            return 0 if decision.keeps(index) else -1

        with tqdm(desc="write", total=len(inputs), unit=" records", unit_scale=True) as bar:
            copy(inputs, outputs, [output], target, dropped, decision.why, bar.update)
        outputs.write_report(decision.report or inputs_report, output)
    dropped_table(verb, len(inputs), decision.counts, output)
