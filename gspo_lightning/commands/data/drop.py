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
    inputs, output = Inputs(options.input), options.output
    same_format(inputs, [output])
    carried = None if certifies else inherited(inputs.paths)
    dropped, reports = dropped_file(output), [report_file(output)] if certifies or carried else []
    with Outputs([dropped, *reports, output], [*inputs.paths, *against]) as outputs:
        found = find(inputs, outputs)
        with tqdm(desc="write", total=len(inputs), unit=" records", unit_scale=True) as bar:
            copy(inputs, outputs, [output], lambda i: 0 if found.keeps(i) else -1, dropped, found.why, bar.update)
        outputs.write_report(found.report or carried, output)
    dropped_table(verb, len(inputs), found.counts, output)
