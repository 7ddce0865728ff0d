"""Figure of a data report: histogram of prompt lengths and the share of prompts with each fault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from gspo_lightning.report.save import save
from gspo_lightning.report.style import FAINT, GREY, INK, style

__all__ = ["draw"]


def draw(path: Path, lengths: np.ndarray, unit: str, limit: int | None, faults: Mapping[str, int]) -> None:
    """Draw the figure and write it to a file.

    Args:
        path: PNG file to write.
        lengths: lengths of the prompts.
        unit: unit of the lengths.
        limit: longer prompts are dropped in training; None draws no line.
        faults: name -> number of prompts.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=[2, 1])
    colour = style(0)[0]
    bins = np.unique(np.geomspace(max(1, lengths.min()), lengths.max() + 1, 40).astype(int))
    above.hist(lengths, bins=bins if len(bins) > 1 else 1, color=colour)
    above.set_xscale("log")
    above.xaxis.set_major_formatter(ScalarFormatter())
    above.xaxis.set_minor_formatter(NullFormatter())
    above.set_xlabel(f"{unit} of a prompt", color=GREY, fontsize=8)
    above.set_ylabel("prompts", color=GREY, fontsize=8)
    if limit is not None:
        above.axvline(limit, color=INK, linewidth=1)
        above.annotate(f" limit {limit}", (limit, 0.95), xycoords=("data", "axes fraction"), color=INK, fontsize=8)
    shares = [100 * count / len(lengths) for count in faults.values()]
    below.barh(range(len(faults)), shares, color=colour, height=0.6)
    below.set_yticks(range(len(faults)), list(faults), fontsize=8)
    below.invert_yaxis()
    below.set_xlim(0, max([1.0, *shares]) * 1.15)
    for place, (share, count) in enumerate(zip(shares, faults.values(), strict=True)):
        below.annotate(f" {count:,}", (share, place), va="center", color=INK, fontsize=8)
    below.set_xlabel("% of the prompts", color=GREY, fontsize=8)
    for axes in (above, below):
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    save(figure, path)
