"""Histograms of ratios as the page draws them: by the sign of the advantage, with the clip range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gspo_lightning.report.histograms import SEQUENCES, SIGNS, TOKENS, read_histograms
from gspo_lightning.report.run import Run
from gspo_lightning.report.view.index import RolloutIndex
from gspo_lightning.report.view.plain import spread

HISTOGRAMS = 60
"""Updates whose histograms are sent, at most, spread over the run."""
ROWS = 64
"""Recorded rows of tokens that a clip range is checked against."""
RATIO_LIMIT = 50.0
"""Log-ratio of a token, in nats, beyond which it is not looked at: its exponential says nothing."""


def ratio_histograms(run: Run, index: RolloutIndex) -> dict[str, Any]:
    """Return histograms of ratios by the sign of the advantage, and the clip range where it is one of these ratios.

    ``level`` is ``response`` or ``token``, ``edges`` [B] are upper edges of bins in nats, and ``updates`` has
    {update, iteration, mini_batch, positive [B], negative [B]} of some updates; it is empty if no event file has such
    histograms.
    """
    tags = SEQUENCES if run.sequence_level else TOKENS
    by_tag = read_histograms(run.folder, tags)
    steps = sorted({step for by_step in by_tag.values() for step in by_step if step <= run.updates})
    edges: tuple[float, ...] = ()
    updates: list[dict[str, Any]] = []
    for step in spread(steps, HISTOGRAMS):
        sides = [by_tag[tag].get(step) for tag in tags]
        edges = edges or next(side.edges for side in sides if side is not None)
        if any(side is not None and side.edges != edges for side in sides):
            continue  # of another version of the package
        counts = [[0.0] * len(edges) if side is None else list(side.counts) for side in sides]
        places = {name: _value_at(run, f"data/{name}", step) for name in ("iteration", "mini_batch")}
        updates.append({"update": step, **places, **dict(zip(SIGNS, counts, strict=True))})
    level = "response" if run.sequence_level else "token"
    return {"level": level, "edges": edges, "updates": updates, "band": _ratio_band(run, index)}


def _ratio_band(run: Run, index: RolloutIndex) -> list[float] | None:
    """Return the clip range [low, high] of recorded rows; None if it is not one of these ratios.

    An objective may clip something else than the ratio of a token, a probability, say: then some recorded token
    contradicts the range.
    """
    rows = index.rows({"tokens": "1"}, 1 if run.sequence_level else ROWS)
    band: Any = rows[0].get("band") if rows else None
    if not _is_band(band):
        return None
    if run.sequence_level or all(_clips_ratios(row, band) for row in rows):
        return list(band)
    return None


def _value_at(run: Run, tag: str, step: int) -> int | None:
    """Return the whole number that was logged under a tag at an update."""
    series = run.get(tag)
    if series is None:
        return None
    places = np.flatnonzero(series.steps == step)
    return int(series.values[places[0]]) if len(places) else None


def _is_band(band: Any) -> bool:
    numbers = isinstance(band, list) and all(isinstance(side, int | float) and side > 0 for side in band)
    return numbers and len(band) == 2


def _clips_ratios(row: Mapping[str, Any], band: Sequence[float]) -> bool:
    """True if no token of a recorded row contradicts that its ratio is clipped at the band, by the sign of A."""
    tokens = row.get("tokens")
    tokens = tokens if isinstance(tokens, Mapping) else {}
    ratios = tokens.get("log_ratio")
    sides = tokens.get("clip")
    advantage = row.get("advantage")
    if not isinstance(ratios, list) or not isinstance(sides, list) or not isinstance(advantage, int | float):
        return True
    if "advantage" in tokens:  # every token has its own
        return True
    for ratio, side in zip(ratios, sides, strict=False):
        if not isinstance(ratio, int | float) or abs(ratio) > RATIO_LIMIT:
            continue
        move = math.exp(ratio) - 1
        high = advantage > 0 and move > band[1]
        low = advantage < 0 and move < -band[0]
        near = min(abs(move - band[1]), abs(move + band[0])) < 1e-3 * max(band)  # recorded numbers are rounded
        if not near and side != high - low:
            return False
    return True
