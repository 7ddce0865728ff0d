"""What ``gspo plan`` counts beside torch's own memory tracker, on fake tensors and eight fake ranks.

python -m benchmarks.tracked > benchmarks/results/plan_tracked.md
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, PretrainedConfig

from gspo_lightning.commands.plan.devices import Device
from gspo_lightning.commands.plan.job import Job, padded_batch
from gspo_lightning.commands.plan.memory import STEPPING, TRAINING, memory_of
from gspo_lightning.commands.plan.models import shadow, skeleton
from gspo_lightning.commands.plan.step import grouped_shape, training_forward
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.layers import decoder_layers

__all__ = ["CASES", "FAMILIES", "TrackedCase", "planned", "tracked"]

WORLD = 8
CPU = Device("CPU", 1 << 40, cpu=True)
_SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32_768}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {**_SIZES, "num_hidden_layers": 8, "intermediate_size": 1536, "tie_word_embeddings": True},
    "llama": {**_SIZES, "num_hidden_layers": 8, "intermediate_size": 2048, "tie_word_embeddings": False},
    "qwen3_moe": {
        **_SIZES, "num_hidden_layers": 6, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
        "decoder_sparse_step": 1, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Model type -> sizes: 38 to 90 million parameters."""


@dataclass(frozen=True)
class TrackedCase:
    """A model, how its states are kept, and what a micro-batch computes."""

    family: str
    sharded: bool = False
    packed: bool = True
    checkpointing: bool = False
    rows: int = 16

    def config(self) -> PretrainedConfig:
        """The model's config."""
        config: PretrainedConfig = AutoConfig.for_model(self.family, **FAMILIES[self.family])
        return config

    def job(self, folder: Path) -> Job:
        """What ``gspo plan`` would read: one micro-batch of full lengths per update and rank."""
        world = WORLD if self.sharded else 1
        return Job(
            model=ModelSettings(str(folder), gradient_checkpointing=self.checkpointing),
            optimizer="torch.optim.AdamW", precision="bf16-mixed", strategy="fsdp" if self.sharded else "single",
            shards_weights=True, cpu_offload=False, world=world, nodes=1, old_policy="CachedLogProbs", reference=False,
            prompts=world * self.rows // 4, group_size=4, minibatches=1, epochs=1, budget=1 << 20, max_prompt=64,
            max_response=192, iterations=1, packed=self.packed, source="VLLMServer", max_rows=512,
        )  # fmt: skip


CASES = tuple(
    TrackedCase(family, sharded, checkpointing=checkpointing)
    for family in FAMILIES
    for sharded in (False, True)
    for checkpointing in (False, True)
)


def planned(case: TrackedCase) -> dict[str, int]:
    """Bytes by phase that ``gspo plan`` expects."""
    with tempfile.TemporaryDirectory() as folder:
        case.config().save_pretrained(folder)
        memory = memory_of(case.job(Path(folder)), CPU)
    memory.items.pop("old log-probabilities", None)  # the tracked step has none
    return {phase: memory.total(phase) for phase in (TRAINING, STEPPING)}


def tracked(case: TrackedCase) -> dict[str, int]:
    """Bytes by phase that torch's tracker counts in a training step: AdamW has its state, gradients are not there."""
    mode, config = FakeTensorMode(allow_non_fake_inputs=True), case.config()
    model = skeleton(config)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm")
    if case.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(shadow(model, torch.float32, mode), None)
    batch = padded_batch(case.rows, 4, 64, 192)
    forward = training_forward(policy, batch, packed=case.packed, cpu=True)
    with _ranks(case.sharded) as mesh, mode:
        if case.sharded:
            _shard(policy, mesh)
        optimizer = torch.optim.AdamW(policy.parameters(), fused=True)
        for weight in policy.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        optimizer.zero_grad()
        tracker: Any = FSDPMemTracker(policy, optimizer) if case.sharded else MemTracker()
        tracker.track_external(*(() if case.sharded else (policy, optimizer)))
        with _Grouped(), tracker, mock.patch.object(policy, "forward", forward):  # type: ignore[no-untyped-call]
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                loss = policy()
            loss.backward()
            del loss
            found = {TRAINING: _total(tracker, "peak"), STEPPING: _total(tracker, "current")}
    return found


class _Grouped(TorchDispatchMode):
    """Shapes of grouped products in any dtype, below the tracker: torch's own rule takes only bfloat16."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        if func is torch.ops.aten._grouped_mm.default:
            return grouped_shape(*args)
        return func(*args, **(kwargs or {}))


def _total(tracker: Any, kind: str) -> int:
    return sum(int(snapshot["Total"]) for snapshot in tracker.get_tracker_snapshot(kind).values())


@contextmanager
def _ranks(sharded: bool) -> Iterator[Any]:
    """Be the first of eight ranks whose collectives do nothing."""
    if not sharded:
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    try:
        yield init_device_mesh("cpu", (WORLD,))
    finally:
        dist.destroy_process_group()


def _shard(policy: Policy, mesh: Any) -> None:
    """Shard as :class:`gspo_lightning.policy.strategies.FSDP2Strategy` does."""
    policy.gathering = SimpleNamespace(lockstep=False, device="cpu")
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for layer in decoder_layers(policy):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)


def main() -> None:
    """Print the table."""
    print("# `gspo plan` beside torch's memory tracker\n")
    print("MiB of one device, bf16-mixed with AdamW, packed, 16 rows of 64 + 192 tokens, on fake tensors: single, and")
    print(
        "the first of eight fake ranks of FSDP2. torch.distributed._tools counts what exists, as a CPU computes it.\n"
    )
    print(
        "| model | states | checkpointing | phase | planned | tracked | planned / tracked |",
        "|---|---|---|---|---|---|---|",
        sep="\n",
    )
    for case in CASES:
        counted, found = planned(case), tracked(case)
        for phase in (TRAINING, STEPPING):
            ours, theirs = counted[phase] / 2**20, found[phase] / 2**20
            states, again = "FSDP2" if case.sharded else "single", "yes" if case.checkpointing else "no"
            print(
                f"| {case.family} | {states} | {again} | {phase} | {ours:,.1f} | {theirs:,.1f} | {ours / theirs:.2f} |"
            )


if __name__ == "__main__":
    main()
