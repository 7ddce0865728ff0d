"""What ``gspo plan`` counts for the steps in a JSON of :mod:`benchmarks.gpu_check`, added without a GPU.

On a rented card these counts took 14 to 28 s a part, in which the GPU was idle.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts import Bench
from benchmarks.gpu_run import LAYERS, LAYERS_BUDGET, LAYERS_WORK
from benchmarks.memory import frozen_groups
from benchmarks.models import Shape, build_model
from benchmarks.workloads import MINI_BATCHES, Workload
from gspo_lightning.commands.plan.devices import Device
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import TRAINING, Memory, memory_of
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.deal import deal_rows
from gspo_lightning.resume.files import write_text

__all__ = ["add_plans", "filled", "planned"]


def add_plans(path: Path) -> None:
    """Add ``planned_mib`` to every measured step of a JSON, in place."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    bench = Bench.on(cuda="toy" not in found["about"]["device"])
    for part in found.values():
        if isinstance(part, dict) and "budgets" in (ours := part.get("ours") or {}):
            shape, work = bench.shape(part["model"]), bench.work(part["workload"])
            lora = LoRA(r=part["lora"][0], alpha=part["lora"][1]) if part["lora"] else None
            for budget, measured in ours["budgets"].items():
                arguments = (int(budget), ours["packed"], lora)
                measured["planned_mib"] = planned(shape, work, *arguments).peak / 2**20
                lengths = planned(shape, filled(work), *arguments)
                measured["planned_for_these_lengths_mib"] = lengths.total(TRAINING) / 2**20
    if "packed" in (layers := found.get("layers_8b") or {}):
        shape, work = (bench.shape("0.6b"), bench.work("equal")) if bench.toy else (LAYERS, LAYERS_WORK)
        plan = planned(shape, work, LAYERS_BUDGET, layers["packed"])
        for phase, measured in layers["phases"].items():
            measured["planned_mib"] = plan.total(phase) / 2**20
    write_text(path, json.dumps(found, indent=1) + "\n")


def filled(work: Workload) -> Workload:
    """A workload of equal rows whose mini-batches have as many tokens as the largest of this one.

    A plan assumes full lengths: its peak is a bound. Packed rows take what their tokens take, whatever their lengths.
    """
    dealt = deal_rows(frozen_groups(work, 1000), mini_batches=work.mini_batches)
    response = max(-(-sum(len(r.token_ids) for r in rows) // len(rows)) for rows in dealt)
    prompt = -(-sum(work.prompt_lengths) // work.prompts)
    return replace(work, prompt_tokens=(prompt, prompt), median=response, longest=response, sigma=0.0)


def planned(shape: Shape, work: Workload, budget: int, packed: bool, lora: LoRA | None = None) -> Memory:
    """What ``gspo plan`` counts for steps in bf16-mixed, without the context of the device."""
    with tempfile.TemporaryDirectory() as folder:
        with torch.device("meta"):
            build_model(shape).config.save_pretrained(folder)
        job = Job(
            model=ModelSettings(folder, lora=lora), optimizer="torch.optim.AdamW", precision="bf16-mixed",
            strategy="single", shards_weights=True, cpu_offload=False, world=1, nodes=1,
            old_policy="CachedLogProbs", reference=False,
            prompts=work.prompts, group_size=work.group_size, minibatches=MINI_BATCHES, epochs=1, budget=budget,
            max_prompt=work.prompt_tokens[1], max_response=int(work.lengths.max()), iterations=1, packed=packed,
            source="GroupedSampler", max_rows=512,
        )  # fmt: skip
        memory = memory_of(job, Device("of any size", 1 << 60, 1.0, 1.0))
    memory.items.pop("context, libraries, fragments")
    return memory
