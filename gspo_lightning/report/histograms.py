"""Histograms of ratios by the sign of the advantage, read back from the event files of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from gspo_lightning.report.read import event_at, event_files, records

if TYPE_CHECKING:
    from tensorboard.compat.proto.histogram_pb2 import HistogramProto

SIGNS = ("positive", "negative")
SEQUENCES = ("ratio/histogram_positive", "ratio/histogram_negative")
TOKENS = ("ratio/token_histogram_positive", "ratio/token_histogram_negative")
"""Tags of the ratios of responses and of tokens, in the order of :data:`SIGNS`."""
SMALLEST = 200
"""Bytes below which a record of an event file holds no histogram; nearly all records hold one number."""
BINS = 1_000
"""Bins of a histogram that is read, at most; the package writes 116."""


@dataclass(frozen=True, slots=True)
class RatioHistogram:
    """Counts of ratios in bins.

    Attributes:
        edges: [B] upper edges of the bins, as logarithms of ratios in nats, ascending. The first and the last bin are
            open.
        counts: [B], at least 0.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]


def read_histograms(folder: Path, tags: Sequence[str]) -> dict[str, dict[int, RatioHistogram]]:
    """Return tag -> update -> histogram; damaged records are left out.

    A resumed run writes a new file, whose updates replace those of older files from its first one on.

    Args:
        folder: the run folder.
        tags: of histograms over ratios, such as :data:`SEQUENCES`.
    """
    histograms: dict[str, dict[int, RatioHistogram]] = {tag: {} for tag in tags}
    for file in event_files(folder):
        written = list(_of_file(file, tags))
        first = min((step for step, _, _ in written), default=0)
        for by_step in histograms.values() if written else ():
            for step in [step for step in by_step if step >= first]:
                del by_step[step]
        for step, tag, histogram in written:
            histograms[tag][step] = histogram
    return histograms


def _of_file(file: Path, tags: Sequence[str]) -> Iterator[tuple[int, str, RatioHistogram]]:
    """Yield (update, tag, histogram) of one event file."""
    for start, length in records(file)[0]:
        if length < SMALLEST:
            continue
        event = event_at(file, start, length)
        for value in event.summary.value:
            if value.tag in tags and value.WhichOneof("value") == "histo":
                histogram = _checked(value.histo)
                if histogram is not None:
                    yield event.step, value.tag, histogram


def _checked(histo: HistogramProto) -> RatioHistogram | None:
    """Return the bins of a histogram with their edges as logarithms; None if they are no counts of ratios."""
    limits = list(histo.bucket_limit)
    counts = list(histo.bucket)
    if not 2 <= len(limits) <= BINS or len(counts) != len(limits):
        return None
    if not all(map(math.isfinite, [*limits, *counts])) or min(limits) <= 0 or min(counts) < 0:
        return None
    edges = [math.log(limit) for limit in limits]
    if any(low >= high for low, high in pairwise(edges)):
        return None
    return RatioHistogram(tuple(edges), tuple(counts))
