"""``python -m benchmarks.device_check --compile``: attention kernels of a run, compiled for an H100 without one.

Prints what each kernel needs beside the committed numbers. The exit code is 1 if a kernel got worse: it does not fit,
needs more shared memory, spills more, or lost wgmma. Seconds are not compared. Needs Triton and ptxas.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

__all__ = ["found_worse", "main"]

TABLE = Path(__file__).parent / "results" / "kernels_sm90.json"
SIZES = (64, 96, 128, 256)
DTYPES = ("bfloat16", "float32")
PARTS = ("forward", "backward", "no gradients")
SHARED = 227 << 10
"""Bytes of shared memory that a block of threads may have on an H100."""


def found_worse(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return what got worse in a kernel, given as dictionaries; nothing ``before`` if it was not there."""
    worse = []
    if now["shared_bytes"] > SHARED:
        worse.append(f"does not fit into {SHARED} bytes of shared memory")
    if not before:
        return worse
    for name, what in (("shared_bytes", "shared memory"), ("spill_bytes", "spills")):
        if now[name] > before[name]:
            worse.append(f"{what}: {before[name]} to {now[name]} bytes")
    if before["wgmma"] and not now["wgmma"]:
        worse.append("no wgmma any more")
    return worse


def main(argv: Sequence[str]) -> int:
    """Compile and compare; 1 if a kernel got worse."""
    parser = argparse.ArgumentParser("python -m benchmarks.device_check --compile", description=__doc__)
    parser.add_argument("--output", type=Path, help="JSON")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} anew; nothing is compared")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="dimensions of a head")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--options", type=json.loads, help='kernel options to try, as {"bwd_num_warps": 4}')
    args = parser.parse_args(argv)
    try:
        from benchmarks.simulated.compiler import attention_kernels, versions

        found: dict[str, Any] = {"versions": versions(), "kernels": {}}
    except ImportError as error:
        print(f"error: {error}\n  fix: make device-check-compile, whose environment has Triton", file=sys.stderr)
        return 2
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() and not args.write else {}
    if table and table["versions"] != found["versions"]:
        print(f"note: the committed numbers are of {table['versions']}, these of {found['versions']}")
    print(f"{'kernel':33} {'blocks':26} warps stages  shared B  registers  spill B  wgmma  seconds", flush=True)
    expected, failed = len(args.sizes) * len(args.dtypes) * len(PARTS), False
    for size, dtype in ((s, d) for s in args.sizes for d in args.dtypes):
        for kernel in attention_kernels(size, dtype, args.options):
            name, numbers = f"{size} {dtype} {kernel.part}", asdict(kernel)
            del numbers["part"]
            found["kernels"][name] = numbers
            worse = found_worse(numbers, table.get("kernels", {}).get(name, {}))
            failed = failed or bool(worse)
            k, wgmma = kernel, "yes" if kernel.wgmma else "no"
            print(
                f"[{len(found['kernels']):2}/{expected}] {name:25} {k.blocks:26} {k.warps:5} {k.stages:6} "
                f"{k.shared_bytes:9} {k.registers:10} {k.spill_bytes:8} {wgmma:>6} {k.seconds:8.1f}"
                + "".join(f"\n        worse: {what}" for what in worse),
                flush=True,
            )
    if missing := expected - len(found["kernels"]):
        print(f"error: {missing} of {expected} kernels were not compiled", file=sys.stderr)
        failed = True
    for path in [*([TABLE] if args.write else []), *([args.output] if args.output else [])]:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(failed)
