"""Histograms of ratios: read back as they were written, also from resumed, damaged and strange event files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from gspo_lightning.loop.metrics.ratios import ratio_counts, ratio_histograms
from gspo_lightning.loop.metrics.sums import RATIO_EDGES
from gspo_lightning.report.histograms import SEQUENCES, TOKENS, read_histograms
from gspo_lightning.report.read import event_files
from gspo_lightning.training.callbacks.dashboard import RATIO_BINS
from gspo_lightning.training.callbacks.sink import write_counts


def write(folder: Path, updates: dict[int, list[float]], suffix: str = "") -> None:
    """Write counts of a tag under updates, between scalars, as a run does."""
    writer = SummaryWriter(str(folder), filename_suffix=suffix)
    for update, counts in updates.items():
        writer.add_scalar("reward/mean", 0.5, update)
        write_counts(writer, SEQUENCES[0], np.asarray(counts), RATIO_BINS, update)
    writer.close()


def counts_of(*log_ratios: float) -> list[float]:
    counts = [0.0] * (RATIO_EDGES.numel() + 1)
    for value in log_ratios:
        counts[int(np.searchsorted(RATIO_EDGES.numpy(), value, side="left"))] += 1
    return counts


def test_counts_and_edges_are_those_that_were_written(tmp_path: Path) -> None:
    counts = counts_of(0.0, 1e-3, 1e-3, -0.2)
    write(tmp_path, {1: counts, 20: counts_of(0.5)})
    by_update = read_histograms(tmp_path, SEQUENCES)[SEQUENCES[0]]
    assert sorted(by_update) == [1, 20]
    histogram = by_update[1]
    assert list(histogram.counts) == counts
    assert histogram.edges[:-1] == pytest.approx(RATIO_EDGES.tolist(), abs=1e-12)
    for value in (0.0, 1e-3, -0.2):  # each lies in the bin that counts it
        place = next(i for i, edge in enumerate(histogram.edges) if edge >= value - 1e-12)
        assert histogram.counts[place] >= 1
    assert read_histograms(tmp_path, SEQUENCES)[SEQUENCES[1]] == {}


def test_sums_by_sign_are_the_responses_of_that_sign(tmp_path: Path) -> None:
    import torch

    new = torch.tensor([[-1.0, -2.0], [-1.0, -1.0], [-3.0, -1.0]])
    old = torch.tensor([[-1.1, -2.0], [-1.0, -1.0], [-2.0, -1.0]])
    vectors = ratio_counts(new, old, torch.ones(3, 2, dtype=torch.bool), torch.tensor([1.0, 0.0, -1.0]))
    histograms = ratio_histograms({name: counts.tolist() for name, counts in vectors.items()})
    writer = SummaryWriter(str(tmp_path))
    for tag in (*SEQUENCES, *TOKENS):
        write_counts(writer, tag, np.asarray(histograms[tag]), RATIO_BINS, 1)
    writer.close()
    read = read_histograms(tmp_path, (*SEQUENCES, *TOKENS))
    assert [sum(read[tag][1].counts) for tag in (*SEQUENCES, *TOKENS)] == [1, 1, 2, 2]
    (place,) = np.flatnonzero(read[SEQUENCES[0]][1].counts)
    edges = read[SEQUENCES[0]][1].edges
    assert edges[place - 1] < 0.05 <= edges[place] + 1e-12  # the mean of 0.1 and 0


def test_a_resumed_run_replaces_what_it_repeats(tmp_path: Path) -> None:
    write(tmp_path, {1: counts_of(0.1), 20: counts_of(0.1), 40: counts_of(0.1)})
    first = event_files(tmp_path)[0]
    first.rename(first.with_name("events.out.tfevents.1"))
    write(tmp_path, {20: counts_of(0.2, 0.2)})
    by_update = read_histograms(tmp_path, SEQUENCES)[SEQUENCES[0]]
    assert {update: sum(histogram.counts) for update, histogram in by_update.items()} == {1: 1, 20: 2}


def test_damaged_and_strange_records_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {1: counts_of(0.1), 2: counts_of(0.2)})
    (file,) = event_files(tmp_path)
    file.write_bytes(file.read_bytes()[:-100])
    writer = SummaryWriter(str(tmp_path), filename_suffix=".z")
    limits = RATIO_BINS[1:].tolist()
    for update, (edges, counts) in enumerate(
        [
            (limits, [math.nan] * len(limits)), (limits[::-1], [1.0] * len(limits)), ([-1.0, 1.0], [1.0, 1.0]),
            (limits, [-1.0] * len(limits)), ([1.0], [1.0]), ([1.0 + i for i in range(2_000)], [1.0] * 2_000),
        ],
        start=3,
    ):  # fmt: skip
        writer.add_histogram_raw(SEQUENCES[0], 0.0, 1.0, 1, 1.0, 1.0, edges, counts, update)
    writer.close()
    assert list(read_histograms(tmp_path, SEQUENCES)[SEQUENCES[0]]) == [1]
    (tmp_path / "events.out.tfevents.9").write_text("these are not events " * 99)
    assert list(read_histograms(tmp_path, SEQUENCES)[SEQUENCES[0]]) == [1]
    assert read_histograms(tmp_path / "none", SEQUENCES) == {tag: {} for tag in SEQUENCES}
