"""The command line: ``python -m tools.mutants``."""

from __future__ import annotations

import argparse
import fnmatch
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tools.mutants
from tools.mutants.finder import Finder
from tools.mutants.laboratory import Laboratory
from tools.mutants.mutant import KINDS, Mutant
from tools.mutants.reach import Reach, explore
from tools.mutants.report import accepted, report, share_killed, versions
from tools.mutants.run import run_all

COVER = {
    "gspo_lightning/objectives/*.py": "tests/objectives",
    "gspo_lightning/loop/advantages/within_groups.py": "tests/loop/advantages/test_within_groups.py",
    "gspo_lightning/policy/logprobs.py": "tests/policy/test_logprobs.py",
}
"""Glob of source files -> the unit tests that cover them (comma-separated)."""
EXCEPT = ("gspo_lightning/objectives/trial.py",)
"""An example that objectives of plug-ins are tried on before a run: other numbers would do as well."""
ACCEPTED = Path(__file__).parent.with_name("accepted_mutants.toml")
REPORT = Path("tools/mutants/report.md")
ENOUGH = 0.95


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        "python -m tools.mutants", description=(tools.mutants.__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--sample", type=int, help="only so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--file", action="append", help="only files that match this glob; may be repeated")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be repeated")
    parser.add_argument("--only-accepted", action="store_true", help="only mutants of the table of accepted survivors")
    parser.add_argument("--list", action="store_true", help="print the mutants and do not run them")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="of the repository")
    parser.add_argument("--cover", action="append", help="GLOB=TESTS, instead of the built-in table; may be repeated")
    parser.add_argument("--accepted", type=Path, default=ACCEPTED, help="table of accepted survivors (TOML)")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds per mutant")
    parser.add_argument("--report", type=Path, help=f"Markdown; {REPORT} when everything is run, else none")
    args = parser.parse_args(argv)
    args.root = args.root.resolve()
    cover = dict(c.split("=", 1) for c in args.cover) if args.cover else COVER
    args.files = {
        file: tuple(tests.split(","))
        for glob, tests in cover.items()
        for file in (str(p.relative_to(args.root)) for p in sorted(args.root.glob(glob)))
        if file not in EXCEPT and (not args.file or any(fnmatch.fnmatch(file, g) for g in args.file))
    }
    if not args.files:
        parser.error("no file matches")
    return args


def find(lab: Laboratory, root: Path, files: dict[str, tuple[str, ...]]) -> list[tuple[Mutant, Reach]]:
    """All mutants, after a run of the tests on the unchanged files.

    Raises:
        SystemExit: code 2 if that run fails.
    """
    found: list[tuple[Mutant, Reach]] = []
    for tests in dict.fromkeys(files.values()):
        finders = [Finder(f, (root / f).read_text()) for f, of in files.items() if of == tests]
        outcome, reach = explore(lab, finders, tests)
        if outcome.verdict != "survived":
            print(f"mutants: the tests do not pass on the unchanged files: {outcome.verdict} {outcome.by}")
            raise SystemExit(2)
        found += [(m, reach) for finder in finders for m in finder.mutants(reach.gradients[finder.file])]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 unless fewer than 95 % of the mutants that are not equivalent were killed."""
    args = parse(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(args.root))
    began = time.monotonic()
    lab = Laboratory(args.root, args.limit)
    lab.prepare(sorted({t for tests in args.files.values() for t in tests}))
    known = accepted(args.accepted)
    work = find(lab, args.root, args.files)
    total, keys = len(work), {m.key for m, _ in work}
    work = [w for w in work if not args.kind or w[0].kind in args.kind]
    work = [w for w in work if not args.only_accepted or w[0].key in known]
    if args.sample is not None and args.sample < len(work):
        work = [work[i] for i in sorted(random.Random(args.seed).sample(range(len(work)), args.sample))]
    if args.list:
        print("\n".join(f"{m.kind:14}{m.file}:{m.line}\n    - {m.old}\n    + {m.new}" for m, _ in work))
        return 0
    print(f"{len(work)} of {total} mutants of {len(args.files)} files, {args.jobs} at a time", flush=True)

    results = run_all(lab, work, args.jobs, lambda line: print(line, flush=True))
    for result in results:
        if result.outcome.verdict == "survived":
            result.reason = known.get(result.mutant.key)
    everything = len(work) == total and not args.file
    stale = [k for k in known if everything and k not in keys]
    stale += [r.mutant.key for r in results if r.mutant.key in known and r.reason is None]
    path = args.report or (args.root / REPORT if everything and args.root == Path.cwd().resolve() else None)
    if path is not None:
        options = "".join(f" {o}" for o in (sys.argv[1:] if argv is None else argv))
        heading = {
            "command": f"`python -m tools.mutants{options}`, {(time.monotonic() - began) / 60:.1f} minutes",
            "mutants": f"{len(work)} of {total}" + ("" if len(work) < total else " (all)"),
            "versions": versions(),
        }
        path.write_text(report(results, heading, stale))
    gaps, equal = [r for r in results if r.is_gap], [r for r in results if r.reason]
    for r in gaps:
        print(
            f"{r.outcome.verdict} {r.mutant.file}:{r.mutant.line} {r.mutant.kind}\n- {r.mutant.old}\n+ {r.mutant.new}"
        )
    for key in stale:
        print(f"accepted without need: {key}")
    share, rest = share_killed(results), len(results) - len(equal)
    print(f"killed {rest - len(gaps)} of {rest} ({100 * share:.1f} %), equivalent {len(equal)}")
    return 0 if share >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
