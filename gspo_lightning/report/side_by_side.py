"""Compare objectives on the same mini-batches at the same weights: a table, a Markdown page and a figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import cell, code, fenced
from gspo_lightning.report.style import (
    FAINT,
    GREY,
    INK,
    MANY,
    Panel,
    draw_key,
    grid_of,
    heading,
    label_ends,
    logarithmic,
    poster,
    quiet,
    say_not_logged,
    style,
)
from gspo_lightning.report.words import plain

MARKERS = "os^Dv"
DECIMALS = 7
"""Digits to round to: in float32 the loss of advantages that cancel is about 1e-9."""
LIGHT = 0.6
"""Cosines below this value are written in white on dark."""
FAR = 1e-3
"""Gap between the sampler's log-probabilities and these weights', in nats per token, above which others sampled."""


MEASURES = (
    Panel("loss", "Loss", "as the objective scales it"),
    Panel("optim/gradient_norm", "Gradient norm", "L2, before clipping"),
    Panel("clip/tokens", "Clipped tokens", "fraction of tokens (0 not shown)", log=True),
    Panel("clip/sequences", "Clipped sequences", "fraction of sequences"),
)


@dataclass(frozen=True, slots=True)
class SideBySideData:
    """Rows by iteration and mini-batch: ``rows[i][m]`` is a line of the file that :class:`SideBySide` writes."""

    names: list[str]
    settings: dict[str, str]
    iterations: list[int]
    rows: list[list[dict[str, Any]]]

    @classmethod
    def read(cls, file: Path) -> SideBySideData:
        """Read the complete iterations of a file.

        Raises:
            UserError: the file is missing, or holds no iteration.
        """
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        by_iteration: dict[int, list[dict[str, Any]]] = {}
        for row in map(json.loads, lines):
            by_iteration.setdefault(int(row["iteration"]), []).append(row)
        most = max(map(len, by_iteration.values()), default=0)
        whole = {i: rows for i, rows in by_iteration.items() if len(rows) == most}
        if not whole:
            raise UserError("gspo compare", f"{file} holds no measurements of an iteration")
        first = next(iter(whole.values()))[0]
        return cls(list(first["objectives"]), dict(first["settings"]), list(whole), list(whole.values()))

    @property
    def mini_batches(self) -> int:
        """Optimizer updates per iteration."""
        return len(self.rows[0])

    def values(self, name: str, tag: str) -> NDArray[np.float64]:
        """Return a metric of an objective [iterations, mini-batches], rounded; NaN if it was not measured."""
        measured = [[row["objectives"][name].get(tag, np.nan) for row in rows] for rows in self.rows]
        return np.asarray(np.round(np.array(measured, dtype=np.float64), DECIMALS), dtype=np.float64)

    def cosines(self) -> NDArray[np.float64]:
        """Return the cosines between gradients [iterations, mini-batches, K, K]; NaN where one is 0."""
        return np.array([[row["cosines"] for row in rows] for rows in self.rows], dtype=np.float64)

    def gaps(self) -> list[float | None]:
        """Return, per iteration, the log-probability gap to the weights that sampled it, in nats per token."""
        return [rows[0].get("sampler_logprob_gap") for rows in self.rows]


def draw(found: SideBySideData) -> Figure:
    """Draw the picture; touches no global state of matplotlib."""
    styles = {name: style(i) for i, name in enumerate(found.names)}
    figure = poster()
    grid = grid_of(figure, wspace=0.52, hspace=0.42)
    for column, measure in enumerate(MEASURES):
        values = {name: found.values(name, measure.tag) for name in found.names}
        _draw_lines(figure.add_subplot(grid[0, column]), measure, values, styles)
    to_first = {name: found.cosines()[:, :, 0, i] for i, name in enumerate(found.names)}
    title = f"Direction beside {found.names[0]}'s"
    panel = Panel("", title if len(title) < 32 else "Direction beside the first", "cosine between gradients")
    _draw_lines(figure.add_subplot(grid[1, 0]), panel, to_first, styles)
    _draw_matrix(figure.add_subplot(grid[1, 1]), "Cosines, mini-batch 1", found.names, found.cosines()[:, 0])
    last = found.mini_batches
    if last > 1:
        _draw_matrix(figure.add_subplot(grid[1, 2]), f"Cosines, mini-batch {last}", found.names, found.cosines()[:, -1])
    draw_key(figure.add_subplot(grid[1, 3]), styles, _explanation(found.names), MARKERS)
    text = (
        f"the same recorded rollouts at the same weights  ·  {len(found.iterations)} iterations of {last} mini-batches"
        f"  ·  {found.names[0]} moves the weights"
    )
    heading(figure, found.names, text)
    return figure


def _draw_lines(
    axes: Any, panel: Panel, values: Mapping[str, NDArray[np.float64]], styles: Mapping[str, tuple[str, str]]
) -> None:
    """Draw values along the mini-batches: every iteration thin, their mean bold."""
    quiet(axes, panel.title, panel.unit)
    axes.set_xlabel("mini-batch of the iteration (1: ratios are 1)", color=GREY, fontsize=9)
    ends = []
    for number, (name, raw) in enumerate(values.items()):
        drawn = np.where(raw > 0, raw, np.nan) if panel.log else raw
        if not np.isfinite(drawn).any():
            continue
        colour, dash = styles[name]
        x = np.arange(1, raw.shape[1] + 1)
        axes.plot(x, drawn.T, color=colour, lw=0.9, alpha=0.4, zorder=2)
        mean = np.array([_finite_mean(column) for column in raw.T])  # zeros count, though a log axis hides them
        mean = np.where(mean > 0, mean, np.nan) if panel.log else mean
        axes.plot(x, mean, color=colour, lw=2.4, ls=dash, marker=MARKERS[number % len(MARKERS)], ms=5, zorder=3)
        if np.isfinite(mean[-1]):
            ends.append((float(mean[-1]), colour))
    if not ends:
        say_not_logged(axes)
        return
    count = next(iter(values.values())).shape[1]
    axes.set_xlim(0.8, count + 0.2)
    axes.set_xticks(range(1, count + 1, max(1, count // 8)))
    if panel.log:
        logarithmic(axes)
    elif panel.unit.startswith("fraction"):
        axes.set_ylim(0, 1.02)
    label_ends(axes, ends, gap=0.085)


def _finite_mean(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def _draw_matrix(axes: Any, title: str, names: list[str], cosines: NDArray[np.float64]) -> None:
    """Draw the mean over iterations [I, K, K] as numbers on grey, 0 (dark) to 1 (white); red below 0."""
    values = np.array([[_finite_mean(cosines[:, i, j]) for j in range(len(names))] for i in range(len(names))])
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=7)
    axes.imshow(np.clip(values, 0, 1), cmap="gray", vmin=-0.15, vmax=1.0)
    small = 9 if len(names) < 6 else 6.5
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            text = f"{value:.2f}" if np.isfinite(value) else "no\ngradient"
            colour = "#ff6b5e" if value < 0 else "white" if value < LIGHT else INK
            axes.text(j, i, text, ha="center", va="center", fontsize=small, color=colour)
    places = range(len(names))
    axes.set_xticks(places, [_short(n) for n in names], rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(places, [_short(n) for n in names])
    axes.tick_params(colors=GREY, labelsize=8.5, length=0)
    for side in axes.spines.values():
        side.set_color(FAINT)


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"


def _explanation(names: Sequence[str]) -> str:
    """Return the text of the key."""
    lines = ["Thin: one iteration. Bold: their mean" + ("; its" if len(names) <= MANY else ".")]
    lines += ["last value is at the right edge."] if len(names) <= MANY else []
    return "\n".join([*lines, "Losses are on different scales."])


def page(found: SideBySideData, command: str, picture: str) -> str:
    """Return the Markdown page: first mini-batch, later ones, every iteration, and the limits of the numbers."""
    names = found.names
    lines = [f"# {cell(' / '.join(names))} on the same rollouts", "", "Made by:", "", fenced(command, "bash"), ""]
    lines += [f"![side by side]({picture})", "", "| | objective |", "|---|---|"]
    lines += [f"| {cell(name)} | {code(found.settings[name])} |" for name in names]
    lines += ["", *_how_to_read(found), ""]
    for title, part in _parts(found):
        lines += [f"## {title}", "", "Mean over iterations [smallest, largest].", ""]
        kinds = [(label, of) for label, of in _measures(found) if np.isfinite(_table(found, of, part)).any()]
        lines += ["| | " + " | ".join(cell(label) for label, _ in kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
        for name in names:
            lines.append(
                f"| {cell(name)} | " + " | ".join(_spread(of(name)[:, part].mean(axis=1)) for _, of in kinds) + " |"
            )
        lines += ["", *_cosine_table(found, part), ""]
    lines += _every_iteration(found)
    return "\n".join(lines) + "\n"


def summary_table(found: SideBySideData) -> Table:
    """Return the terminal table: means over iterations, one column per objective, first mini-batch and later ones."""
    table = Table(title=f"means over {len(found.iterations)} recorded iterations", title_justify="left")
    table.add_column("")
    table.add_column("mini-batch")
    for name in found.names:
        table.add_column(name, justify="right", overflow="fold")
    for label, of in _measures(found):
        for (_, part), where in zip(_parts(found), ("1 (ratios are 1)", f"2-{found.mini_batches}"), strict=False):
            values = [_mean(of(name)[:, part]) for name in found.names]
            if any(v is not None for v in values):
                table.add_row(label, where, *(plain(v) for v in values))
    return table


def _parts(found: SideBySideData) -> Iterator[tuple[str, slice]]:
    yield "First mini-batch of an iteration: every ratio is 1", slice(0, 1)
    if found.mini_batches > 1:
        yield f"Mini-batches 2 to {found.mini_batches}: after off-policy drift", slice(1, None)


def _measures(found: SideBySideData) -> list[tuple[str, Callable[[str], NDArray[np.float64]]]]:
    """Return pairs of a label and a function: name -> values [iterations, mini-batches]."""

    def of(tag: str) -> Callable[[str], NDArray[np.float64]]:
        return lambda name: found.values(name, tag)

    first = found.names[0]
    kinds = [(m.title.lower(), of(m.tag)) for m in MEASURES]
    return [*kinds, (f"cosine to {first}", lambda name: found.cosines()[:, :, 0, found.names.index(name)])]


def _table(found: SideBySideData, of: Callable[[str], NDArray[np.float64]], part: slice) -> NDArray[np.float64]:
    return np.array([of(name)[:, part] for name in found.names])


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if np.isfinite(values).all() else None


def _spread(values: NDArray[np.float64]) -> str:
    if not np.isfinite(values).all():
        return "-"
    low, mean, high = (plain(float(v)) for v in (values.min(), values.mean(), values.max()))
    return mean if low == high else f"{mean} [{low}, {high}]"


def _cosine_table(found: SideBySideData, part: slice) -> list[str]:
    names = found.names
    values = found.cosines()[:, part].mean(axis=(0, 1))
    lines = ["| cosine between gradients | " + " | ".join(map(cell, names)) + " |", "|---" * (len(names) + 1) + "|"]
    for name, row in zip(names, values, strict=True):
        lines.append(f"| {cell(name)} | " + " | ".join(_cosine(v) for v in row) + " |")
    return lines


def _cosine(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "-"


def _every_iteration(found: SideBySideData) -> list[str]:
    """Return each measure with one column per iteration: after drift, nothing is averaged over iterations."""
    if found.mini_batches < 2 or len(found.iterations) < 2:
        return []
    lines = [f"## Every iteration, mean of mini-batches 2 to {found.mini_batches}", ""]
    lines += ["| | | " + " | ".join(str(i) for i in found.iterations) + " |"]
    lines += ["|---" * (len(found.iterations) + 2) + "|"]
    for label, of in _measures(found):
        for name in found.names:
            values = of(name)[:, 1:].mean(axis=1)
            if np.isfinite(values).any():
                cells = [plain(float(v)) if np.isfinite(v) else "-" for v in values]
                lines.append(f"| {cell(label)} | {cell(name)} | {' | '.join(cells)} |")
    return lines


def _how_to_read(found: SideBySideData) -> list[str]:
    first = found.names[0]
    lines = [
        "Before every update each objective's gradient was computed on the update's mini-batch, at the current "
        f"weights: the same responses, rewards, advantages and old log-probabilities for all. Then only {cell(first)} "
        "updated the weights; the others never did. On the first mini-batch of an iteration the policy still is the "
        "old policy and every ratio is 1; the later ones see the drift of the updates before them. Losses of "
        "different objectives are on different scales. Iterations of one run are not independent: this shows what "
        "happened, it claims no "
        "difference.",
    ]
    return [*lines, *_who_sampled(found.iterations, found.gaps())]


def _who_sampled(iterations: Sequence[int], gaps: Sequence[float | None]) -> list[str]:
    far = [str(i) for i, gap in zip(iterations, gaps, strict=True) if gap is not None and gap > FAR]
    largest = max((gap for gap in gaps if gap is not None), default=None)
    if largest is None:
        return []
    text = f"Recorded log-probabilities differ from those of the weights here by at most {plain(largest)} nats a token"
    if not far:
        return ["", f"{text} (mean of an iteration): these weights sampled the responses."]
    return [
        "",
        f"{text} (mean of an iteration). **Other weights sampled iterations {', '.join(far)}**: there the old policy "
        "is the one at the start of the iteration here, not the one that sampled. Put the objective first that trained "
        "the recorded run, with its config, to have its weights.",
    ]
