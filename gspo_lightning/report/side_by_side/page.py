"""Table and Markdown page that compare objectives on the same rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from gspo_lightning.escape import cell, code, fenced
from gspo_lightning.report.side_by_side.data import MEASURES, SideBySideData
from gspo_lightning.report.words import plain

__all__ = ["page", "summary_table"]

FAR = 1e-3
"""Gap between the sampler's log-probabilities and these weights', in nats per token, above which others sampled."""


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
    kinds = [(m.name.lower(), of(m.tag)) for m in MEASURES]
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
    names, values = found.names, found.cosines()[:, part].mean(axis=(0, 1))
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
