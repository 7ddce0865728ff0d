"""A plan on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from gspo_lightning.commands.plan.devices import GIB, Device
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.memory import SAMPLING, STEPPING, TRAINING, Memory, counts_of
from gspo_lightning.commands.plan.work import equation, work_of

__all__ = ["show"]


def show(job: Job, device: Device, memory: Memory, options: list[tuple[str, int]]) -> None:
    """Print it."""
    console = Console(highlight=False, soft_wrap=True)
    for line in _head(job, device):
        console.print(line, markup=False)
    console.print(_table(memory))
    for line in (*_verdict(device, memory, options), *_work(job, device)):
        console.print(line, markup=False)


def _head(job: Job, device: Device) -> Iterator[str]:
    counts = counts_of(job.model)
    trained = "" if counts.trainable == counts.total else f", {_count(counts.trainable)} of them trained (LoRA)"
    active = "" if counts.active >= 0.5 * counts.total else f", {_count(counts.active)} active per token"
    yield f"{job.model.name_or_path}: {_count(counts.total)} parameters{active}{trained}"
    yield f"{job.world} x {device.name}, {job.strategy}, {job.precision}, {_optimizer(job)}"
    yield ""
    yield equation(job)
    yield ""


def _table(memory: Memory) -> Table:
    table = Table(title="memory of one device", title_justify="left")
    table.add_column("item")
    moments = (SAMPLING, TRAINING, STEPPING)
    for moment in moments:
        table.add_column(moment, justify="right")
    for item, row in memory.items.items():
        table.add_row(item, *(_size(row.get(moment, 0)) for moment in moments))
    table.add_section()
    table.add_row("together", *(_size(memory.total(moment)) for moment in moments))
    return table


def _verdict(device: Device, memory: Memory, options: list[tuple[str, int]]) -> Iterator[str]:
    for item, size in memory.host.items():
        yield f"in the machine's own memory, per device: {item}, {_size(size)}"
    peak, room = _size(memory.peak), _size(device.memory)
    if memory.peak <= device.memory:
        share = memory.peak / device.memory
        yield f"fits: {peak} of {room} ({share:.0%}), the most during the {memory.fullest}"
        return
    over = _size(memory.peak - device.memory)
    largest = max(memory.items, key=lambda item: memory.items[item].get(memory.fullest, 0))
    yield f"does not fit: {peak} during the {memory.fullest}, {over} more than {room}; most: {largest}"
    for number, (words, size) in enumerate(options, 1):
        yield f"  option {number}: {words} ({_size(size)})"


def _work(job: Job, device: Device) -> Iterator[str]:
    work = work_of(job, device)
    yield ""
    yield (f"tokens per iteration, at most: {work.prompt_tokens:,} of prompts, {work.response_tokens:,} of responses")
    yield (
        f"FLOP per iteration, at most: sampling {work.sampling_flops:.2g}, old log-probabilities "
        f"{work.old_flops:.2g}, training {work.training_flops:.2g}"
    )
    where = "" if job.in_process else f" by {job.source}, on devices of its own: as many as train"
    yield (
        f"share of sampling in the time of an iteration: about {work.sampling_share:.0%}{where} "
        f"({_time(work.sampling_seconds)} + {_time(work.training_seconds)}; an estimate from data sheets)"
    )


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
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.2g} s"
