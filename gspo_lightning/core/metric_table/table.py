"""Metric table: look up a tag, or render all definitions, as the site shows them under docs/metrics.md."""

from __future__ import annotations

import functools
import re
from itertools import groupby

from gspo_lightning.core.metric_table.spec import METRICS, MetricSpec


def lookup(tag: str) -> MetricSpec | None:
    """Return the definition of a tag, which may match a template such as ``val/pass@<k>``; None if unknown.

    >>> lookup("val/pass@8").tag
    'val/pass@<k>'
    >>> lookup("reward/parts/format").unit
    'reward'
    """
    return next((spec for pattern, spec in _patterns() if pattern.fullmatch(tag)), None)


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], MetricSpec], ...]:
    return tuple((re.compile(tag_pattern(spec.tag)), spec) for spec in METRICS)


def tag_pattern(tag: str) -> str:
    """Return a pattern of a tag: ``<k>`` matches a number, any other ``<...>`` a name, everything else itself."""
    pieces = re.split(r"(<\w+>)", tag)
    return "".join({"<k>": r"\d+"}.get(p, ".+") if p.startswith("<") else re.escape(p) for p in pieces)


def markdown() -> str:
    """Render one table per group, in the order of the definitions."""
    parts = []
    for group, specs in groupby(METRICS, key=lambda spec: spec.group):
        parts += [f"## {group}\n", "| tag | definition | unit | healthy | what to do |", "|---|---|---|---|---|"]
        parts += ["| " + " | ".join(_escape(cell) for cell in _cells(spec)) + " |" for spec in specs]
        parts.append("")
    return "\n".join(parts)


def _cells(spec: MetricSpec) -> list[str]:
    notes = [note for note in ("" if spec.kind == "scalar" else str(spec.kind), spec.when) if note]
    tag = f"`{spec.tag}`" + (f" ({'; '.join(notes)})" if notes else "")
    return [tag, spec.definition, spec.unit, spec.healthy, spec.what_to_do]


def _escape(cell: str) -> str:
    """Escape characters outside of code that a Markdown renderer would read as markup."""
    pieces = re.split(r"(`[^`]*`)", cell)
    return "".join(p if p.startswith("`") else re.sub(r"([|<*])", r"\\\1", p) for p in pieces)
