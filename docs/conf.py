"""The site: `make docs`. Pages are Markdown (MyST), the reference is made from docstrings; warnings are errors."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

from gspo_lightning.core.metric_table.table import markdown  # noqa: E402

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
html_js_files = ["versions.js"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
linkcheck_anchors = False  # of lines and of pages that a script draws
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1|host)\b"]
linkcheck_retries = 3
linkcheck_timeout = 30
PAGES = {
    "benchmarks/README.md": "benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
    ".github/SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""File of the repository, as the README links it -> page of the site that includes it."""


MOVED = {
    "cluster": "distributed.html#use-several-nodes-with-torchrun",
    "curricula": "mixtures.html#evidence-for-curricula",
    "device": "gpu_checks.html#count-without-a-gpu",
    "first_gpu_hour": "gpu_checks.html",
    "loggers": "hub.html#loggers",
    "model_checks": "models.html#checks-before-training",
    "objective_family": "lab.html#the-quickstart-with-every-objective",
    **{
        f"lab/{name}": f"../lab.html#{name.replace('_', '-')}"
        for name in (
            "advantages", "baselines", "collapses", "compute", "engine_noise", "group_size", "learning_rate", "length",
            "low_precision", "recipe",
        )
    },
    "lab/baselines_turns": "../lab.html#baselines",
    "lab/mismatch": "../lab.html#engine-noise",
    **{f"extend/{name}": f"../extend.html#write-{anchor}" for name, anchor in (
        ("advantages", "advantages"), ("callback", "a-callback"), ("objective", "an-objective"),
        ("prompt_set", "a-prompt-set"), ("rollout_source", "a-rollout-source"),
    )},
    "extend/index": "../extend.html",
    **{f"api/{name}": f"{page}.html#{anchor}" for name, page, anchor in (
        ("advantages", "losses", "advantages"), ("callbacks", "training", "callbacks"),
        ("environments", "sampling", "environments-and-tools"), ("objectives", "losses", "objectives"),
        ("old_policy", "losses", "old-policies"), ("prompts", "sampling", "prompts"),
        ("rewards", "sampling", "rewards"), ("rollouts", "sampling", "rollout-sources"),
        ("sandbox", "sampling", "sandbox"), ("statistics", "training", "statistics"),
        ("strategies", "training", "strategies"), ("types", "losses", "types"),
    )},
}  # fmt: skip
"""Address of a page that was -> where its content is, relative to it. Old addresses stay on the site and lead there."""


def first_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the README at the top of the first page, with links to pages of the site."""
    if page == "index":
        app.env.note_dependency(str(ROOT / "README.md"))  # else a README that changed alone is not built anew
        text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
        for file, name in PAGES.items():
            text = text.replace(f"]({file})", f"]({name})")
        source[0] = source[0].replace("<!-- README.md -->", text.replace("](examples/", "](../examples/"))


def badge(app: Sphinx, page: str, source: list[str]) -> None:
    """Show a badge that opens the notebook in Colab, where a workflow of the repository on GitHub builds the site."""
    if page == "python" and (repository := os.environ.get("GITHUB_REPOSITORY")):
        ref = os.environ.get("GITHUB_REF_NAME", "main")
        address = f"https://colab.research.google.com/github/{repository}/blob/{ref}/examples/first_run.ipynb"
        picture = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
        source[0] = source[0].replace("<!-- badge -->", f"{picture}({address})")


def write_llms(app: Sphinx, failure: Exception | None) -> None:
    """Write llms.txt at the root of the site, with links to its pages."""
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    for file, name in {"README.md": "index.md", **PAGES}.items():
        text = text.replace(f"](../{file})", f"]({name})")
    (Path(app.outdir) / "llms.txt").write_text(re.sub(r"\]\((\S+)\.md\)", r"](\1.html)", text), encoding="utf-8")


def records(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to records and reports, which are no pages of the site, download them."""
    folders = "experiments|tools|benchmarks/results"
    source[0] = re.sub(rf"\[([^]]+)\]\((\.\./(?:{folders})/\S+\.md)\)", r"{download}`\1 <\2>`", source[0])


def lead_on(app: Sphinx, failure: Exception | None) -> None:
    """Write a page at each old address that leads to the new one, whose heading must be there.

    Raises:
        ValueError: it is not.
    """
    for page, target in MOVED.items() if failure is None and app.builder.format == "html" else ():
        old = Path(app.outdir) / f"{page}.html"
        new, _, heading = target.partition("#")
        old.parent.mkdir(parents=True, exist_ok=True)
        text = (old.parent / new).read_text(encoding="utf-8")
        if heading and f'id="{heading}"' not in text:
            raise ValueError(f"docs/conf.py: {page} has moved to {target}, which has no such heading")
        old.write_text(
            f'<!doctype html><meta charset="utf-8"><title>Moved</title><meta http-equiv="refresh" content="0; '
            f'url={target}"><link rel="canonical" href="{target}"><a href="{target}">This page has moved.</a>\n',
            encoding="utf-8",
        )


def metric_tables(app: Sphinx, page: str, source: list[str]) -> None:
    """Show the definitions of all metrics below what is written in docs/metrics.md."""
    if page == "metrics":
        source[0] = source[0].replace("<!-- gspo_lightning.core.metric_table.table -->", markdown())


def setup(app: Sphinx) -> None:
    """Connect the functions above; Sphinx calls this."""
    app.connect("source-read", first_page)
    app.connect("source-read", metric_tables)
    app.connect("source-read", badge)
    app.connect("source-read", records)
    app.connect("build-finished", write_llms)
    app.connect("build-finished", lead_on)
