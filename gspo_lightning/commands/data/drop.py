"""How a verb that drops records begins and ends: the files, the copy, the certificate, the table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gspo_lightning.commands.data.table import dropped_table
from gspo_lightning.corpus.certificate import Certificate, certificate_file, inherited
from gspo_lightning.corpus.files import Inputs
from gspo_lightning.corpus.output import Outputs, copy, dropped_file, same_format

__all__ = ["Found", "drop"]


@dataclass(frozen=True, slots=True)
class Found:
    """Which records a verb drops. Records are numbered from 0 over all inputs."""

    keeps: Callable[[int], bool]
    """Number of a record -> whether it is kept."""
    why: Callable[[int], Mapping[str, Any]]
    """Number of a dropped record -> what is written beside it."""
    counts: Mapping[str, int]
    """Reason -> dropped records, for the table."""
    certificate: Certificate | None = None
    """Of the output; None takes that of the inputs."""


def drop(
    verb: str,
    options: argparse.Namespace,
    find: Callable[[Inputs, Outputs], Found],
    *,
    against: Sequence[Path] = (),
    certifies: bool = False,
) -> None:
    """Copy what is kept to ``--output``, and everything else to the file beside it, with its reason.

    Args:
        verb: for the table.
        options: with ``input`` and ``output``.
        find: reads the inputs and decides.
        against: further files that are read, so no output may be one of them.
        certifies: whether ``find`` returns a certificate.

    Raises:
        UserError: an option or a record is wrong.
    """
    inputs, output = Inputs(options.input), options.output
    same_format(inputs, [output])
    carried = None if certifies else inherited(inputs.paths)
    dropped, certificates = dropped_file(output), [certificate_file(output)] if certifies or carried else []
    with Outputs([dropped, *certificates, output], [*inputs.paths, *against]) as outputs:
        found = find(inputs, outputs)
        with tqdm(desc="write", total=len(inputs), unit=" records", unit_scale=True) as bar:
            copy(inputs, outputs, [output], lambda i: 0 if found.keeps(i) else -1, dropped, found.why, bar.update)
        outputs.write_certificate(found.certificate or carried, output)
    dropped_table(verb, len(inputs), found.counts, output)
