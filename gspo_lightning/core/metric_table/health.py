"""Healthy ranges and alarm thresholds as data: what judges a metric, anywhere, judges it by these.

Training's alarms, the verdicts of a report, the list of the page, the bands behind its curves and the tables of the
documentation read the same numbers from the metric's definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Case = Literal["", "tight", "wide"]
"""Clip range that a band is for: every one, one below :data:`TIGHT`, or a wider one."""
TIGHT = 0.01
"""Clip range between GSPO's (3e-4) and that of token ratios (0.2), on a logarithmic scale about in the middle."""
_CASES: dict[Case, str] = {
    "tight": f"clip range below {TIGHT:g}, as GSPO's",
    "wide": "wider clip range, as of token ratios",
}


@dataclass(frozen=True, slots=True)
class Band:
    """A healthy range; its ends are outside. None is no end."""

    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """True if the value is healthy.

        >>> Band(below=0.5).holds(0.5), Band(above=0.0, below=0.9).holds(0.77)
        (False, True)
        """
        return (self.above is None or value > self.above) and (self.below is None or value < self.below)

    @property
    def words(self) -> str:
        """The range in words.

        >>> Band(above=0.0, below=0.9).words
        'above 0 and below 0.9'
        """
        ends = (("above", self.above), ("below", self.below))
        return " and ".join(f"{word} {end:g}" for word, end in ends if end is not None)


@dataclass(frozen=True, slots=True)
class Clip:
    """Clip range of a run: its narrower side, None if unknown, and whether whole sequences are clipped."""

    width: float | None = None
    sequence: bool = False

    @property
    def case(self) -> Case:
        """The case of its bands; an unknown range is taken for the usual one of its level."""
        tight = self.sequence if self.width is None else self.width < TIGHT
        return "tight" if tight else "wide"


@dataclass(frozen=True, slots=True)
class Health:
    """Healthy range of a metric, in words and, where it has ends, in numbers.

    Args:
        text: why, and what else is healthy.
        bands: the range, by case of the clip range.
        of_start: another range, in multiples of the first iteration; it counts while the reward does not rise.
        in_clip_ranges: True if the ends are multiples of the clip range.
        later: True if it counts from the second mini-batch of an iteration on. In the first one policy and old policy
            are equal, whatever the run is like.
    """

    text: str
    bands: Mapping[Case, Band] = field(default_factory=dict)
    of_start: Band | None = None
    in_clip_ranges: bool = False
    later: bool = False

    @property
    def words(self) -> str:
        """The whole text, numbers first."""
        bands = [f"{_CASES[case]}: {band.words}" if case else band.words for case, band in self.bands.items()]
        ranges = [
            "; ".join(bands),
            "times the clip range" if self.in_clip_ranges else "",
            f"and {self.of_start.words} times its start while the reward does not rise" if self.of_start else "",
        ]
        numbers = " ".join(part for part in ranges if part)
        later = " (after the first mini-batch of an iteration)" if self.later else ""
        return f"{numbers}{later}: {self.text}" if numbers and self.text else numbers + later or self.text

    def band(self, clip: Clip) -> Band | None:
        """Return the range for a run, in the unit of the metric; None if there is none, or its scale is unknown."""
        band = self.bands.get("") or self.bands.get(clip.case)
        if band is None or not self.in_clip_ranges:
            return band
        if clip.width is None:
            return None
        above = None if band.above is None else band.above * clip.width
        below = None if band.below is None else band.below * clip.width
        return Band(above, below)


@dataclass(frozen=True, slots=True)
class AlarmRule:
    """Part of a collapse signature that belongs to a metric.

    Args:
        hits: number of suspicious looks that raises the alarm, among the last ``window``; None if another metric's
            definition gives them.
        window: see there.
        thresholds: by the name of the signature's field.
    """

    hits: int | None
    window: int | None
    thresholds: Mapping[str, float]

    @property
    def words(self) -> str:
        """The rule in words.

        >>> AlarmRule(3, 8, {"factor": 10.0}).words
        '3 of 8: factor 10'
        """
        looks = "" if self.hits is None else f"{self.hits} of {self.window}"
        numbers = ", ".join(f"{name} {value:g}" for name, value in self.thresholds.items())
        return ": ".join(part for part in (looks, numbers) if part)


def read_health(written: str | Mapping[str, Any]) -> Health:
    """Return the health of a definition: words alone, or a mapping with ``above``, ``below``, ``tight``, ``wide``.

    >>> read_health({"below": 0.5, "why": "half of the work is lost"}).words
    'below 0.5: half of the work is lost'
    """
    if isinstance(written, str):
        return Health(written)
    fields = dict(written)
    reason = fields.pop("why", "")
    in_clip_ranges = fields.pop("in_clip_ranges", False)
    later = fields.pop("later", False)
    of_start = Band(**fields.pop("of_start")) if "of_start" in fields else None
    bands: dict[Case, Band] = {}
    for case in ("tight", "wide"):
        if case in fields:
            bands[case] = Band(**fields.pop(case))
    if fields:
        bands[""] = Band(**fields)
    return Health(reason, bands, of_start, in_clip_ranges, later)


def read_rule(written: Mapping[str, Any]) -> AlarmRule:
    """Return the rule of a definition, such as ``{looks: 3 of 8, factor: 10}``."""
    thresholds = {name: float(value) for name, value in written.items() if name != "looks"}
    if "looks" not in written:
        return AlarmRule(None, None, thresholds)
    hits, window = written["looks"].split(" of ")
    return AlarmRule(int(hits), int(window), thresholds)
