"""``python -m benchmarks.gpu_check``: is this package right, fast and small on a CUDA device? Ten minutes, one JSON.

Each part runs in a process of its own, so that none inherits the compiled kernels or the memory of another; attention
that goes without a compiled kernel fails its part.

Needs torch, transformers and lightning. TRL and everything else is used if it is there and reported as absent if not.
Without CUDA every part runs in a toy form on the CPU, so that the script itself is tested; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers

from benchmarks.gpu_kernels import measure_head, measure_masks
from benchmarks.gpu_parts import (
    Bench,
    check_kernels,
    check_noise,
    check_parity,
    compare_plan,
    measure_memory,
    measure_step,
)
from benchmarks.gpu_vllm import check_engine, check_ways

__all__ = ["main"]

PROCESSES = multiprocessing.get_context("forkserver")
OPTIONAL = ("trl", "vllm", "liger_kernel", "flash_attn", "kernels", "bitsandbytes", "triton", "accelerate", "datasets")


@dataclass
class Run:
    """Parts run one after the other; one that fails is reported and does not take the rest with it."""

    budget: float
    start: float = field(default_factory=time.monotonic)
    parts: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def part(self, name: str, function: Callable[[], Any], seconds: float) -> None:
        """Run ``function`` unless its usual ``seconds`` would go beyond the budget."""
        spent = time.monotonic() - self.start
        if spent + seconds > self.budget:
            reason = f"{spent:.0f} s of {self.budget:.0f} are spent, this takes about {seconds:.0f}"
            self.parts[name] = {"skipped": reason}
        else:
            self.parts[name] = apart(function)
            if "error" in self.parts[name]:
                self.failed.append(name)
        print(f"[{time.monotonic() - self.start:4.0f} s] {name}: {json.dumps(_short(self.parts[name]))}", flush=True)


def apart(function: Callable[[], Any]) -> Any:
    """What a function returns in a process of its own, or its error and traceback.

    The process is forked from one that has only paid for the imports: CUDA cannot be used on both sides of a fork.
    """
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_answer, args=(theirs, function))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        found = {"error": f"its process ended with exit code {process.exitcode}", "traceback": ""}
    process.join()
    return found


def _answer(theirs: Connection, function: Callable[[], Any]) -> None:
    warnings.filterwarnings("error", message="flex_attention called without torch.compile")
    try:
        theirs.send(function())
    except Exception as error:
        theirs.send({"error": repr(error), "traceback": traceback.format_exc()})


def _short(part: Any) -> Any:
    return {k: v for k, v in part.items() if k != "traceback"} if isinstance(part, dict) else part


def about() -> dict[str, Any]:
    """Versions, device, and what is absent."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu (toy sizes)",
        "capability": list(torch.cuda.get_device_capability()) if cuda else None,
        "memory_gib": torch.cuda.get_device_properties(0).total_memory / 2**30 if cuda else None,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "absent": [name for name in OPTIONAL if importlib.util.find_spec(name) is None],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run every part and write the JSON; 1 if a part failed or parity does not hold."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"), help="where the JSON goes")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds; a part that would not fit is skipped")
    parser.add_argument("--toy", action="store_true", help="toy sizes on the CPU, also where CUDA is available")
    given = parser.parse_args(argv)
    bench = Bench.on(cuda=torch.cuda.is_available() and not given.toy)
    if bench.toy:
        print("no CUDA device is used: every part runs in a toy form on the CPU, to test the script and nothing else")
    run = Run(given.budget)
    run.part("about", about, 0)
    run.part("attention", functools.partial(check_kernels, bench), 60)
    run.part("parity", functools.partial(check_parity, bench), 30)
    run.part("noise_bf16", functools.partial(check_noise, bench), 30)
    run.part("head_pieces", functools.partial(measure_head, bench), 20)
    run.part("block_masks", functools.partial(measure_masks, bench), 30)
    run.part("memory_0.6b", functools.partial(measure_memory, bench, "0.6b"), 40)
    for model, workload, seconds in (("1.7b", "skewed", 100), ("0.6b", "equal", 90), ("1.7b", "equal", 120)):
        step = functools.partial(measure_step, bench, model, workload)
        run.part(f"step_{model}_{workload}", step, 0 if bench.toy else seconds)
    steps = {name: part for name, part in run.parts.items() if name.startswith("step_")}
    run.part("plan", functools.partial(compare_plan, bench, steps), 0 if bench.toy else 60)
    run.part("vllm_engine", functools.partial(check_engine, bench), 0 if bench.toy else 60)
    run.part("vllm_weights", functools.partial(check_ways, bench), 0 if bench.toy else 120)
    agrees = bool(run.parts["parity"].get("ok", False))
    outcome = {"ok": agrees and not run.failed, "failed": run.failed, "seconds": time.monotonic() - run.start}
    result = outcome | run.parts
    given.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {given.output}; ok: {result['ok']}")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    PROCESSES.set_forkserver_preload(["benchmarks.gpu_vllm"])  # not in a test: a process has one such server
    sys.exit(main())
