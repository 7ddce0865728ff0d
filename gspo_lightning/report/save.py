"""Save a picture to a file atomically."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter

from gspo_lightning.escape import visible
from gspo_lightning.unfinished import beside

__all__ = ["save"]


def save(figure: Figure, file: Path) -> None:
    """Write a PNG beside the file, then swap it in, so that a viewer of the old picture always finds a whole one."""
    _show_plainly(figure)
    unfinished = beside(file)
    figure.savefig(unfinished, format="png")
    os.replace(unfinished, file)


def _show_plainly(figure: Figure) -> None:
    """Turn off formulas in texts: two dollars in a name would end the run. Ticks of numbers stay unchanged."""
    axes = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    for axis in axes:
        named = isinstance(axis.get_major_formatter(), FuncFormatter)  # set by set_ticks for names
        if not (named and isinstance(axis.get_major_locator(), FixedLocator)):
            continue
        axis.set_ticklabels([visible(label.get_text()) for label in axis.get_ticklabels()], parse_math=False)
    ticks = {label for axis in axes for label in axis.get_ticklabels(which="both")}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text not in ticks:
            text.set_text(visible(text.get_text()))
            text.set_parse_math(False)
