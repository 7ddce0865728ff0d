"""Times of ``gspo view`` on a large synthetic run: ``python -m benchmarks.view``."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.report.view.index import INDEX

FILTERS = ("", "q=answer+77&sort=reward", "iteration=77", "sort=log_s&live=1", "q=no+such+text")


def make(folder: Path, updates: int, rollouts: int, tags: int = 110) -> None:
    """Write a run: every number of `tags` metrics, and its responses in a file per iteration of four updates."""
    draw = random.Random(0)
    names = ["data/iteration", "data/mini_batch", "reward/mean", "noise/sampler_logprob_gap"]
    names += [f"metric/{i}" for i in range(tags - len(names))]
    with open(folder / "scalars.jsonl", "w") as file:
        file.write(json.dumps({"table": 0, "tags": names}) + "\n")
        for i in range(updates):
            values = [round(draw.random(), 9) for _ in names[2:]]
            file.write(json.dumps([0, i + 1, 1.7e9 + i, i // 4, i % 4, *values], separators=(",", ":")) + "\n")
    (folder / "config.yaml").write_text("seed_everything: 1\n")
    (folder / "summary.json").write_text(json.dumps({"updates": updates, "objective": "GSPO"}))
    (folder / "rollouts").mkdir()
    iterations = max(1, updates // 4)
    for i in range(iterations):
        with open(folder / "rollouts" / f"{i:06d}.jsonl", "w") as file:
            for k in range(rollouts // iterations):
                words = " ".join(f"step {draw.randrange(10_000)};" for _ in range(12))
                row = {
                    "id": f"{draw.randrange(50_000)}/{k % 8}", "prompt": f"question {draw.randrange(50_000)} of {k}",
                    "completion": f"{words} answer {draw.randrange(1000)}", "answer": "1", "iteration": i,
                    "response_mask": [True] * 20, "finish_reason": "stop", "reward": float(draw.random() < 0.5),
                    "reward_parts": {"correct": 1.0},
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")


def serve(folder: Path) -> tuple[subprocess.Popen[str], str, float]:
    """Start the command; return the process, the address, and the seconds until the page has its overview."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "gspo_lightning", "view", str(folder), "--port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().split(" at ")[1].split()[0]
    ask(address, "")
    ask(address, "api/runs")
    return process, address, time.perf_counter() - begun


def ask(address: str, path: str) -> tuple[float, bytes]:
    """Return the seconds of a request, and its answer."""
    begun = time.perf_counter()
    with urllib.request.urlopen(address + path, timeout=600) as answer:
        content = answer.read()
    return time.perf_counter() - begun, content


def peak_mb(process: subprocess.Popen[str]) -> float:
    """Return the largest memory of a process so far, in MB (VmHWM of Linux)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def cpu_s(process: subprocess.Popen[str]) -> float:
    """Return the CPU seconds of a process so far, which other processes of the machine hardly change."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, rollouts: int) -> None:
    """Serve a run twice, first without an index, and print the times."""
    (folder / INDEX).unlink(missing_ok=True)
    process, address, seconds = serve(folder)
    try:
        print(f"opens without an index: {seconds:.2f} s", flush=True)
        begun = time.perf_counter()
        while not json.loads(ask(address, "api/run/0/overview")[1])["indexed"]:
            time.sleep(1)
        taken, size = time.perf_counter() - begun + seconds, (folder / INDEX).stat().st_size / 1e6
        cost = f"{taken:.0f} s, {cpu_s(process):.1f} s of CPU time"
        print(f"index of {rollouts:,} responses: {cost}, {size:.0f} MB, peak {peak_mb(process):.0f} MB")
    finally:
        process.terminate()
        process.wait()
    process, address, seconds = serve(folder)
    try:
        print(f"opens with it: {seconds:.2f} s, {cpu_s(process):.2f} s of CPU time, peak {peak_mb(process):.0f} MB")
        for query in FILTERS:
            before = cpu_s(process)
            found = sorted(ask(address, f"api/run/0/rollouts?{query}")[0] for _ in range(5))
            used = (cpu_s(process) - before) / 5
            print(f"filter {query or '(none)'}: {found[2]:.3f} s (median of 5), {used:.3f} s of CPU time (mean)")
        tags = ",".join(f"metric/{i}" for i in range(20))
        print(f"curves of 20 metrics: {ask(address, f'api/run/0/series?tags={tags}')[0]:.3f} s")
        print(f"peak {peak_mb(process):.0f} MB")
    finally:
        process.terminate()
        process.wait()


def main(argv: Sequence[str]) -> int:
    """Make the run, serve it twice, and print the times."""
    parser = argparse.ArgumentParser("benchmarks view", description=__doc__)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="a run that was made before, or where to make it")
    options = parser.parse_args(list(argv))
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "summary.json").exists():
            make(folder, options.updates, options.rollouts)
        measure(folder, options.rollouts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
