"""A training step of a real model beside TRL: ``python -m benchmarks.real``, ``make bench-real``.

SmolLM2-135M-Instruct, word problems of configs/smollm2.yaml, with AdamW, low-rank adapters and 8-bit AdamW. Each
measured step runs in a process of its own, one at a time; the sides take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.real_side import METHODS, add_work
from tools.real_model import model_file

Result = dict[str, Any]
AIMS = {"adamw": 0.7, "lora": 0.5, "adamw8bit": 0.5}
"""Peak memory relative to TRL's."""
SPEED = 4.0
"""Aim for TRL's CPU seconds over ours."""


def run(given: argparse.Namespace, side: Callable[[Sequence[str]], Result]) -> Iterator[dict[str, Any]]:
    """Measure the bounds, then all methods round by round; yield what is known after every step."""
    options = ["--model", str(given.model or model_file()), "--tokens", *map(str, given.tokens)]
    options += [
        w
        for n in ("prompts", "group", "dead", "updates", "micro", "precision")
        for w in (f"--{n}", str(getattr(given, n)))
    ]
    bounds = side(["bounds", METHODS[0], *options])
    rounds: list[Result] = []
    for turn in range(given.rounds):
        for method in given.methods:
            for name in ("ours", "trl") if turn % 2 == 0 else ("trl", "ours"):
                if name == "ours" or not given.only_ours:
                    rounds.append(side([name, method, *options]) | {"round": turn})
                    yield summary(" ".join(options[2:]), bounds, rounds)


def summary(work: str, bounds: Result, rounds: list[Result]) -> dict[str, Any]:
    """All that was measured so far."""
    known = [m for m in METHODS if any(r["method"] == m for r in rounds)]
    methods = {m: summarise([r for r in rounds if r["method"] == m], bounds) for m in known}
    return {"work": work, "bounds": bounds, "methods": methods, "rounds": rounds}


