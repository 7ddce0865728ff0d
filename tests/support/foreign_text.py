"""Text that does harm where it is taken for markup, and what is left of it on a page."""

from __future__ import annotations

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ["FOREIGN", "columns", "obeyed", "shown"]

FOREIGN = (
    "[/INST] [red]x = [a, b][/] :smile: \x1b[31mE\x1b]0;title\x07\x9b2J\rover \u202eturned \u2028 "
    "<script>alert(1)</script> a|b \\| `c` **d** _e_ ~~f~~ [g](http://h) ![i](j.png) $\\frac$ $k$ &lt; \\"
)
"""Rich's markup, escape sequences of terminals, Markdown, HTML, and formulas of matplotlib that cannot be drawn."""
_HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def obeyed(text: str) -> list[str]:
    """Characters that a terminal would obey."""
    return _HARMFUL.findall(text)


def _inline(page: str) -> Iterator[tuple[Token, list[Token]]]:
    for token in _PARSER.parse(page):
        assert token.type != "html_block", token.content
        if token.type == "inline":
            yield token, token.children or []


def shown(page: str, links: int = 0) -> str:
    """The text of a page of Markdown as a reader sees it; neither HTML, nor emphasis, nor links but our own."""
    assert not obeyed(page)
    texts, links_found = [], 0
    for _, children in _inline(page):
        for child in children:
            assert child.type not in ("html_inline", "em_open", "s_open"), child
            assert child.type != "image" or str(child.attrs["src"]).endswith("report.png"), child
            links_found += child.type == "link_open"
        texts.append("".join(" " if child.type == "softbreak" else child.content for child in children))
    assert links_found == links
    return "\n".join(texts)


def columns(page: str) -> None:
    """Every row of a table has as many cells as its head, however bars in it are escaped (as GitHub reads them)."""
    for block in re.findall(r"(?:^\|.*\n?)+", page, flags=re.MULTILINE):
        counts = {len(re.findall(r"\|", re.sub(r"\\.", "", line))) for line in block.splitlines()}
        assert len(counts) == 1, block
