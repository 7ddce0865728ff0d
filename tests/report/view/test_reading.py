"""Reading in a browser: zoom of curves, histograms over clip zones, one scroller, answers in full, folding, widths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from gspo_lightning.loop.metrics.sums import RATIO_EDGES
from gspo_lightning.report.histograms import SEQUENCES
from gspo_lightning.training.callbacks.dashboard import RATIO_BINS
from gspo_lightning.training.callbacks.sink import write_counts
from tests.report.view.browser import Browser, browser, needs_browser
from tests.report.view.looking import axe, pale
from tests.report.view.made import make_run, row
from tests.report.view.serving import served

pytestmark = [needs_browser, pytest.mark.thorough]
ESCAPE, SHIFT_RIGHT, RIGHT, END = "\ue00c", "\ue014", "\ue014", "\ue010"
CONFIG = {
    "model": {
        "objective": {"class_path": "GSPO", "init_args": {"clip_low": 3e-4, "clip_high": 4e-4}},
        "cold_start": {"demonstrations": {"class_path": "gspo_lightning.data.prompts.ChainTask"}},
        **{f"setting_{i}": i for i in range(60)},
    }
}
SCROLLERS = """
return [...document.querySelectorAll("main *, dialog, dialog *")].filter((e) => {
  const style = getComputedStyle(e);
  return ["auto", "scroll"].includes(style.overflowY) && e.scrollHeight > e.clientHeight + 1 && e.clientHeight > 0;
}).map((e) => e.className || e.tagName);
"""
"""What a reader would have to scroll beside the page."""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def columns(window: Browser, tag: str) -> list[int]:
    """The updates that a figure labels."""
    script = (
        'const svg = document.querySelector(`figure[data-tag="${arguments[0]}"] > svg`), box = svg.viewBox.baseVal;'
        "return [...svg.querySelectorAll('text')].filter((e) => Number(e.getAttribute('y')) > box.height - 12)"
        ".map((e) => Number(e.textContent.replace(',', '')))"
    )
    return [int(label) for label in window.run(script, tag)]


def test_a_drag_over_a_curve_zooms_all_and_a_link_reproduces_it(window: Browser, tmp_path: Path) -> None:
    window.size(1280, 1000)
    values = [i / 400 for i in range(400)]
    scalars = {
        "reward/mean": values,
        "policy/entropy": values,
        "kl/old_new_k3": [10 ** (-6 + i % 5) for i in range(400)],
    }
    folder = make_run(tmp_path / "run", [row(i) for i in range(100)], scalars=scalars)
    plot = 'figure[data-tag="reward/mean"] > svg'
    with served([folder]) as address:
        window.open(f"{address}#overview?every=1")
        assert columns(window, "reward/mean")[-1] == 400
        window.drag(plot, 0.5, 0.8)
        window.until("return location.hash.includes('from=')")
        window.settled()
        first, last = window.run("return state.zoom")
        left, span = 54 / 420, 354 / 420  # of the drawing
        assert first == pytest.approx(1 + (0.5 - left) / span * 399, abs=3)
        assert last == pytest.approx(1 + (0.8 - left) / span * 399, abs=3)
        for tag in ("reward/mean", "policy/entropy"):
            assert all(first <= update <= last for update in columns(window, tag))
        link = window.run("return location.href")
        window.open(link)
        assert window.run("return state.zoom") == [first, last]
        assert all(first <= update <= last for update in columns(window, "reward/mean"))
        clipped = window.count("figure[data-tag] > svg > path[clip-path]")
        assert clipped == window.count("figure[data-tag] > svg > path:not(.dot)") > 1, (
            "what is beside the plot is not drawn over the axis"
        )
        # keys: in, along, and out again; the focus stays on the figure
        window.run("document.querySelector(arguments[0]).focus()", plot)
        window.key("+")
        nearer = window.run("return state.zoom")
        assert nearer[1] - nearer[0] == pytest.approx((last - first) / 2, abs=2)
        assert window.run("return document.activeElement === document.querySelector(arguments[0])", plot)
        window.run(
            "const key = new KeyboardEvent('keydown', { key: 'ArrowLeft', shiftKey: true, bubbles: true });"
            "document.activeElement.dispatchEvent(key); await new Promise((r) => setTimeout(r, 60));"
        )
        window.settled()
        moved = window.run("return state.zoom")
        assert moved[0] == pytest.approx(nearer[0] - (nearer[1] - nearer[0]) / 4, abs=2)
        window.key("-")
        wider = window.run("return state.zoom")
        assert wider[1] - wider[0] == pytest.approx(2 * (moved[1] - moved[0]), abs=2)
        window.key(ESCAPE)
        assert window.run("return [state.zoom, location.hash.includes('from=')]") == [None, False]
        window.go("#overview?from=100&to=200")
        assert "updates 100 to 200: show all" in window.text(".bar")
        dots = "return document.querySelectorAll('figure[data-tag=ratios_0] .dot').length"
        assert window.run(dots) == 25, "responses of these updates, one in four of them"
        assert (axe(window), pale(window)) == ([], [])
        window.run("document.getElementById('whole').click()")
        window.until("return !location.hash.includes('from=')")
        # a click is no drag
        window.settled()
        window.run(
            "document.querySelector(arguments[0]).dispatchEvent(new PointerEvent('click', { bubbles: true }))", plot
        )
        window.until("return location.hash.startsWith('#rollouts')")
    assert window.complaints() == []


def test_a_zoomed_long_run_has_its_own_points(window: Browser, tmp_path: Path) -> None:
    values = [((i * 7919) % 1000) / 1000 for i in range(6_000)]
    with served([make_run(tmp_path / "run", scalars={"reward/mean": values})]) as address:
        window.open(f"{address}#overview?every=1&from=3000&to=3100")
        path = "return document.querySelector('figure[data-tag=\"reward/mean\"] > svg > path').getAttribute('d')"
        assert window.run(path).count("L") + 1 == 103, "all of 3,000 to 3,100, and a point on either side"


def test_spreads_and_smoothed_curves_stay_in_the_plot(window: Browser, tmp_path: Path) -> None:
    values = [0.0, 1e-6, 1e-3, 1.0] * 20
    scalars = {"kl/old_new_k3": values, "policy/entropy": values, "reward/mean": [0.5] * 80}
    inside = """
    const svg = document.querySelector(`figure[data-tag="${arguments[0]}"] > svg`), box = svg.viewBox.baseVal;
    return [...svg.querySelectorAll(":scope > path, :scope > polygon")].map((e) => {
      const part = e.getBBox();
      return [part.y >= 8 - 0.2, part.y + part.height <= box.height - 24 + 0.2, part.height > 10];
    });
    """
    with served([make_run(tmp_path / "run", scalars=scalars)]) as address:
        for query in ("log=1&smooth=0.97&every=1", "log=1", "smooth=0.9", "log=1&smooth=0.9&from=30&to=50"):
            window.open(f"{address}#overview?{query}")
            for tag in ("kl/old_new_k3", "policy/entropy"):
                drawn = window.run(inside, tag)
                assert drawn, (query, tag)
                assert all(low and high for low, high, _ in drawn), (query, tag, drawn)
                assert drawn[0][2], "the curve is no line along the edge"


def test_histograms_of_ratios_by_sign_over_the_clip_zones(window: Browser, tmp_path: Path) -> None:
    window.size(1280, 1000)
    scalars = {"clip/sequences": [0.1] * 40, "reward/mean": [0.5] * 40}
    folder = make_run(tmp_path / "run", [row(0)], scalars=scalars, config=CONFIG)

    def counts_of(*log_ratios: float) -> np.ndarray:
        return np.bincount(np.searchsorted(RATIO_EDGES.numpy(), log_ratios), minlength=RATIO_EDGES.numel() + 1)

    writer = SummaryWriter(str(folder))
    for update in (1, 20, 40):  # the last one: 5 of 8 beyond the upper edge, 2 of 3 below the lower one
        far = [0.0] * 8 if update == 1 else [2e-5] * 3 + [5e-3] * 5
        near = [0.0] * 3 if update == 1 else [-0.02, -0.03, 0.01]
        write_counts(writer, SEQUENCES[0], counts_of(*far), RATIO_BINS, update)
        write_counts(writer, SEQUENCES[1], counts_of(*near), RATIO_BINS, update)
    writer.close()
    bars = """
    return [...document.querySelectorAll(`figure[data-tag="histogram_0"] .bar[data-sign="${arguments[0]}"]`)]
      .map((e) => [Number(e.getAttribute("height")), e.getAttribute("fill")]);
    """
    with served([folder]) as address:
        window.open(address)
        figure = 'figure[data-tag="histogram_0"]'
        assert "update 40, iteration 9, mini-batch 4" in window.text(f"{figure} .slider")
        up, down = window.run(bars, "positive"), window.run(bars, "negative")
        orange, blue = "#d55e00", "#0072b2"
        heights = {colour: sum(size for size, fill in up if fill == colour) for _, colour in up}
        assert heights[orange] / sum(heights.values()) == pytest.approx(5 / 8, abs=0.01)
        below = sum(size for size, fill in down if fill == blue)
        assert below / sum(size for size, _ in down) == pytest.approx(2 / 3, abs=0.01)
        assert orange not in {fill for _, fill in down}, "above 1 an answer with A < 0 does not clip"
        assert window.count(f"{figure} .zone") == 2
        assert window.texts(f"{figure} > svg > text")[:4] == ["A > 0", "8", "A < 0", "3"]
        window.run("document.querySelector(`${arguments[0]} input`).focus()", figure)
        window.key("\ue012")
        window.key("\ue012")
        assert "update 1, iteration 0, mini-batch 1" in window.text(f"{figure} .slider")
        assert [fill for _, fill in window.run(bars, "positive") if fill == orange] == [], "all are exactly 1"
        for look in ("light", "dark"):
            window.run("theme(arguments[0]); await render();", look)
            assert (axe(window), pale(window)) == ([], [])
    assert window.complaints() == []


def long_run(folder: Path) -> Path:
    """A run of long prompts and answers, some of them conversations."""
    words = [f"word{i} " for i in range(900)]
    tokens = {"text": words, "log_ratio": [1e-3] * 900, "entropy": [0.1] * 900}
    messages = [{"role": role, "content": "text " * 400} for role in ("user", "assistant")]
    more: dict[str, Any] = {"completion": "".join(words), "tokens": tokens, "length": 900, "messages": messages}
    rows = [
        row(i, sample=k, reward=float(k % 2), advantage=1.0 - 2 * (k % 2), prompt="Explain. " * 200, **more)
        for i in range(3)
        for k in range(4)
    ]
    answers = [
        {"update": u, "id": i, "prompt": "why " * 300, "answer": "1", "completion": "so " * 700, "reward": 1.0}
        for u in (0, 40)
        for i in range(3)
    ]
    return make_run(folder, rows, answers=answers, config=CONFIG)


def test_only_the_page_scrolls_and_an_answer_opens_in_full(window: Browser, tmp_path: Path) -> None:
    window.size(800, 900)
    with served([long_run(tmp_path / "run")]) as address:
        window.open(address)
        for view in ("#group?run=0&iteration=1&prompt_id=1", "#answers", "#rollouts", "#config?find=setting"):
            window.go(view)
            window.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
            assert window.run(SCROLLERS) == [], view
            assert (axe(window), pale(window)) == ([], []), view
        window.go("#group?run=0&iteration=1&prompt_id=1")
        window.run("[...document.querySelectorAll('a.whole')].at(-1).focus()")
        window.key("\ue007")
        window.until("return document.querySelector('dialog[open]') !== null")
        assert window.run("return location.hash.includes('full=2.0')")
        assert window.text("dialog h2") == "Iteration 1, sample #2"
        assert "word899" in window.text("dialog")
        tall = "const e = document.querySelector('dialog .tokens'); return e.scrollHeight <= e.clientHeight + 1"
        assert window.run(tall), "all of it is there"
        assert window.run(SCROLLERS) == ["reader"], "one scroller"
        assert (axe(window), pale(window)) == ([], [])
        link = window.run("return location.href")
        window.key("d")
        assert window.run("return document.querySelector('dialog[open]') !== null"), "keys of the page wait"
        window.key(ESCAPE)
        window.until("return document.querySelector('dialog') === null")
        window.settled()
        assert "full=" not in window.run("return location.hash")
        assert window.run("return document.activeElement.dataset.name") == "2.0", "back to where it was opened"
        window.open(link)
        assert window.text("dialog h2") == "Iteration 1, sample #2"
        window.go("#group?run=0&iteration=1&prompt_id=1")
        window.until("return document.querySelector('dialog') === null")
        # a text without an address of its own
        window.open(f"{address}#answers")
        window.run("document.querySelector('.opener').focus()")
        window.key("\ue007")
        assert window.text("dialog .text").count("why") == 300 or window.text("dialog .reader-body").count("why") == 300
        window.key(ESCAPE)
        assert window.run("return document.activeElement.className") == "opener"
    assert window.complaints() == []


def test_a_narrow_window_folds_what_is_less_needed(window: Browser, tmp_path: Path) -> None:
    tags = [
        "reward/mean", "response/length", "reward/dead_groups", "clip/tokens", "clip/high", "clip/low", "ratio/max",
        "ratio/log_sequence_p95", "ratio/log_sequence_p05", "policy/entropy", "kl/old_new_k3", "optim/gradient_norm",
        "optim/gradient_spike", "ratio/effective_sample_size", "noise/sampler_logprob_gap",
        "noise/sampler_sequence_gap", "noise/kl_sampler_old_k1", "staleness/mean_age",
    ]  # fmt: skip
    scalars = {tag: [0.1] * 40 for tag in tags}
    folder = make_run(
        tmp_path / "run", [row(i) for i in range(10)], scalars=scalars, evaluations=[0.1, 0.9], config=CONFIG
    )
    with served([folder]) as address:
        window.size(1280, 900)
        window.open(address)
        assert window.count("details.section[open]") == 4
        window.size(800, 900)
        window.open(address)
        assert window.count("details.section") == 4
        assert window.count("details.section[open]") == 1
        assert window.run("return document.documentElement.scrollHeight") < 2_000
        first, second, *_ = window.boxes("figure", "left")
        assert second > first + 300, "two columns"
        window.run("document.querySelectorAll('details.section:not([open]) > summary').forEach((e) => e.click())")
        assert window.run("return document.documentElement.scrollHeight") < 4_500
        window.key("r")
        assert window.count("details.section[open]") == 4, "what was unfolded stays so"
        window.open(f"{address}#overview?chart=optim/gradient_spike")
        assert window.run("return document.querySelector('.marked').closest('details').open")
        window.go("#config?all=1")
        assert window.count("details.section[open]") == 0
        assert window.run("return document.documentElement.scrollHeight") < 1_500
        window.go("#config?all=1&find=cold_start")
        assert min(window.boxes("th.setting", "width")) >= 250
        assert max(window.boxes("th.setting > span", "height")) <= 40, "two lines at most"
        assert (axe(window), pale(window)) == ([], [])
    assert window.complaints() == []
