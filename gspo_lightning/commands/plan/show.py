"""Terminal output of a plan."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from rich.table import Table

from gspo_lightning.commands.plan.devices import GIB, Device
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import Memory, checkpoint_bytes
from gspo_lightning.commands.plan.models import config_of, counts_of
from gspo_lightning.commands.plan.time import ASSUMPTIONS, DECODING, HOPED, SAMPLED, faster_with_experts, phases_of
from gspo_lightning.commands.plan.vision import Tower, tower_of
from gspo_lightning.commands.plan.work import equation, work_of
from gspo_lightning.core.escape import terminal
from gspo_lightning.policy.load.cpu_bfloat16 import bfloat16_line
from gspo_lightning.training.callbacks.checkpoints import SMALL


def show(
    job: Job,
    device: Device,
    memory: Memory,
    options: list[tuple[str, int]],
    phases: bool = False,
    shorter: tuple[int, Memory] | None = None,
) -> None:
    """Print a plan.

    Args:
        job: the run.
        device: one device.
        memory: memory at full lengths, which decides.
        options: ways to fit.
        phases: print the time of each phase and the assumptions behind it.
        shorter: mean length of responses in tokens, and the memory with it.
    """
    console = terminal(soft_wrap=True)
    for line in _head(job, device):
        console.print(line)
    console.print(_table(memory))
    for line in (
        *_waves(job, memory),
        *_shorter(shorter),
        *_verdict(device, memory, options),
        *_disk(job),
        *_work(job, device),
    ):
        console.print(line)
    if phases:
        console.print(_phases(job, device))
        for sentence in ASSUMPTIONS:
            console.print(f"  - {sentence}")


def _head(job: Job, device: Device) -> Iterator[str]:
    counts = counts_of(job.model)
    how = "LoRA" if job.lora is not None else "the rest is frozen: model.freeze"
    trained = "" if counts.trainable == counts.total else f", {_count(counts.trainable)} of them trained ({how})"
    active = (
        "" if counts.active >= 0.5 * (counts.total - counts.vision) else f", {_count(counts.active)} active per token"
    )
    yield f"{job.model.name_or_path}: {_count(counts.total)} parameters{active}{trained}"
    if (critic := job.of_critic) is not None:
        yield f"critic: {critic.model.name_or_path} without its output head, AdamW"
    elif job.critic_shared:
        yield "critic: a head on the policy's model"
    if (teacher := job.of_teacher) is not None:
        yield f"teacher: {teacher.model.name_or_path}, {_count(counts_of(teacher.model).total)} {teacher.model.dtype}"
    elif job.teacher_served:
        yield "teacher: a server, on devices of its own; its size is not known here"
    if (tower := tower_of(job)) is not None:
        yield from _pictures(job, tower)
    yield f"{job.world} x {device.name}, {job.strategy}, {job.precision}, {_optimizer(job)}"
    width = int(config_of(job.model).get_text_config().hidden_size)
    if device.cpu and (line := bfloat16_line(width, torch.device("cpu"), job.precision)) is not None:
        yield line
    yield ""
    yield equation(job)
    yield ""


def _pictures(job: Job, tower: Tower) -> Iterator[str]:
    text = counts_of(job.model).total - tower.parameters
    yield (
        f"language model: {_count(text)}; vision tower: {_count(tower.parameters)}, "
        f"{'trained' if tower.trained else 'frozen'}"
    )
    yield (
        f"a picture: up to {tower.largest:,} tokens of its prompt ({tower.pixels:,} pixels, "
        f"{tower.side} x {tower.side} a token); counted here: one of {tower.tokens:,} tokens in every prompt, "
        f"{tower.flops:.2g} FLOP in the tower"
    )
    if tower.largest > job.max_prompt and tower.fixed:
        yield (
            f"a picture is always of {tower.largest:,} tokens, and drops its prompt: "
            f"raise data.max_prompt_tokens ({job.max_prompt:,})"
        )
    elif tower.largest > job.max_prompt:
        yield (
            f"a picture of more than {job.max_prompt:,} tokens drops its prompt (data.max_prompt_tokens): "
            f"data.pictures.max_pixels: {job.max_prompt // 2 * tower.side**2} leaves half of a prompt for text"
        )


def _table(memory: Memory) -> Table:
    table = Table(title="memory of one device", title_justify="left")
    table.add_column("item")
    phases = memory.phases
    for phase in phases:
        table.add_column(phase, justify="right")
    for item, row in memory.items.items():
        table.add_row(item, *(_size(row.get(phase, 0)) for phase in phases))
    table.add_section()
    table.add_row("together", *(_size(memory.total(phase)) for phase in phases))
    return table


def _waves(job: Job, memory: Memory) -> Iterator[str]:
    """Yield a line about the batch size if responses are not all sampled together."""
    rows = max(1, job.prompts // job.world) * job.group_size
    if 0 < memory.rows < rows:
        limit = "what memory has room for, and at most max_rows" if job.waves_fit else "max_rows"
        yield f"{rows:,} responses of a device are sampled {memory.rows:,} at a time: {limit}"


def _shorter(shorter: tuple[int, Memory] | None) -> Iterator[str]:
    if shorter is not None:
        tokens, memory = shorter
        peak = f"{_size(memory.peak)}, the most during the {memory.fullest}"
        yield f"with responses of {tokens:,} tokens on average: {peak}"


def _verdict(device: Device, memory: Memory, options: list[tuple[str, int]]) -> Iterator[str]:
    for item, size in memory.host.items():
        yield f"in the machine's own memory, per device: {item}, {_size(size)}"
    peak = _size(memory.peak)
    room = _size(device.memory)
    if memory.peak <= device.memory:
        share = memory.peak / device.memory
        yield f"fits: {peak} of {room} ({share:.0%}), the most during the {memory.fullest}"
        return
    over = _size(memory.peak - device.memory)
    largest = max(memory.items, key=lambda item: memory.items[item].get(memory.fullest, 0))
    yield f"does not fit: {peak} during the {memory.fullest}, {over} more than {room}; most: {largest}"
    for number, (words, size) in enumerate(options, 1):
        yield f"  option {number}: {words} ({_size(size)})"


def _disk(job: Job) -> Iterator[str]:
    """Yield a line about checkpoints; while one is written, the disk holds one more than are kept."""
    checkpoints = job.checkpoints
    if checkpoints is None:
        return
    size = checkpoint_bytes(job)
    kept = checkpoints.keep_last + checkpoints.keep_best
    if checkpoints.every_n_iterations is not None:
        when = f"every {checkpoints.every_n_iterations} iterations"
    elif size < SMALL:
        when = "every iteration"
    else:
        when = f"after the first iteration, then every {checkpoints.every_n_minutes:g} minutes"
    yield f"disk: {_size(size)} a checkpoint ({when}), {kept} kept, at most {_size((kept + 1) * size)} at a time"
    if checkpoints.async_save:
        copies = job.replicas if job.shards_weights else 1
        yield f"in the memory of machines, all ranks together: a copy of a checkpoint, {_size(copies * size)}"


def _work(job: Job, device: Device) -> Iterator[str]:
    work = work_of(job)
    phases = phases_of(job, device)
    seconds = sum(phase.seconds for phase in phases)
    quick = sum(phase.seconds for phase in phases_of(job, device, HOPED))
    decoding = sum(phase.seconds for phase in phases if phase.name in SAMPLED) / seconds
    yield ""
    yield (f"tokens per iteration, at most: {work.prompt_tokens:,} of prompts, {work.response_tokens:,} of responses")
    yield (
        f"FLOP per iteration, at most: sampling {work.sampling_flops:.2g}, old log-probabilities "
        f"{work.old_flops:.2g}, training {work.training_flops:.2g}"
        + (f", reference {work.reference_flops:.2g}" if work.reference_flops else "")
        + (f", teacher {work.teacher_flops:.2g}" if work.teacher_flops else "")
        + (f", critic {work.value_flops + work.critic_flops:.2g}" if work.value_flops else "")
    )
    devices = "the devices that train" if job.served_share else "as many devices of its own as train"
    where = "" if job.in_process else f" by {job.source}, on {devices}"
    if work.vision_flops:
        yield (
            f"the vision tower's part, one forward pass: {work.prefill_flops:.2g} before sampling, "
            f"{work.vision_flops:.2g} over the rollout batch in each pass of training and of old log-probabilities"
        )
    yield (
        f"time, at full lengths: {_between(quick, seconds)} an iteration, "
        f"{_between(quick * job.iterations, seconds * job.iterations)} for {job.iterations:,}; "
        f"{decoding:.0%} of it sampling{where} (an estimate, no bound: {_basis(device)}; "
        "gspo plan --time shows its parts)"
    )
    if (faster := faster_with_experts(job, device)) is not None:
        yield f"with --config ep, which leaves experts on their ranks: {_time(faster)} an iteration"


def _between(quick: float, slow: float) -> str:
    """Return a range of times, or one where both ends look the same."""
    ends = [_time(quick), _time(slow)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _basis(device: Device) -> str:
    """Return what an estimate of time is made from."""
    if device.cpu:
        return "from the speed of matrix products on this CPU"
    return "the longer time at the pace of one step measured on an H100, the shorter one at a pace no run has shown"


def _phases(job: Job, device: Device) -> Table:
    phases = phases_of(job, device)
    together = sum(phase.seconds for phase in phases)
    quick = phases_of(job, device, HOPED)
    table = Table(title="time of one iteration, if every response has its greatest length", title_justify="left")
    table.add_column("phase")
    for name in ("at best", "time", "share", "tokens/s per device"):
        table.add_column(name, justify="right")
    table.add_column("waits for")
    for best, phase in zip(quick, phases, strict=True):
        rate = f"{phase.rate(job.world):,.0f}" if phase.tokens else "-"
        table.add_row(
            phase.name, _time(best.seconds), _time(phase.seconds), f"{phase.seconds / together:.0%}", rate, phase.bound
        )
    table.add_section()
    tokens = sum(phase.tokens for phase in phases if phase.name == DECODING)
    at_best = _time(sum(phase.seconds for phase in quick))
    table.add_row("together", at_best, _time(together), "", f"{tokens / together / job.world:,.0f} sampled", "")
    return table


def _count(number: int) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return str(number)


def _optimizer(job: Job) -> str:
    return job.optimizer.rsplit(".", 1)[-1]


def _size(size: float) -> str:
    if size < GIB / 20:
        return f"{size / (1 << 20):.1f} MiB" if size else "-"
    return f"{size / GIB:.2f} GiB"


def _time(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}" if seconds < 20 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds:.0f} s"
