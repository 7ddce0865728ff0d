"""``python -m benchmarks.gpu_check``: is this package right, fast and small on a CUDA device? 13 minutes, one JSON.

Each part runs in a process of its own, so that none inherits the compiled kernels or the memory of another; attention
that goes without a compiled kernel fails its part. The JSON is rewritten after every part, and a later call with the
same file goes on where the last one ended. No part takes more than ten minutes. The most valuable parts come first;
docs/gpu_checks.md says what each of them decides. More parts run when they are named.

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
import select
import signal
import sys
import threading
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

from benchmarks.gpu_curve import measure_curve, run_tests
from benchmarks.gpu_kernels import measure_compiled, measure_head, measure_logprobs, measure_masks
from benchmarks.gpu_parts import Bench, check_kernels, check_noise, check_parity, measure_memory
from benchmarks.gpu_plans import add_plans
from benchmarks.gpu_rollouts import measure_rollouts
from benchmarks.gpu_run import check_fit, check_fsdp2, check_ipc, check_start, measure_layers, profile_sampler
from benchmarks.gpu_steps import measure_step
from benchmarks.gpu_vllm import check_engine, check_ways
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.resume.files import write_text

__all__ = ["main"]

PROCESSES = multiprocessing.get_context("forkserver")
OPTIONAL = ("trl", "vllm", "liger_kernel", "flash_attn", "kernels", "bitsandbytes", "triton", "accelerate", "datasets")
PRELOADED = ("curve", "kernels", "rollouts", "run", "steps", "vllm")
LIMIT_S = 600.0
"""Seconds after which a part is ended: no command on a rented machine may take longer."""


@dataclass(frozen=True)
class Part:
    """One question, answered in a process of its own."""

    name: str
    function: Callable[[Bench], Any]
    seconds: float
    """On an H100 without anything compiled before: measured (docs/gpu_checks.md), or an estimate."""
    usual: bool = False
    """One of the parts that run if none is named."""


def _parts(models: Sequence[Path] = (), keep: Path | None = None) -> list[Part]:
    """All parts, the most valuable ones first.

    Args:
        models: file of a model for the learning curve, or its pieces.
        keep: where the learning curve's run folder stays.
    """
    step = functools.partial
    lora = LoRA(r=16, alpha=32)
    eight = step(measure_step, model="8b", workload="skewed", lora=lora, budgets=(4096, 2048))
    return [
        Part("step_1.7b_skewed", step(measure_step, model="1.7b", workload="skewed"), 80, usual=True),
        Part("rollouts", measure_rollouts, 75, usual=True),
        Part("logprobs", measure_logprobs, 30, usual=True),
        Part("compiled_modules", measure_compiled, 70, usual=True),
        Part("curve", step(measure_curve, models=models, keep=keep), 240, usual=True),
        Part("step_8b_lora", eight, 110, usual=True),
        Part("noise_bf16", check_noise, 40, usual=True),
        Part("tests", run_tests, 130, usual=True),
        Part("attention", step(check_kernels, dtype=torch.bfloat16, sizes=(64, 128, 256)), 70),
        Part("start", check_start, 75),
        Part("sampler", profile_sampler, 60),
        *(
            Part(f"step_{model}_{workload}", step(measure_step, model=model, workload=workload), seconds)
            for model, workload, seconds in (("0.6b", "equal", 90), ("1.7b", "equal", 120))
        ),
        Part("step_moe", step(measure_step, model="30b-a3b, 4 layers", workload="skewed"), 90),
        Part("ipc", check_ipc, 30),
        Part("fit", check_fit, 240),
        Part("fsdp2", check_fsdp2, 40),
        Part("layers_8b", measure_layers, 90),
        Part("parity", check_parity, 50),
        Part("head_pieces", measure_head, 20),
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

    def resume(self, about: dict[str, Any]) -> None:
        """Take over the parts that an earlier call finished on a device of the same kind."""
        try:
            found = json.loads(self.output.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        if found.get("about", {}).get("device") == about["device"]:
            self.parts = {k: v for k, v in found.items() if isinstance(v, dict) and _finished(v)}
            print(f"kept from {self.output}: {', '.join(k for k in self.parts if k != 'about') or 'nothing'}")

    def part(self, part: Part) -> None:
        """Run a part, unless it is done, or its usual time would go beyond the budget."""
        if part.name in self.parts:
            return
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
    threading.Thread(target=_end_with, args=(theirs.fileno(),), daemon=True).start()
    _answer(theirs, function)


def _end_with(pipe: int) -> None:
    """End this session once nobody reads the pipe: whoever asked was killed, and leaves no process on the device."""
    poll = select.poll()
    poll.register(pipe, 0)  # no event but the one that always counts: the other end is closed
    poll.poll()
    os.killpg(0, signal.SIGKILL)


def _answer(theirs: Connection, function: Callable[[], Any]) -> None:
    warnings.filterwarnings("error", message="flex_attention called without torch.compile")
    try:
        theirs.send(function())
    except Exception as error:
        theirs.send({"error": repr(error), "traceback": traceback.format_exc()})


def _finished(part: dict[str, Any]) -> bool:
    return "error" not in part and "skipped" not in part and part.get("ok") is not False


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
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_check", description=__doc__)
    names = [part.name for part in _parts()]
    usual = [part.name for part in _parts() if part.usual]
    parser.add_argument("parts", nargs="*", help=f"in this order: {', '.join(names)}; default: {', '.join(usual)}")
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"), help="where the JSON goes")
    parser.add_argument("--budget", type=float, default=780.0, help="seconds; a part that would not fit is skipped")
    parser.add_argument("--fresh", action="store_true", help="repeat the parts that the JSON has already")
    model = "GGUF file of SmolLM2 for the learning curve, or its pieces in order"
    parser.add_argument("--model", type=Path, nargs="+", default=[], help=model)
    parser.add_argument("--keep", type=Path, help="folder in which the run of the learning curve stays")
    parser.add_argument("--plans", action="store_true", help="add what gspo plan counts to the JSON; measures nothing")
    parser.add_argument("--toy", action="store_true", help="toy sizes on the CPU, also where CUDA is available")
    parser.add_argument("--peer", action="store_true", help="time TRL's steps, too, whose generation takes minutes")
    given = parser.parse_args(argv)
    if unknown := set(given.parts) - set(names):
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    if given.plans:
        add_plans(given.output)
        return 0
    bench = Bench.on(cuda=torch.cuda.is_available() and not given.toy, peer=given.peer)
    if bench.toy:
        print("no CUDA device is used: every part runs in a toy form on the CPU, to test the script and nothing else")
    run, facts = Run(bench, given.output, given.budget), about()
    if not given.fresh:
        run.resume(facts)
    run.add("about", facts)
    parts = _parts(given.model, given.keep)
    _run_all(run, [part for part in parts if part.name in (given.parts or usual)])
    print(f"written to {given.output}; ok: {not run.failed}")
    return 1 if run.failed else 0


def _run_all(run: Run, parts: Sequence[Part]) -> None:
    """Say how long the parts take, one by one and together; then run them."""
    left = [part for part in parts if part.name not in run.parts]
    print("expected seconds: " + ", ".join(f"{part.name} {part.seconds:.0f}" for part in left))
    print(f"together {sum(part.seconds for part in left):.0f} of a budget of {run.budget:.0f}", flush=True)
    for part in parts:
        run.part(part)


if __name__ == "__main__":
    # not in a test: a process has one such server
    PROCESSES.set_forkserver_preload([f"benchmarks.gpu_{name}" for name in PRELOADED])
    sys.exit(main())
