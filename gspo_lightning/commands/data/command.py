"""``gspo data VERB``: list of verbs and dispatch."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

__all__ = ["VERBS", "main"]

VERBS = {
    "report": "what is in a file: counts, lengths, duplicates, answers that cannot be read",
    "convert": "the columns of public sets under our names; other formats of files",
    "dedup": "drop prompts that repeat an earlier one, exactly or nearly",
    "decontaminate": "drop prompts that give away a benchmark, and write a certificate",
    "split": "hold prompts out, with no near-duplicate on the other side",
    "difficulty": "how often a model passes each prompt",
    "filter": "keep prompts by their pass rate",
    "mix": "several files in one, by weights",
}
"""Verbs in order of use; each is a module of the same name in this package, with ``add_arguments`` and ``run``."""


def main(argv: Sequence[str]) -> int:
    """Run a verb.

    Raises:
        UserError: an option or a record is wrong.
    """
    listed = "\n".join(f"  {name:<15}{text}" for name, text in VERBS.items())
    parser = argparse.ArgumentParser(
        "gspo data",
        description="Files of prompts before training: JSON lines or Parquet in, the same out, nothing overwritten.",
        epilog=f"verbs, in the order in which they are used (gspo data VERB --help for options):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("verb", metavar="VERB", choices=VERBS, help=", ".join(VERBS))
    verb = parser.parse_args(list(argv[:1])).verb
    module = importlib.import_module(f"gspo_lightning.commands.data.{verb}")
    own = argparse.ArgumentParser(f"gspo data {verb}", description=module.DESCRIPTION, allow_abbrev=False)
    module.add_arguments(own)
    if getattr(module, "PASSES_ON", False):
        options, rest = own.parse_known_args(list(argv[1:]))
        module.run(options, rest)
    else:
        module.run(own.parse_args(list(argv[1:])))
    return 0
