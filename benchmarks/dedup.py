"""CPU time and memory of ``gspo data dedup``: ``python -m benchmarks.dedup [--prompts N] [--output FILE]``.

Prompts have 200 characters. A tenth of them are another one with a word changed, a twentieth another one in capitals;
with ``--template`` all are one template with other numbers, which is the worst case: everything shares buckets.
The command runs in a process of its own, whose user and system time and peak resident set are taken from the kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.result import add_output, finish

__all__ = ["measure"]

LENGTH, REMEMBERED = 200, 50_000
TEMPLATE = (
    "A train leaves station {} at {} km/h and another one leaves station {} at {} km/h. The two stations are {} km "
    "apart. After how many minutes do the trains meet, and how far from the first station is that? {}"
)


def mixed(count: int, draw: random.Random) -> Iterator[str]:
    """Random words, with planted repetitions."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(20_000)]
    known: list[str] = []
    for _ in range(count):
        kind = draw.random()
        if kind < 0.1 and known:
            text, place = draw.choice(known), draw.randrange(LENGTH - 5)
            text = text[:place] + draw.choice(words) + text[place + 5 :]
        elif kind < 0.15 and known:
            text = draw.choice(known).upper()
        else:
            text = " ".join(draw.choices(words, k=50))[:LENGTH]
        if len(known) < REMEMBERED:
            known.append(text)
        yield text


def template(count: int, draw: random.Random) -> Iterator[str]:
    """One template."""
    for _ in range(count):
        yield TEMPLATE.format(*(draw.randrange(10**6) for _ in range(6)))


def measure(count: int, prompts: Iterator[str], folder: Path) -> dict[str, Any]:
    """Write, run, read what the kernel says."""
    source, target = folder / "prompts.jsonl", folder / "kept.jsonl"
    with source.open("w") as file:
        for number, prompt in enumerate(prompts):
            file.write(json.dumps({"id": number, "prompt": prompt}) + "\n")
    words = ["data", "dedup", "--input", str(source), "--output", str(target)]
    process = subprocess.Popen(
        [sys.executable, "-m", "gspo_lightning", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"gspo data dedup ended with {process.returncode}")
    with target.open("rb") as kept:
        return {
            "prompts": count,
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
            "peak_rss_mib": round(usage.ru_maxrss / 1024),
            "kept": sum(1 for _ in kept),
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser("python -m benchmarks.dedup", description=__doc__)
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--template", action="store_true", help="the worst case instead")
    add_output(parser)
    options = parser.parse_args(argv)
    make = template if options.template else mixed
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.prompts, make(options.prompts, random.Random(0)), Path(folder))
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, {_processor()}"
    found["versions"] = {name: version(name) for name in ("gspo_lightning", "numpy")} | {
        "python": platform.python_version()
    }
    words = f"--prompts {options.prompts}{' --template' if options.template else ''}"
    finish(found, f"python -m benchmarks.dedup {words}", options.output)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
