"""Looking at all views of runs: what every one of them must not have, and whether people can read it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.report.tokens import TOKENS
from tests.report.view.browser import Browser

AXE = os.environ.get("GSPO_AXE", "")
"""File of axe-core, which ``make test-view`` fetches; without it, contrasts are checked by :func:`pale` alone."""
UNWANTED = ("undefined", "NaN", "[object", "could not be shown")


def tokens_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / TOKENS).read_text().splitlines()]


def views(folders: list[Path]) -> list[str]:
    """Addresses of all views, with the groups of a sequence-level, a token-level and an agent's run."""
    groups = []
    for number, folder in enumerate(folders):
        last = max(
            (r for r in tokens_of(folder) if r["mini_batch"] > 0), key=lambda r: (bool(r["clip"]), r["iteration"])
        )
        groups.append(f"run={number}&iteration={last['iteration']}&prompt_id={last['prompt_id']}")
    coloured = [f"#group?{groups[0]}&colour={name}" for name in ("advantage", "clip", "entropy", "gap", "age")]
    return [
        "#overview", "#overview?find=ratio", "#overview?chart=noise/sampler_logprob_gap", "#rollouts?run=0&sort=log_s",
        "#overview?seeds=1&smooth=0.9&log=1&runs=0.1", "#overview?runs=none",
        "#rollouts?run=2&q=no+such+text", "#answers?fate=became_right",
        "#rollouts?run=2&sort=reward&up=1", *(f"#group?{group}" for group in groups), *coloured,
        f"#prompt?{groups[0]}", "#answers?run=0", "#answers?run=2&all=1", "#config", "#config?all=1&find=objective",
        "#nonsense", "#rollouts?run=9", "#group?run=0&iteration=999&prompt_id=0",
        "#runs", "#runs?sort=verdicts&find=gspo", "#compare", "#compare?kind=training", "#compare?a=2&b=4",
        "#overview?from=2&to=4", f"#group?{groups[0]}&full=0.0",
    ]  # fmt: skip


def look_at(window: Browser, address: str, folders: Sequence[Path], look: str, folder: Path | None = None) -> None:
    """Open all views, and check them; their pictures go to a folder.

    Args:
        window: the browser.
        address: of the page.
        folders: the runs.
        look: ``light``, ``dark``, ``narrow`` (800 pixels) or ``phone``.
        folder: for pictures, or None.
    """
    window.size(*{"phone": (400, 860), "narrow": (800, 900)}.get(look, (1280, 1000)))
    window.open(address)
    window.run("theme(arguments[0]); await render();", "dark" if look == "dark" else "light")
    for number, view in enumerate(views(folders)):
        window.go(view)
        text = window.text("body")
        assert not [word for word in UNWANTED if word in text], (view, text)
        assert window.run("return document.documentElement.scrollWidth <= innerWidth + 1"), f"{view} is too wide"
        assert pale(window) == [], view
        assert axe(window) == [], view
        if folder is not None:
            window.screenshot(folder / f"{look}_{number:02}.png")
    assert window.complaints() == []


def axe(window: Browser) -> list[str]:
    """Return what axe-core finds wrong (WCAG 2 and 2.1, A and AA, and its best practices); nothing without its file."""
    if not AXE:
        return []
    found: list[str] = window.run(
        f"if (!window.axe) {{ {Path(AXE).read_text(encoding='utf-8')} }}"
        """
        const found = await window.axe.run(document, { resultTypes: ["violations"] });
        return found.violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.html.slice(0, 200)}`));
        """
    )
    return found


def pale(window: Browser) -> list[str]:
    """Texts whose contrast to what is behind them is below 4.5, the rule of WCAG 2 (AA)."""
    found: list[str] = window.run(
        """
        const parts = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
        const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        const light = (colour) => colour.slice(0, 3).map((c) => linear(c / 255))
          .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (element) => {
          for (let at = element; at; at = at.parentElement) {
            const colour = parts(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] > 0.99) return colour;
          }
          return [255, 255, 255];
        };
        return [...document.querySelectorAll("body *")].filter((e) => !(e instanceof SVGElement) && e.checkVisibility()
          && !e.disabled && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).filter((e) => {
          const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))];
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
        }).map((e) => `${e.className}: ${e.textContent.slice(0, 30)}`);
        """
    )
    return found
