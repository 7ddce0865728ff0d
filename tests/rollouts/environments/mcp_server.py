"""An MCP server over its standard input and output, whose tools answer in every form that results can have."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

PAGE = TextResourceContents(uri="file:///city.md", mime_type="text/markdown", text="Zürich, 東京")
RESULTS: dict[str, CallToolResult] = {
    "texts": CallToolResult(content=[TextContent(text="a"), TextContent(text="é")]),
    "resource": CallToolResult(content=[TextContent(text="found:"), EmbeddedResource(resource=PAGE)]),
    "binary": CallToolResult(
        content=[
            EmbeddedResource(
                resource=BlobResourceContents(uri="file:///x.pdf", mime_type="application/pdf", blob="aGVsbG8=")
            )
        ]
    ),
    "link": CallToolResult(
        content=[
            ResourceLink(
                uri="https://example.org/a", name="report", mime_type="text/csv", size=12, description="sales of Köln"
            )
        ]
    ),
    "media": CallToolResult(
        content=[ImageContent(data="aGVsbG8=", mime_type="image/png"), AudioContent(data="aGVs", mime_type="audio/wav")]
    ),
    "structured": CallToolResult(content=[], structured_content={"city": "Zürich", "rows": []}),
    "structured_and_picture": CallToolResult(
        content=[ImageContent(data="aGVs", mime_type="image/png")], structured_content={"label": "größer"}
    ),
    "structured_and_text": CallToolResult(content=[TextContent(text='{"n": 1}')], structured_content={"n": 1}),
    "nothing": CallToolResult(content=[]),
    "empty_text": CallToolResult(content=[TextContent(text="")]),
    "refused": CallToolResult(content=[EmbeddedResource(resource=PAGE)], is_error=True),
    "refused_without_words": CallToolResult(content=[], is_error=True),
    "refused_in_structure": CallToolResult(content=[], structured_content={"why": "größer: 3"}, is_error=True),
}


def answer(form: str, why: str = "") -> CallToolResult:
    """Answer in a form."""
    return RESULTS[form]


def rows(count: int) -> list[str]:
    """List some rows; the package makes the result of it."""
    return ["ä"] * count


def silent(why: str) -> None:
    """Return nothing; the package makes the result of it."""


def table(key: str) -> dict[str, Any]:
    """Return a table; the package makes the result of it."""
    return {key: "ß"}


if __name__ == "__main__":
    server = MCPServer("forms", log_level="ERROR")
    for tool in (answer, rows, silent, table):
        server.tool()(tool)
    server.run(transport="stdio")
