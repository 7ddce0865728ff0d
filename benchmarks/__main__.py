"""``python -m benchmarks [SUBJECT ...] [--quick] [--json]``: everything, or some subjects, on this CPU."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SUBJECTS = ("parity", "train", "step", "memory", "floor", "scaling")
MODELS = ("10m", "1m", "moe")
WORKLOADS = ("short-long", "balanced", "long-short", "equal")
LAYOUTS = ("auto", "packed", "padded")
DEALS = ("stratified", "shuffled", "groups")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; default: all")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="half the prompts, fewer workloads, no train and no scaling",
    )
    parser.add_argument("--json", action="store_true", help="print the ratios as one JSON object on the last line")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS, help="which models")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, help="which workloads; default: all")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of both sides; the first is dropped")
    parser.add_argument(
        "--against", metavar="REVISION", help="only CPU time beside an earlier revision, in pairs; last: the last tag"
    )
    parser.add_argument("--only-ours", action="store_true", help="measure this package alone (to profile it)")
    parser.add_argument("--layout", default="auto", choices=LAYOUTS, help="of this package in step")
    parser.add_argument("--deal", default=DEALS[0], choices=DEALS, help="rows of a mini-batch of this package in step")
    parser.add_argument("--output", type=Path, help="folder for results as JSON and Markdown")
    parser.add_argument("--name", default="results", help="file name in --output, without suffix")
    given = parser.parse_args(argv)
    if unknown := [s for s in given.subjects if s not in SUBJECTS]:
        parser.error(f"no such subject: {', '.join(unknown)}; there are {', '.join(SUBJECTS)}")
    if given.rounds < 2:
        parser.error("--rounds must be at least 2: the first is dropped")
    return given


def _against(given: argparse.Namespace) -> int:
    """Compare with an earlier revision; 1 if a subject is surely slower than the bound."""
    import json

    from benchmarks.against import ROOT, against, last, show, worktree
    from benchmarks.report import about

    revision = last() if given.against == "last" else given.against
    if revision is None:
        print("this clone has no earlier commit (git clone --depth 2): nothing is compared")
        return 0
    with worktree(revision) as before:
        found = against((before, ROOT), given.rounds)
    show(found, revision)
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
        result = {"about": about(f"python -m benchmarks --against {revision}"), "against": [one.line for one in found]}
        (given.output / f"{given.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return int(any(one.fails for one in found))


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 1 if parity does not hold, 2 if something is missing."""
    given = parse(argv)
    from benchmarks.run import run  # after the environment is set; importing torch takes seconds
    from gspo_lightning.core.errors import UserError

    if given.against:
        return _against(given)
    try:
        return run(given, " ".join(["python -m benchmarks", *(argv if argv is not None else sys.argv[1:])]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
