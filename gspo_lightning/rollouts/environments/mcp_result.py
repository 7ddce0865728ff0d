"""Results of MCP tools as text for a policy."""

from __future__ import annotations

import json
from typing import Any

NOTHING = "[no content]"
"""Text for a result without any content, so that the policy can tell it from an answer that is lost."""


def result_text(result: Any) -> str:
    """Return the text of a tool's result, one content block after the other.

    Texts and resources with text are shown as they are. Pictures, sound, binary resources and links are named, with
    their type, size and address. Structured content is shown as JSON where no block has a text: a server repeats it
    there otherwise (MCP, "Structured Content").

    Args:
        result: ``CallToolResult`` of the package mcp.
    """
    texts = [_text(block) for block in result.content]
    lines = [_named(block) if text is None else text for block, text in zip(result.content, texts, strict=True)]
    if result.structured_content is not None and all(text is None for text in texts):
        lines.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(lines) if lines else NOTHING


def _text(block: Any) -> str | None:
    """Return the text of a block, or None if it has none."""
    text = getattr(block.resource if block.type == "resource" else block, "text", None)
    return text if isinstance(text, str) else None


def _named(block: Any) -> str:
    """Return a line that names what a policy cannot read."""
    if block.type == "resource_link":
        facts = [block.mime_type, None if block.size is None else f"{block.size} bytes"]
        about = ", ".join(fact for fact in (block.title or block.name, *facts) if fact)
        return " ".join(filter(None, (f"[{about}: {block.uri}]", block.description)))
    if block.type == "resource":
        resource = block.resource
        return f"[{resource.mime_type or 'binary'}, {_size(resource.blob)} bytes: {resource.uri}]"
    return f"[{block.mime_type}, {_size(block.data)} bytes]"


def _size(base64: str) -> int:
    """Return the number of bytes that a base64 text stands for.

    >>> _size("aGVsbG8="), _size("")
    (5, 0)
    """
    digits = sum(not character.isspace() for character in base64.rstrip().rstrip("="))
    return digits * 3 // 4
