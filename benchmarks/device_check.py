"""``python -m benchmarks.device_check``: what an accelerator would have to do and wait for, counted on a CPU.

Everything goes through a simulated device and gives the CPU's tokens and gradients, or the exit code is 1; the last
line of stdout is one JSON object (docs/gpu_checks.md). Needs what the package needs, and peft for adapters.
``--compile`` compiles the attention kernels for an H100 instead (:mod:`benchmarks.compile_check`), which needs Triton.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
from transformers.utils import logging as transformers_logging

from benchmarks import compile_check
from benchmarks.simulated.agreement import difference, jobs
from benchmarks.simulated.casts import casts_per_step
from benchmarks.simulated.device import backend
from benchmarks.simulated.kernels import kernels_of_a_run
from benchmarks.simulated.ranks import traffic_of
from benchmarks.simulated.steps import per_micro_batch, per_micro_batch_beside, per_step
from benchmarks.simulated.transfers import waits_before_the_model

__all__ = ["main"]

RANKS = 4


def main(argv: Sequence[str] = ()) -> int:
    """Count; 1 if the simulated device gave something else than the CPU."""
    torch.set_num_threads(1)
    if "--compile" in argv:
        return compile_check.main([word for word in argv if word != "--compile"])
    warnings.simplefilter("ignore")
    transformers_logging.disable_progress_bar()
    start = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - start:4.0f} s] {text}", flush=True)

    traffic = traffic_of(RANKS)  # forks, so before anything is computed here
    tell(f"{RANKS} ranks: of the model's bytes each reads {traffic.loaded:.2f} and receives {traffic.gathered:.2f}")
    tell(
        f"layers that a rank but the first holds above its shard: {traffic.peak_loading:.2f} while weights are loaded, "
        f"{traffic.peak_gathering:.2f} while rank 0 collects them for a server"
    )
    backend()  # before the first backward pass: autograd makes its queues then
    failed = []
    for name, job in jobs(adapters=importlib.util.find_spec("peft") is not None).items():
        if wrong := difference(job):
            failed.append(name)
        tell(f"{name}: {wrong or 'the tokens, log-probabilities, gradients and weights of the CPU'}")
    with_peft = importlib.util.find_spec("peft") is not None
    steps, micro_batch = per_step(), per_micro_batch()
    adapted = per_step(adapters=True) if with_peft else steps
    tell(
        f"a decode step: {steps.syncs:g} syncs, {steps.launches:g} kernels a layer, {adapted.launches:g} with "
        f"adapters, {steps.outside:.2f} beside the recorded step"
    )
    tell(f"a micro-batch, old log-probabilities and update: {micro_batch:g} syncs")
    pageable = waits_before_the_model()
    tell(f"a micro-batch of 16,384 tokens, before the model: {pageable.total():g} syncs")
    critic, teacher = per_micro_batch_beside("a critic"), per_micro_batch_beside("a teacher")
    tell(f"a micro-batch beside the policy: {critic:g} syncs of a critic, {teacher:g} of a teacher")
    casts = casts_per_step()
    tell(f"casts of weights per decode step: {casts:g}")
    kernels = kernels_of_a_run()
    dtypes = ", ".join(sorted(str(dtype) for dtype in kernels.dtypes))
    tell(f"attention kernels in the shortest run: {kernels.compiled}, for {dtypes}; calls without one: {kernels.eager}")
    found = {
        "kernels_compiled": kernels.compiled,
        "eager_attention": kernels.eager,
        "weight_casts_per_step": casts,
        "syncs_per_step": steps.syncs,
        "syncs_per_micro_batch": micro_batch,
        "copy_syncs_per_large_micro_batch": pageable.total(),
        "launches_per_layer_and_step": steps.launches,
        "launches_per_layer_and_step_with_adapters": adapted.launches,
        "launches_outside_graph_per_step": round(steps.outside, 3),
        "loaded_bytes_per_rank_ratio": traffic.loaded,
        "gathered_bytes_per_rank_ratio": traffic.gathered,
        "critic_syncs_per_micro_batch": critic,
        "teacher_syncs_per_micro_batch": teacher,
    }
    if failed:
        print(f"error: the simulated device gives other results than the CPU: {', '.join(failed)}", file=sys.stderr)
    print(json.dumps(found), flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
