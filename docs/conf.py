"""The site: `make docs`. Pages are Markdown (MyST), the reference is made from docstrings; warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

project = "gspo_lightning"
author = "the authors of gspo_lightning"
project_copyright = author
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "gspo_lightning"
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
PAGES = {"benchmarks/README.md": "benchmarks.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
PAGES |= {"CHANGELOG.md": "changelog.md"}


def first_page(app: object, page: str, source: list[str]) -> None:
    """The README is the first page of the site; its links are those of a clone."""
    if page == "index":
        text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
        for file, name in PAGES.items():
            text = text.replace(f"]({file})", f"]({name})")
        source[0] = source[0].replace("<!-- README.md -->", text.replace("](examples/", "](../examples/"))


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("source-read", first_page)  # type: ignore[attr-defined]
