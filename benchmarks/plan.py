"""What ``gspo plan`` says beside what is measured: extra peak memory of two updates and of a rollout, forked per case.

python -m benchmarks.plan > benchmarks/results/plan.md
"""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bitsandbytes.optim import AdamW8bit

from benchmarks.clock import Phases
from benchmarks.memory import frozen_groups, peak_memory, quiet_allocator, reset_peak
from benchmarks.models import Shape, build_model, word_tokenizer
from benchmarks.ours import Ours, recorded
from benchmarks.workloads import Workload
from gspo_lightning.commands.plan.devices import Device
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import SAMPLING, STEPPING, TRAINING, memory_of
from gspo_lightning.core.types import MiniBatch
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.update.loss import LossTerms, micro_batch_loss, mini_batch_count
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.load.model_settings import Layout, ModelSettings

__all__ = ["CASES", "PlanCase", "compare"]

MIB = 1 << 20
CPU = Device("CPU", 1 << 40, cpu=True)
SMALL = Shape(32_768, 256, 6, 4, 2, 64, 768)
LARGE = Shape(32_768, 512, 10, 8, 4, 64, 1536)
WIDE = Shape(151_936, 128, 4, 4, 4, 32, 384)
MIXTURE = Shape(32_768, 192, 4, 4, 2, 48, 192, experts=8, experts_per_token=2)
ROWS = Workload(2, 8, (32, 32), 150, 150, sigma=0.0)
"""All prompts and responses as long as they may be, which is what a plan assumes."""


@dataclass(frozen=True)
class PlanCase:
    """A model and a way to train it."""

    name: str
    shape: Shape = SMALL
    packed: bool = True
    checkpointing: bool = False
    eight_bit: bool = False
    lora: LoRA | None = None
    bf16: bool = False
    micro_batches: int = 1
    sampling: bool = False
    """A rollout instead of two updates."""

    def job(self, folder: Path) -> Job:
        """What ``gspo plan`` would read from a config; ``folder`` holds the model's."""
        return Job(
            model=ModelSettings(str(folder), gradient_checkpointing=self.checkpointing, lora=self.lora),
            optimizer="bitsandbytes.optim.AdamW8bit" if self.eight_bit else "torch.optim.AdamW",
            precision="bf16-mixed" if self.bf16 else "32-true", strategy="single", shards_weights=True,
            cpu_offload=False, world=1, nodes=1, old_policy="CachedLogProbs", reference=False, prompts=ROWS.prompts,
            group_size=ROWS.group_size, minibatches=1, epochs=1, budget=self._budget(), max_prompt=32,
            max_response=ROWS.longest, iterations=1, packed=self.packed, source="GroupedSampler", max_rows=512,
        )  # fmt: skip

    def _budget(self) -> int:
        packed = ROWS.prompts * (ROWS.prompt_tokens[1] + ROWS.group_size * ROWS.longest)
        whole = packed if self.packed else ROWS.rows * (ROWS.prompt_tokens[1] + ROWS.longest)
        return whole // self.micro_batches


CASES = (
    PlanCase("packed"),
    PlanCase("packed, two micro-batches", micro_batches=2),
    PlanCase("padded", packed=False),
    PlanCase("packed, gradient checkpointing", checkpointing=True),
    PlanCase("padded, gradient checkpointing", packed=False, checkpointing=True),
    PlanCase("8-bit AdamW", shape=LARGE, eight_bit=True),
    PlanCase("AdamW", shape=LARGE),
    PlanCase("LoRA", shape=LARGE, lora=LoRA(r=8)),
    PlanCase("LoRA, gradient checkpointing, padded", LARGE, packed=False, checkpointing=True, lora=LoRA(r=8)),
    PlanCase("vocabulary of 151,936", shape=WIDE),
    PlanCase("bf16-mixed", shape=LARGE, bf16=True),
    PlanCase("mixture of experts", shape=MIXTURE),
    PlanCase("rollout, packed", shape=LARGE, sampling=True),
    PlanCase("rollout, padded", shape=LARGE, packed=False, sampling=True),
)


def compare(case: PlanCase) -> tuple[float, float]:
    """MiB that the plan expects beside the weights, and MiB that are measured in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        build_model(case.shape).config.save_pretrained(folder)
        memory = memory_of(case.job(Path(folder)), CPU)
    phases = (SAMPLING,) if case.sampling else (TRAINING, STEPPING)
    there: tuple[str, ...] = ("weights", "weights (float32 masters)", "frozen weights", "adapters")
    there += ("optimizer state",) if case.sampling else ()  # a rollout of a fresh process has none
    items = {item: row for item, row in memory.items.items() if item not in there}
    planned = max(sum(row.get(phase, 0) for row in items.values()) for phase in phases)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.plan"])
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(case, send))
    child.start()
    send.close()
    measured = float(receive.recv())
    child.join()
    return planned / MIB, measured


def _child(case: PlanCase, send: Any) -> None:
    quiet_allocator()
    torch.set_num_threads(1)
    model, tokenizer = build_model(case.shape), word_tokenizer(case.shape.vocabulary)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm")
    if case.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if case.lora is not None:
        add_adapters(model, case.lora, seed=0)
    context = (
        functools.partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=False) if case.bf16 else nullcontext
    )
    layout: Layout = "packed" if case.packed else "padded"
    ours = Ours(model, tokenizer, ROWS, max_tokens=case.job(Path("model")).budget, layout=layout, context=context)
    if case.eight_bit:
        ours.optimizer = AdamW8bit(model.parameters(), lr=1e-6)
    ours.policy.train()
    (batch,) = recorded(ours.pack(frozen_groups(ROWS, case.shape.vocabulary), mini_batches=1))
    reset_peak()
    before = peak_memory()
    if case.sampling:
        ours.generate()
    else:
        for _ in range(2):
            _update(ours, batch, context())
    send.send(peak_memory() - before)


def _update(ours: Ours, batch: MiniBatch, context: AbstractContextManager[Any]) -> None:
    """As ``GSPOModule.training_step``: all micro-batches in one precision context."""
    ours.optimizer.zero_grad(set_to_none=True)
    terms = LossTerms(ours.policy, ours.old_policy, ours.objective, 1.0)
    denominator = mini_batch_count(ours.objective, batch.micro_batches)
    with context:
        for part in batch.micro_batches:
            loss = micro_batch_loss(part, terms, denominator=denominator, sums=MetricSums())
            with torch.autocast("cpu", enabled=False):
                loss.backward()
            del loss
    with Phases()("optimizer"):
        ours.optimizer.step()


def main() -> None:
    """Print the table."""
    print("# `gspo plan` beside measured memory\n")
    print("Extra peak of the resident set over the loaded model, MiB, one forked process per case, CPU, float32")
    print("unless said otherwise; two updates or a rollout of 2 prompts x 8 responses of 150 tokens.\n")
    print("| case | parameters | planned | measured | planned / measured |\n|---|---|---|---|---|")
    for case in CASES:
        planned, measured = compare(case)
        size = sum(p.numel() for p in build_model(case.shape).parameters()) / 1e6
        print(
            f"| {case.name} | {size:.1f}M | {planned:,.0f} | {measured:,.0f} | {planned / measured:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
