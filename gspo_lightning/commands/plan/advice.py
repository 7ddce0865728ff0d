"""Config changes that make a run fit into memory: the smallest combinations that suffice."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gspo_lightning.commands.plan.devices import Device
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import memory_of
from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.adapters.lora import LoRA

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Linear layers of attention."""


@dataclass(frozen=True)
class Option:
    """Change of the config."""

    words: str
    """The change as written in YAML or on the command line."""
    change: Callable[[Job], Job]
    shards: bool = False
    eight_bit: bool = False


def options_that_fit(job: Job, device: Device) -> list[tuple[str, int]]:
    """Return up to two ways to fit as (words, peak bytes), fewest changes first.

    Raises:
        UserError: no option helps, because a single sequence or the model itself is too large for a device.
    """
    singles = list(_options(job))
    everything = singles
    if any(option.shards for option in singles):  # bitsandbytes does not support sharded parameters
        everything = [option for option in singles if not option.eight_bit]
    if memory_of(_all(everything, job), device).peak > device.memory:
        raise UserError(
            "data.max_response_tokens",
            f"training {job.model.name_or_path} on sequences of {job.longest:,} tokens does not fit into "
            f"{device.memory >> 30} GiB x {job.world}, even with all known options",
            fix="shorten data.max_response_tokens, or take more or larger devices, or a smaller model; --config cp "
            "cuts a sequence over devices, and --config ep leaves the experts of a layer on theirs",
        )
    ways: list[tuple[str, int]] = []
    for together in range(1, len(everything) + 1):
        ways += itertools.islice(_fitting(job, device, singles, together, ways), 2 - len(ways))
        if len(ways) == 2 or (ways and together > 1):
            break
    return ways


def _all(options: Iterable[Option], job: Job) -> Job:
    for option in options:
        job = option.change(job)
    return job


def _fitting(
    job: Job, device: Device, singles: list[Option], together: int, smaller: list[tuple[str, int]]
) -> Iterator[tuple[str, int]]:
    """Yield the combinations of ``together`` changes that fit, without those that hold a smaller one that fits."""
    for chosen in itertools.combinations(singles, together):
        words = " and ".join(option.words for option in chosen)
        if any(option.shards for option in chosen) and any(option.eight_bit for option in chosen):
            continue  # bitsandbytes does not support sharded parameters
        if any(all(change in words for change in way.split(" and ")) for way, _ in smaller):
            continue  # a subset of these changes is enough
        peak = memory_of(_all(chosen, job), device).peak
        if peak <= device.memory:
            yield words, peak


def _options(job: Job) -> Iterator[Option]:
    """Yield the changes possible for this job; those that do not affect results come first."""
    if not job.checkpointing:
        yield Option("model.gradient_checkpointing: true", lambda j: j.with_model(gradient_checkpointing=True))
    budget = max(job.longest, 4096)
    if budget < job.budget:
        yield _set(f"data.max_tokens_per_micro_batch: {budget}", budget=budget)
    rows = min(job.max_rows, job.prompts * job.group_size // job.world)
    few_rows = 4 * job.group_size
    if job.in_process and few_rows < rows:
        yield _set(f"data.rollouts.max_rows: {few_rows} (GroupedSampler)", max_rows=few_rows, source="GroupedSampler")
    world = 2 * job.world if job.strategy == "fsdp" else max(8, job.world)
    if job.prompts // job.minibatches % world == 0:
        words = f"--config fsdp2 --trainer.devices {world}"
        if world > 8:
            words += " (over all nodes)"
        yield dataclasses.replace(_set(words, strategy="fsdp", world=world, shards_weights=True), shards=True)
    if job.precision == "32-true" and job.weight_dtype.itemsize == 4:
        yield _set("trainer.precision: bf16-mixed", precision="bf16-mixed")
    if job.strategy != "fsdp" and job.lora is None:
        names = [n for n in ("AdamW8bit", "PagedAdamW8bit") if n not in job.optimizer.rsplit(".", 1)]
        if "Paged" in job.optimizer:
            names = []
        for name in names:
            path = f"bitsandbytes.optim.{name}"
            yield dataclasses.replace(_set(f"model.optimizer: {path}", optimizer=path), eight_bit=True)
    if job.lora is None:
        lora = LoRA(r=16)
        words = "{r: 16}"
        if job.expert_parallel:  # experts that stay on their ranks take none
            lora = LoRA(r=16, target_modules=[*_ATTENTION])
            words = f"{{r: 16, target_modules: [{', '.join(_ATTENTION)}]}}"
        yield Option(f"model.lora: {words}, model.dtype: bfloat16", lambda j: j.with_model(lora=lora, dtype="bfloat16"))


def _set(words: str, **changes: object) -> Option:
    return Option(words, lambda job: dataclasses.replace(job, **changes))  # type: ignore[arg-type]
