"""Draw the small panels of the picture, one metric each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gspo_lightning.report.run import Series, number
from gspo_lightning.report.style import (
    GREY,
    INK,
    Line,
    draw_series,
    dress,
    label_ends,
    say_not_logged,
    say_what_is_missing,
    short,
    window,
)

__all__ = ["EXTRA", "PANELS", "PLACES", "WIDE", "Panel", "draw_panel"]

WIDE = 30.0
"""Runs share a logarithmic axis if their medians differ by more than this factor: a linear one shows the lower as 0."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A small panel. ``whole``: the axis shows the whole range of a fraction, 0 to 1."""

    tag: str
    title: str
    unit: str
    whole: bool = False


PANELS = (
    Panel("clip/tokens", "Clipped tokens", "fraction of tokens"),
    Panel("ratio/log_sequence_std", "Spread of sequence ratios", "std of log $s_i$ (nats per token)"),
    Panel("optim/gradient_norm", "Gradient norm", "L2, before clipping"),
    Panel("kl/old_new_k3", "KL, old to new policy", "k3 (nats per token)"),
    Panel("policy/entropy", "Entropy", "nats per token"),
    Panel("response/length", "Response length", "tokens"),
    Panel("response/terminated", "Responses that end by themselves", "fraction of responses", whole=True),
    Panel("reward/dead_groups", "Dead groups (all rewards equal)", "fraction of groups", whole=True),
)
EXTRA = (
    Panel("moe/changed_choices", "Expert choices changed per update", "fraction of (token, layer)"),
    Panel("moe/changed_over_iteration", "Expert choices changed per iteration", "fraction of (token, layer)"),
    Panel("staleness/mean_age", "Age of rollouts", "updates"),
    Panel("ratio/effective_sample_size", "Effective sample size", "fraction of samples", whole=True),
    Panel("update/relative_norm", "Size of an update", "L2, relative to the weights"),
    Panel("response/repetition", "Repetition", "fraction of 4-grams"),
    Panel("noise/sampler_sequence_gap", "Sampler against trainer", "nats per token"),
)
"""Panels of a fourth row: the first four of these that a run logs."""
PLACES = ((0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3))
"""Row and column of each panel."""


def draw_panel(axes: Any, panel: Panel, lines: Sequence[Line]) -> None:
    """Draw the curve of every run that logs the metric; name the others."""
    dress(axes, panel.title, panel.unit, lines)
    drawn = [(line, series) for line in lines if (series := line.run.get(panel.tag)) is not None]
    if not drawn:
        say_not_logged(axes)
        say_what_is_missing(axes, panel.tag, lines)
        return
    log = _spread_wide([series for _, series in drawn])
    ends = []
    for line, series in drawn:
        whole = len(line.run.scalars[panel.tag])
        bold = draw_series(axes, line, series, window(line.run, len(series)), log=log, whole=whole)
        ends.append((float(bold[-1]), line.colour))
    if log:
        axes.set_yscale("log")
        axes.tick_params(which="both", length=0)
        axes.set_ylabel(f"{panel.unit}, log (no 0)", color=GREY, fontsize=9)
    else:
        top = max(float(series.values.max()) for _, series in drawn)
        axes.set_ylim(0, 1.03 if panel.whole else 1.12 * top if top > 0 else 1)
    if panel.tag == "optim/gradient_norm":
        _mark_largest(axes, drawn)
    label_ends(axes, ends, gap=0.085)
    say_what_is_missing(axes, panel.tag, lines)


def _spread_wide(drawn: Sequence[Series]) -> bool:
    medians = [float(np.median(s.values[s.values > 0])) for s in drawn if (s.values > 0).any()]
    return len(medians) > 1 and max(medians) > WIDE * min(medians)


def _mark_largest(axes: Any, drawn: Sequence[tuple[Line, Series]]) -> None:
    """Mark the largest norm of each run with a dot, and the norm to which all runs clip with a line."""
    for line, series in drawn:
        at = int(series.values.argmax())
        largest, median = float(series.values[at]), float(np.median(series.values))
        axes.plot(series.steps[at], largest, "o", color=line.colour, ms=4.5, zorder=4)
        if len(drawn) == 1 and median > 0:
            left = series.steps[at] <= sum(axes.get_xlim()) / 2
            axes.annotate(
                f"largest {short(largest)}\n= {largest / median:.1f} x median", (series.steps[at], largest),
                xytext=(7 if left else -7, 0), textcoords="offset points", ha="left" if left else "right", va="center",
                fontsize=8.5, color=INK,
            )  # fmt: skip
    limits = {number(line.run.setting("trainer", "gradient_clip_val")) for line, _ in drawn} - {None, 0.0}
    if len(limits) == 1 and (limit := limits.pop()) is not None and limit < axes.get_ylim()[1]:
        axes.axhline(limit, color=GREY, lw=0.9, ls=(0, (4, 3)), zorder=1)
        axes.set_ylabel(f"{axes.get_ylabel()} to {short(limit)} (dashed)", color=GREY, fontsize=9)
