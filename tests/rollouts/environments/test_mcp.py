"""What a policy reads of the results of a real MCP server, in every form that a result can have."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gspo_lightning.core.turn import ToolCall, Turn
from gspo_lightning.rollouts.environments import McpTool, ToolUse
from tests import ROOT

pytest.importorskip("mcp", reason="needs mcp")
SERVER = [sys.executable, str(ROOT / "tests" / "rollouts" / "environments" / "mcp_server.py")]


@pytest.fixture(scope="module")
def environment() -> Iterator[ToolUse]:
    """All tools of the server, which is started once."""
    environment = ToolUse({name: McpTool(name, SERVER) for name in ("answer", "rows", "silent", "table")})
    yield environment
    environment.release()


def read(environment: ToolUse, tool: str, **arguments: Any) -> str:
    """The message that a policy reads after a call."""

    async def work() -> Any:
        return await environment.act(Turn("", None, (ToolCall(tool, arguments, "c1"),)))

    messages, _, _ = asyncio.run(work())
    (message,) = messages
    return str(message["content"])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("texts", "a\né"),
        ("resource", "found:\nZürich, 東京"),
        ("binary", "[application/pdf, 5 bytes: file:///x.pdf]"),
        ("link", "[report, text/csv, 12 bytes: https://example.org/a] sales of Köln"),
        ("media", "[image/png, 5 bytes]\n[audio/wav, 3 bytes]"),
        ("structured", '{"city": "Zürich", "rows": []}'),
        ("structured_and_picture", '[image/png, 3 bytes]\n{"label": "größer"}'),
        ("structured_and_text", '{"n": 1}'),
        ("nothing", "[no content]"),
        ("empty_text", ""),
        ("refused", "error: Zürich, 東京"),
        ("refused_without_words", "error: the tool failed"),
        ("refused_in_structure", 'error: {"why": "größer: 3"}'),
    ],
)
def test_a_result_in_every_form(environment: ToolUse, form: str, text: str) -> None:
    assert read(environment, "answer", form=form) == text


def test_results_that_the_package_makes_of_values(environment: ToolUse) -> None:
    assert read(environment, "rows", count=2) == "ä\nä"
    assert json.loads(read(environment, "rows", count=0)) == {"result": []}
    assert json.loads(read(environment, "silent", why="")) == {"result": None}
    shown = read(environment, "table", key="größe")
    assert "größe" in shown
    assert json.loads(shown) == {"größe": "ß"}
