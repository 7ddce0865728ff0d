"""Charts are of metrics that exist, whatever a run logs of them."""

from __future__ import annotations

import re
from itertools import product

from gspo_lightning.core.metric_table.spec import METRICS
from gspo_lightning.training.callbacks.dashboard import LAYOUT

STANDS_FOR = {"<k>": ("0", "01", "05", "50", "95", "99"), "<sign>": ("positive", "negative"), "<name>": ("x",)}


def tags() -> set[str]:
    """Of all scalars, with some of what templates stand for."""
    found = set()
    for spec in (s for s in METRICS if s.kind == "scalar"):
        holes = re.findall(r"<\w+>", spec.tag)
        for filling in product(*(STANDS_FOR.get(hole, ("x",)) for hole in holes)):
            tag = spec.tag
            for hole, text in zip(holes, filling, strict=True):
                tag = tag.replace(hole, text)
            found.add(tag)
    return found


def test_every_line_of_every_chart_is_a_metric() -> None:
    known = tags()
    for category, charts in LAYOUT.items():
        for title, (kind, patterns) in charts.items():
            assert kind in ("Multiline", "Margin")
            for pattern in patterns:
                assert any(re.search(pattern, tag) for tag in known), f"{category}: {title}: {pattern}"


def test_no_two_charts_of_a_category_show_the_same() -> None:
    for charts in LAYOUT.values():
        patterns = [pattern for _, found in charts.values() for pattern in found]
        assert len(patterns) == len(set(patterns))
