"""Progress bar of a pass over files, with the remaining time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from gspo_lightning.corpus.files import Inputs, Record

__all__ = ["reading"]

_STEP = 256


@contextmanager
def reading(inputs: Inputs, what: str) -> Iterator[Callable[[Record], None]]:
    """Show a bar for one pass; yields a function to call with each record. JSONL counts bytes, Parquet counts rows."""
    lines = inputs.format == ".jsonl"
    total, unit = (inputs.bytes, "B") if lines else (inputs.rows, " records")
    waiting = [0, 0]
    with tqdm(desc=what, total=total, unit=unit, unit_scale=True) as bar:

        def step(record: Record) -> None:
            waiting[0] += 1
            waiting[1] += len(record.raw) if lines else 1
            if waiting[0] >= _STEP:
                bar.update(waiting[1])
                waiting[:] = 0, 0

        yield step
        bar.update(waiting[1])
