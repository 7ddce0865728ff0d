"""The command line: ``python -m tools.defects``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path

import tools.defects
from tools.defects.child import Found, run_tests
from tools.defects.patch import Patch, read_patches

LEFT = ("build", "lightning_logs", "runs")
"""Folders in the root that a copy does not need, beside hidden ones."""
PRELOAD = ("torch", "lightning.pytorch", "transformers", "hypothesis", "sympy", "pytest")
LIMIT_S = 1200.0


def run(context: ForkServerContext, root: Path, patch: Patch | None, tests: Sequence[str]) -> Found:
    """Outcomes of tests in a copy of the tree, with a patch or as it is."""
    with tempfile.TemporaryDirectory(prefix="defects-") as scratch:
        Path(scratch).chmod(0o755)  # programs in the sandbox run as another user
        copy, output = Path(scratch) / "tree", Path(scratch) / "found.json"
        shutil.copytree(root, copy, symlinks=True, ignore=partial(_left, root))
        try:
            changed = {} if patch is None else patch.changed(copy)
        except ValueError as error:
            return {"broken": {"patch": str(error)}}
        for file, text in changed.items():
            file.write_text(text, encoding="utf-8")
        process = context.Process(target=run_tests, args=(copy, list(tests), output))
        process.start()
        process.join(LIMIT_S)
        if process.is_alive():
            os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
        if not output.exists():
            return {"broken": {"pytest": output.with_suffix(".log").read_text(errors="replace")[-2000:]}}
        found: Found = json.loads(output.read_text(encoding="utf-8"))
        return found


def _left(root: Path, folder: str, names: Sequence[str]) -> set[str]:
    return {name for name in names if name.startswith(".") or name in LEFT} if folder == str(root) else set()


def verdict(test: str, found: Found, without: Found) -> tuple[str, str]:
    """Caught, missed, or why that cannot be said; with what the test's exception says.

    Args:
        test: id of a test, or of a function with several cases, of which one is enough.
        found: outcomes with the defect.
        without: outcomes of the tree as it is.
    """

    def of(outcomes: Found, kind: str) -> list[str]:
        return [said for node, said in outcomes.get(kind, {}).items() if node == test or node.startswith(f"{test}[")]

    if failed := of(without, "failed") + of(without, "broken"):
        return "fails without the defect", failed[0]
    if not of(without, "passed"):
        why = next(iter(without.get("broken", {}).values()), "")
        return ("skipped here", "") if of(without, "skipped") else ("not there", why)
    if failed := of(found, "failed"):
        return "caught", failed[0]
    return ("broken", next(iter(found["broken"].values()))) if found.get("broken") else ("missed", "")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 if every defect is caught by each of its tests (or these are skipped here)."""
    parser = argparse.ArgumentParser("python -m tools.defects", description=tools.defects.__doc__)
    parser.add_argument("names", nargs="*", help="of patches, without .patch; all where none is named")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="of the repository")
    parser.add_argument("--patches", type=Path, default=Path(__file__).parent, help="folder of patches")
    parser.add_argument("--jobs", type=int, default=2, help="trees at a time")
    parser.add_argument("--preload", nargs="*", default=PRELOAD, help="modules to import once for all children")
    options = parser.parse_args(argv)
    root = options.root.resolve()
    patches, start = read_patches(options.patches, options.names), time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(options.preload))
    without = run(context, root, None, sorted({test for patch in patches for test in patch.tests}))
    bad = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        work = ((patch, pool.submit(run, context, root, patch, patch.tests)) for patch in patches)
        for patch, found in list(work):
            for test in patch.tests:
                word, said = verdict(test, found.result(), without)
                bad += word not in ("caught", "skipped here")
                print(
                    f"{patch.name:32} {word:12} {test.partition('::')[2]}: {' '.join(said.split())[:100]}", flush=True
                )
    print(f"{len(patches)} defects, {bad} tests that do not catch theirs, {time.monotonic() - start:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
