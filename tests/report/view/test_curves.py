"""Curves and verdicts of the page in a real browser: means of iterations, whole spreads, bands, one list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.view.browser import Browser, browser, needs_browser
from tests.report.view.made import make_run, row
from tests.report.view.serving import served

pytestmark = needs_browser
CONFIG = {"model": {"objective": {"init_args": {"clip_low": 3e-4, "clip_high": 4e-4}}}}
BOX = """
const box = document.querySelector(`figure[data-tag="${arguments[0]}"] svg > rect`).getBBox();
const parts = [...document.querySelectorAll(`figure[data-tag="${arguments[0]}"] svg > ${arguments[1]}`)];
return parts.map((part) => [part.getBBox().y - box.y, box.y + box.height - part.getBBox().y - part.getBBox().height]);
"""
"""Room above and below each part of a figure, in units of its drawing."""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as found:
        yield found


def points(window: Browser, tag: str) -> int:
    script = "return document.querySelector(`figure[data-tag=\"${arguments[0]}\"] svg > path`).getAttribute('d')"
    return str(window.run(script, tag)).count("L") + 1


def test_iterations_are_drawn_as_mean_and_range_and_bands_by_objective(window: Browser, tmp_path: Path) -> None:
    clips = [0.0, 0.2, 0.5, 0.8] * 10
    scalars = {
        "clip/tokens": clips, "clip/sequences": clips, "reward/mean": [0.5] * 40, "reward/max": [1.0] * 40,
        "reward/dead_groups": [0.7] * 40, "kl/old_new_k3": [0.0, 1e-4, 1e-3, 1e-2] * 10,
    }  # fmt: skip
    wide = {"model": {"objective": {"init_args": {"clip_low": 0.2, "clip_high": 0.2}}}}
    tight = make_run(tmp_path / "tight", [row(0, reward=0.1)], scalars=scalars, config=CONFIG)
    other = make_run(tmp_path / "wide", scalars=scalars, config=wide)
    with served([tight, other]) as address:
        window.open(f"{address}#overview?runs=0")
        assert (points(window, "clip/tokens"), points(window, "reward/mean")) == (10, 40)
        (spread,) = window.run(BOX, "clip/tokens", "polygon")
        assert min(spread) > 0, "the range of an iteration is inside of the plot"
        series = window.run("return seriesOf(state.runs[0], 'clip/tokens')[2]")
        assert [column[0] for column in series] == [4, pytest.approx(0.5), pytest.approx(0.2), pytest.approx(0.8)]
        assert window.count('figure[data-tag="clip/tokens"] rect.band') == 1
        window.go("#overview?runs=0&every=1")
        assert points(window, "clip/tokens") == 40
        window.go("#overview?runs=0.1")
        assert window.count('figure[data-tag="clip/tokens"] rect.band') == 0, "the two have other bands"
        assert window.count('figure[data-tag="reward/dead_groups"] rect.band') == 1
        # one list: a warning, and no word that nothing is wrong; what is in order is one line
        window.go("#overview?runs=0")
        assert window.count('.hint.look[data-topic="dead groups"]') == 1
        assert "Nothing looks wrong" not in window.text()
        assert window.count('.in-order .chip[data-topic="clipping"]') == 1
        # a smoothed curve on a log scale stays within what is drawn
        window.go("#overview?runs=0&every=1&log=1&smooth=0.9")
        lines = window.run(BOX, "kl/old_new_k3", "path")
        assert len(lines) == 2
        assert lines[1][1] >= lines[0][1] - 0.5, "means of 1e-4 to 1e-2 are not below them, and zeros are not counted"
        # a wrong answer that earns a tenth is not green
        window.go("#rollouts?run=0")
        assert window.text("tbody .reward") == "0.1"
        assert window.count(".reward.good") == 0
    assert window.complaints() == []


def test_a_single_update_is_the_only_tick_and_intervals_of_accuracies_end_at_1(window: Browser, tmp_path: Path) -> None:
    """0.99 with an error of 0.02: two errors above it is no accuracy."""
    run = make_run(tmp_path / "run", [row(0)], scalars={"reward/mean": [0.5]}, evaluations=[0.99, 0.99], config=CONFIG)
    with served([run]) as address:
        window.open(f"{address}#overview")
        labels = window.texts('figure[data-tag="reward/mean"] svg > text')
        assert "1" in labels
        assert {"0", "2"}.isdisjoint(labels), "an update before the first one, and one that was never made"
        accuracies = window.texts('figure[data-tag="val/accuracy"] svg > text')
        assert max(map(float, accuracies)) <= 1
