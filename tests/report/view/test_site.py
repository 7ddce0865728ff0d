"""The site of the documentation in a window of 800 pixels: no table of it is cut, and old addresses lead on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.report.view.browser import browser, needs_browser

pytestmark = [needs_browser, pytest.mark.long]
WIDTH = 800
CUT = """
return [...document.querySelectorAll('article table')].map((table) => {
  const box = table.getBoundingClientRect(), around = table.closest('.table-wrapper') || table.parentElement;
  const over = Math.max(box.width - around.clientWidth, box.right - window.innerWidth);
  return [Math.round(over), table.innerText.slice(0, 40)];
}).filter(([over]) => over > 1);
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds, of this checkout."""
    pytest.importorskip("furo", reason="needs the extra docs: make docs")
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "-d", str(made / ".doctrees"), "docs"]
    subprocess.run([*command, str(made)], cwd=ROOT, check=True, timeout=600, env={**os.environ, "PYTHONPATH": "."})
    return made


def test_no_table_is_cut_in_a_window_of_800_pixels(site: Path) -> None:
    cut, tables = {}, 0
    with browser() as window:
        window.size(WIDTH, 900)
        for page in sorted(site.rglob("*.html")):
            if "_modules" in page.parts or 'http-equiv="refresh"' in page.read_text(encoding="utf-8")[:300]:
                continue
            window.visit(page.as_uri())
            assert window.run("return window.innerWidth") == WIDTH
            tables += window.count("article table")
            if found := window.run(CUT):
                cut[page.relative_to(site).as_posix()] = found
    assert tables > 100
    assert cut == {}


def test_old_addresses_lead_to_the_new_page(site: Path) -> None:
    """The build fails if a heading is not there; here a browser follows two of the addresses."""
    with browser() as window:
        for old, new in (
            ("cluster", "distributed.html#use-several-nodes-with-torchrun"),
            ("lab/length", "lab.html#length"),
        ):
            window.visit((site / f"{old}.html").as_uri())
            window.led_to(new)