def in_process_of_its_own(words: Sequence[str]) -> Result:
    """Run ``benchmarks.real_side`` with one thread, and return what it prints last."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "benchmarks.real_side", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: Result = json.loads(done.stdout.splitlines()[-1])
    if "cpu" in found:
        print(f"{found['side']} {found['method']}: {found['cpu']:.1f} CPU s, {found['peak_mib']:.0f} MiB", flush=True)
    return found


def summarise(rounds: Sequence[Result], bounds: Result) -> dict[str, Any]:
    """Medians of each side, and medians and extremes of the ratios of pairs."""
    found: dict[str, Any] = {}
    for side in ("ours", "trl"):
        own = [r for r in rounds if r["side"] == side]
        if own:
            found[side] = {
                "cpu_s": _spread([r["cpu"] for r in own]),
                "wall_s": _spread([r["wall"] for r in own]),
                "peak_mib": _spread([r["peak_mib"] for r in own]),
                "sampled_per_cpu_s": _spread([r["response_tokens"] / r["phases"]["generate"] for r in own]),
                "trained_per_cpu_s": _spread(
                    [r["response_tokens"] / (r["cpu"] - r["phases"]["generate"]) for r in own]
                ),
                "phases": {n: statistics.median(r["phases"].get(n, 0.0) for r in own) for n in own[0]["phases"]},
                "over_flops": statistics.median(r["cpu"] for r in own) / _floor(own[0]["method"], bounds),
            }
    if len(found) == 2:  # the other side of the newest round may be missing
        pairs = [
            (t, o)
            for t in rounds
            for o in rounds
            if (t["side"], o["side"]) == ("trl", "ours") and t["round"] == o["round"]
        ]
        if pairs:
            found["cpu_ratio"] = _spread([t["cpu"] / o["cpu"] for t, o in pairs])
            found["memory_ratio"] = _spread([o["peak_mib"] / t["peak_mib"] for t, o in pairs])
    return found


def _floor(method: str, bounds: Result) -> float:
    """Seconds of the FLOP of a step; adapters need no gradients of the weights."""
    share = 2 / 3 if method == "lora" else 1.0
    return float(bounds["generate_by_flops_s"] + share * bounds["train_by_flops_s"])


def _spread(values: Sequence[float]) -> list[float]:
    """Median, lowest, highest."""
    return [statistics.median(values), min(values), max(values)]


def table(found: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = [
        "Median (lowest to highest) over rounds; ratios are of pairs.",
        "",
        "| method | side | CPU s a step | peak RSS, MiB | tokens sampled / CPU s | trained / CPU s | / FLOP floor |",
        "|" + " --- |" * 7,
    ]
    for method, m in found["methods"].items():
        for side in ("trl", "ours"):
            if side in m:
                s = m[side]
                cells = [_cell(s[n], d) for n, d in (("cpu_s", 1), ("peak_mib", 0), ("sampled_per_cpu_s", 0))]
                cells += [_cell(s["trained_per_cpu_s"], 0), f"{s['over_flops']:.2f}"]
                lines.append(f"| {method} | {side} | {' | '.join(cells)} |")
    lines += ["", "| method | TRL / ours, CPU time | aim | ours / TRL, memory | aim |", "|" + " --- |" * 5]
    for method, m in found["methods"].items():
        if "cpu_ratio" in m:
            speed, memory = _cell(m["cpu_ratio"], 2), _cell(m["memory_ratio"], 2)
            lines.append(f"| {method} | {speed} | {SPEED:g} | {memory} | {AIMS[method]:g} |")
    lines += ["", "| method | side | generate | old | forward | backward | optimizer |", "|" + " --- |" * 7]
    for method, m in found["methods"].items():
        for side in ("trl", "ours"):
            if side in m:
                phases = (
                    m[side]["phases"].get(n, 0.0) for n in ("generate", "old", "forward", "backward", "optimizer")
                )
                lines.append(f"| {method} | {side} | {' | '.join(f'{p:.1f}' for p in phases)} |")
    return "\n".join([*lines, "", *_bounds(found["bounds"], found["rounds"][0]["response_tokens"]), ""])


def _bounds(b: Result, tokens: int) -> list[str]:
    def rate(seconds: float) -> str:
        return f"{seconds:.1f} s, {tokens / seconds:.0f} tokens/s"

    weights = f"{b['weights_bytes'] / 1e6:.0f} MB of weights in each of {b['decode_steps']} steps"
    return [
        f"* Measured in the same run, in its precision, one thread: products of {b['matmul_gflops']:.0f} GFLOP/s, "
        f"{b['read_gb_per_s']:.1f} GB/s read from memory.",
        f"* Sampling {tokens} tokens reads {weights}: {rate(b['generate_by_bandwidth_s'])}.",
        f"* Its FLOP: {rate(b['generate_by_flops_s'])}.",
        f"* FLOP of training all weights: {rate(b['train_by_flops_s'])}; of training adapters, two thirds of that.",
    ]


def _cell(values: Sequence[float], digits: int) -> str:
    median, low, high = (f"{v:.{digits}f}" for v in values)
    return f"{median} ({low}-{high})"


def main(argv: Sequence[str] | None = None, side: Callable[[Sequence[str]], Result] = in_process_of_its_own) -> int:
    """Run, print the table and write both files; 2 if the model is missing."""
    parser = argparse.ArgumentParser("python -m benchmarks.real", description=__doc__)
    add_work(parser)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of a method")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--only-ours", action="store_true", help="measure this package alone")
    parser.add_argument("--output", type=Path, help="folder for real.json and real.md")
    parser.add_argument("--name", default="real", help="file name in --output, without suffix")
    given = parser.parse_args(argv)
    if given.model is None and not model_file().is_file():
        print("error: the model is not there; run: make real-model", file=sys.stderr)
        return 2
    command, text = " ".join(["python -m benchmarks.real", *(argv if argv is not None else sys.argv[1:])]), ""
    for found in run(given, side):
        text = table(found)
        if given.output is not None:  # after every step: an interruption costs only what was not measured
            write(found, text, command, given.output / given.name)
    print(text)
    return 0


def write(found: dict[str, Any], text: str, command: str, path: Path) -> None:
    """``path`` with .json and .md, and what the numbers belong to."""
    from benchmarks.report import about  # importing torch takes seconds

    facts = about(command) | {"threads": 1}  # of the measured processes
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps({"about": facts, **found}, indent=1) + "\n")
    head = "\n".join([f"# {path.name}", "", *(f"* {k}: {v}" for k, v in facts.items()), "", ""])
    path.with_suffix(".md").write_text(head + text)


if __name__ == "__main__":
    sys.exit(main())
