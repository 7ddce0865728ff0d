"""Two thousand iterations of the smallest config: nothing grows."""

from __future__ import annotations

import os
import resource
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.loop.experience.loader import ExperienceLoader
from tests.runs import runs

SMALLEST = [
    *runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0", "--data.prompts_per_rollout=2",
    "--data.group_size=2", "--data.minibatches_per_rollout=1", "--data.max_response_tokens=2",
    '--trainer.callbacks=[{"class_path": "LastCheckpoint", "init_args": {"every_n_iterations": 100}}]',
]  # fmt: skip


def status() -> tuple[float, int, int, int]:
    """Resident MiB, threads, file descriptors, child processes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    memory = pages * resource.getpagesize() / 2**20
    return memory, threading.active_count(), len(os.listdir("/proc/self/fd")), len(children)


@pytest.mark.long
def test_nothing_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    seen: list[tuple[float, int, int, int]] = []
    clock: list[float] = []
    original = ExperienceLoader.mark_trained

    def measured(self: ExperienceLoader) -> None:
        original(self)
        if self.iteration % 20 == 19:
            seen.append(status())
            clock.append(time.process_time())

    monkeypatch.setattr(ExperienceLoader, "mark_trained", measured)
    runs.fit(tmp_path, *SMALLEST, f"--trainer.max_epochs={os.environ.get('GSPO_SOAK', '2000')}")
    settled = torch.tensor([s[0] for s in seen[len(seen) // 4 :]], dtype=torch.float64)
    place = torch.arange(len(settled), dtype=torch.float64) * 20
    centred = place - place.mean()
    slope = float((centred * settled).sum() / (centred**2).sum()) * 1000
    spans = torch.tensor(clock).diff()
    early, late = float(spans[: len(spans) // 4].median()), float(spans[-(len(spans) // 4) :].median())
    report = (
        f"{len(seen) * 20} iterations: {slope:+.2f} MiB per 1000 iterations (at {settled[0]:.0f} MiB), threads "
        f"{seen[0][1]} -> {seen[-1][1]}, descriptors {seen[0][2]} -> {seen[-1][2]}, processes {seen[0][3]} -> "
        f"{seen[-1][3]}, {early / 20 * 1000:.0f} -> {late / 20 * 1000:.0f} ms of CPU per iteration"
    )
    record_property("soak", report)
    print(report)
    assert slope < 5.0, report
    for before, after in zip(seen[1][1:], seen[-1][1:], strict=True):
        assert after <= before, report


IN_A_THREAD = '{"class_path": "LastCheckpoint", "init_args": {"every_n_iterations": 5, "async_save": true}}'
AGENTS = [
    "--model.cold_start=null", "--data.val=null", "--trainer.num_sanity_val_steps=0", "--data.prompts_per_rollout=4",
    "--data.group_size=4", "--data.minibatches_per_rollout=1", "--data.max_response_tokens=24",
    "--data.record_rollouts=true",
    f"--trainer.callbacks=[{IN_A_THREAD}]",
]  # fmt: skip


def written(run: Path) -> int:
    """Bytes of a run folder."""
    return sum(path.stat().st_size for path in run.rglob("*") if path.is_file())


@pytest.mark.long
def test_nothing_grows_with_agents_recording_and_checkpoints_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    """The table of docs/running.md."""
    rows: list[tuple[int, float, int, int, int, int]] = []
    original = ExperienceLoader.mark_trained
    run = tmp_path / "agent" / "version_0"

    def measured(self: ExperienceLoader) -> None:
        original(self)
        if self.iteration % 25 == 24:
            rows.append((self.iteration + 1, *status(), written(run)))

    monkeypatch.setattr(ExperienceLoader, "mark_trained", measured)
    config = runs.ROOT / "configs" / "agent.yaml"
    runs.fit(tmp_path, *AGENTS, f"--trainer.max_epochs={os.environ.get('GSPO_SOAK_AGENTS', '300')}", config=config)
    lines = [
        "| iteration | resident MiB | threads | descriptors | processes | bytes of an iteration |",
        "|" + "---|" * 6,
    ]
    for before, (iteration, memory, threads, descriptors, processes, size) in pairwise(rows):
        grown = (size - before[5]) / 25
        lines.append(f"| {iteration} | {memory:.0f} | {threads} | {descriptors} | {processes} | {grown:,.0f} |")
    report = "\n".join(lines)
    record_property("soak", report)
    print(report)
    first, last = rows[len(rows) // 3], rows[-1]
    assert (last[1] - first[1]) / (last[0] - first[0]) < 0.05, report  # MiB an iteration
    assert last[2] <= first[2] + 1, report
    assert last[3] <= first[3] + 2, report
    assert last[4] <= first[4], report
    sizes = [(late[5] - early[5]) / 25 for early, late in pairwise(rows)]
    assert max(sizes[len(sizes) // 2 :]) < 2 * max(sizes[: len(sizes) // 2]) + 10_000, report
