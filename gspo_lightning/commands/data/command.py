"""``gspo data VERB``: list of verbs and dispatch."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

VERBS = {
    "report": "summarize a file: counts, lengths, duplicates, answers that cannot be read",
    "convert": "rename the columns of public data sets, and convert file formats",
    "dedup": "drop prompts that repeat an earlier one, exactly or nearly",
    "decontaminate": "drop prompts that leak a benchmark, and write a decontamination report",
    "split": "split off held-out prompts, with near-duplicates on one side",
    "difficulty": "measure how often a model passes each prompt",
    "filter": "keep prompts by their pass rate",
    "mix": "mix files by weights",
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
        description="Prepare files of prompts: JSON lines or Parquet in, the same format out, nothing overwritten.",
        epilog=f"verbs, in the order in which they are used (gspo data VERB --help for options):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("verb", metavar="VERB", choices=VERBS, help=", ".join(VERBS))
    verb = parser.parse_args(list(argv[:1])).verb
    module = importlib.import_module(f"gspo_lightning.commands.data.{verb}")
    verb_parser = argparse.ArgumentParser(f"gspo data {verb}", description=module.DESCRIPTION, allow_abbrev=False)
    module.add_arguments(verb_parser)
    if getattr(module, "PASSES_ON", False):
        options, rest = verb_parser.parse_known_args(list(argv[1:]))
        module.run(options, rest)
    else:
        module.run(verb_parser.parse_args(list(argv[1:])))
    return 0
