"""``python -m benchmarks.gpu_check``: is this package right, fast and small on a CUDA device? 25 minutes, one JSON.

Each part runs in a process of its own, so that none inherits the compiled kernels or the memory of another; attention
that goes without a compiled kernel fails its part. The JSON is rewritten after every part, and no part takes more than
ten minutes. The most valuable parts come first; docs/first_gpu_hour.md says what each of them decides.

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
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers

from benchmarks.gpu_kernels import measure_compiled, measure_head, measure_masks
from benchmarks.gpu_parts import (
    Bench,
    check_kernels,
    check_noise,
    check_parity,
    measure_memory,
    measure_step,
)
from benchmarks.gpu_run import check_fit, check_fsdp2, check_ipc, check_start, measure_layers, profile_sampler
from benchmarks.gpu_vllm import check_engine, check_ways
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.resume.files import write_text

__all__ = ["main"]

PROCESSES = multiprocessing.get_context("forkserver")
OPTIONAL = ("trl", "vllm", "liger_kernel", "flash_attn", "kernels", "bitsandbytes", "triton", "accelerate", "datasets")
LIMIT_S = 600.0
"""Seconds after which a part is ended: no command on a rented machine may take longer."""


@dataclass(frozen=True)
class Part:
    """One question, answered in a process of its own."""

    name: str
    function: Callable[[Bench], Any]
    seconds: float
    """On an H100 without anything compiled before: measured (docs/first_gpu_hour.md), or an estimate."""


def _parts() -> list[Part]:
    """All parts, the most valuable ones first."""
    step = functools.partial
    return [
        Part("attention", step(check_kernels, dtype=torch.bfloat16, sizes=(64, 128, 256)), 70),
        Part("start", check_start, 75),
        *(
            Part(f"step_{model}_{workload}", step(measure_step, model=model, workload=workload), seconds)
            for model, workload, seconds in (("1.7b", "skewed", 100), ("0.6b", "equal", 90), ("1.7b", "equal", 120))
        ),
        Part("sampler", profile_sampler, 120),
        Part("step_8b_lora", step(measure_step, model="8b", workload="skewed", lora=LoRA(r=16, alpha=32)), 120),
        Part("step_moe", step(measure_step, model="30b-a3b, 4 layers", workload="skewed"), 90),
        Part("ipc", check_ipc, 30),
        Part("fit", check_fit, 240),
        Part("fsdp2", check_fsdp2, 40),
        Part("layers_8b", measure_layers, 90),
        Part("noise_bf16", check_noise, 60),
        Part("parity", check_parity, 50),
        Part("head_pieces", measure_head, 20),
        Part("compiled_modules", measure_compiled, 90),
        Part("block_masks", measure_masks, 30),
        Part("memory_0.6b", step(measure_memory, model="0.6b"), 40),
        Part("attention_float32", step(check_kernels, dtype=torch.float32, sizes=(64, 128)), 50),
        Part("vllm_engine", check_engine, 60),
        Part("vllm_weights", check_ways, 120),
    ]


@dataclass
class Run:
    """Parts run one after the other, and the file with their results, complete after each of them.

    One that fails is reported and does not take the rest with it.
    """

    bench: Bench
    output: Path
    budget: float
    start: float = field(default_factory=time.monotonic)
    parts: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def part(self, part: Part) -> None:
        """Run a part, unless its usual time would go beyond the budget."""
        spent, seconds = time.monotonic() - self.start, 0.0 if self.bench.toy else part.seconds
        if spent + seconds > self.budget:
            found = {"skipped": f"{spent:.0f} s of {self.budget:.0f} are spent, this takes about {seconds:.0f}"}
        else:
            limit = min(LIMIT_S, max(self.budget - spent, seconds))
            found = apart(functools.partial(part.function, self.bench), limit)
            found["part_s"] = time.monotonic() - self.start - spent
        self.add(part.name, found)

    def add(self, name: str, found: dict[str, Any]) -> None:
        """Add a result, and replace the file."""
        self.parts[name] = found
        if "error" in found or found.get("ok") is False:
            self.failed.append(name)
        outcome = {"ok": not self.failed, "failed": self.failed, "seconds": time.monotonic() - self.start}
        write_text(self.output, json.dumps(outcome | self.parts, indent=1) + "\n")
        print(f"[{outcome['seconds']:4.0f} s] {name}: {json.dumps(_short(found))}", flush=True)


def apart(function: Callable[[], Any], limit: float = LIMIT_S) -> Any:
    """What a function returns in a process of its own, or its error and traceback; ended after ``limit`` seconds.

    The process is forked from one that has only paid for the imports: CUDA cannot be used on both sides of a fork.
    """
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_alone, args=(theirs, function))
    process.start()
    assert process.pid
    theirs.close()
    try:
        found = ours.recv() if ours.poll(limit) else {"error": f"took more than {limit:.0f} s", "traceback": ""}
    except EOFError:
        process.join()
        found = {"error": f"its process ended with exit code {process.exitcode}", "traceback": ""}
    finally:
        with suppress(ProcessLookupError):  # also what it has started
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return found


def _alone(theirs: Connection, function: Callable[[], Any]) -> None:
    os.setsid()
    _answer(theirs, function)


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
    """Run parts and write the JSON after each of them; 1 if a part failed or parity does not hold."""
    parts = _parts()
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"which ones; default: all, in this order: {_names(parts)}")
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"), help="where the JSON goes")
    parser.add_argument("--budget", type=float, default=1500.0, help="seconds; a part that would not fit is skipped")
    parser.add_argument("--toy", action="store_true", help="toy sizes on the CPU, also where CUDA is available")
    parser.add_argument("--peer", action="store_true", help="time TRL's steps, too, whose generation takes minutes")
    given = parser.parse_args(argv)
    if unknown := set(given.parts) - {part.name for part in parts}:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are: {_names(parts)}")
    bench = Bench.on(cuda=torch.cuda.is_available() and not given.toy, peer=given.peer)
    if bench.toy:
        print("no CUDA device is used: every part runs in a toy form on the CPU, to test the script and nothing else")
    run = Run(bench, given.output, given.budget)
    run.add("about", about())
    for part in parts:
        if not given.parts or part.name in given.parts:
            run.part(part)
    print(f"written to {given.output}; ok: {not run.failed}")
    return 1 if run.failed else 0


def _names(parts: Sequence[Part]) -> str:
    return ", ".join(part.name for part in parts)


if __name__ == "__main__":
    # not in a test: a process has one such server
    PROCESSES.set_forkserver_preload(["benchmarks.gpu_run", "benchmarks.gpu_vllm"])
    sys.exit(main())
