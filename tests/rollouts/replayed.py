"""``Recorded`` behind the interface of a source that can answer anything: samples, writes it down, and replays it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, GroupedSampler, Recorded, RolloutSource
from gspo_lightning.rollouts.recording.records import record, write_records


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as JSONL or Parquet, by the file's suffix."""
    if path.suffix == ".jsonl":
        write_records(path, rows)
    else:
        plain = [{k: v for k, v in row.items() if v != {}} for row in rows]  # Parquet has no empty structs
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(plain), path)
    return path


class Replayed(RolloutSource):
    """The in-process sampler's responses by way of a file."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix

    def generate(
        self, policy: Policy, prompts: Sequence[Prompt], *, group_size: int, sampling: SamplingParams, draws: Draws,
        version: int = 0, **options: Any,
    ) -> list[list[Rollout]]:  # fmt: skip
        job: dict[str, Any] = {"group_size": group_size, "sampling": sampling, "draws": draws, "version": version}
        groups = GroupedSampler().generate(policy, prompts, **job)
        if not groups:
            return []
        with tempfile.TemporaryDirectory() as folder:
            rows = [record(r, sampling, draws.iteration) for group in groups for r in group]
            file = write(Path(folder) / f"rollouts{self.suffix}", rows)
            return Recorded(str(file)).generate(policy, prompts, **job, **options)
