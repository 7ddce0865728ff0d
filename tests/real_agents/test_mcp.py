"""Tools of a real MCP server: over its standard input and over HTTP, after its death, and in a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.turn import ToolCall, Turn
from gspo_lightning.rollouts.environments import McpTool, ToolUse
from gspo_lightning.rollouts.environments.tools import ToolError
from tests import ROOT
from tests.real_agents.serving import on_free_port
from tests.runs import runs

PYTHON = os.environ.get("GSPO_AGENTS_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs the environment of the clients: make test-agents")
COMMAND = [PYTHON, str(ROOT / "tests" / "real_agents" / "mcp_server.py")]


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package mcp of that environment, behind all others."""
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    found = subprocess.run([PYTHON, "-c", where], capture_output=True, text=True, check=True)
    monkeypatch.setattr(sys, "path", [*sys.path, found.stdout.strip()])


@pytest.fixture
def url() -> Iterator[str]:
    """The server over HTTP."""
    with on_free_port(COMMAND) as port:
        yield f"http://127.0.0.1:{port}/mcp"


def check(tool: McpTool) -> None:
    function = tool.schema("times")["function"]
    assert (function["name"], function["description"]) == ("times", "Multiply two numbers.")
    assert set(function["parameters"]["properties"]) == {"a", "b"}
    environment = ToolUse({"times": tool})
    calls = (ToolCall("times", {"a": 6, "b": 7}, "c1"), ToolCall("times", {"a": "six"}, "c2"))
    messages, _, done = asyncio.run(_act(environment, Turn("", None, calls)))
    assert [m["tool_call_id"] for m in messages] == ["c1", "c2"]
    assert messages[0]["content"] == "42, says the server"
    assert messages[1]["content"].startswith("error: ")
    assert "validation error" in messages[1]["content"]
    assert not done


def test_half_a_character_costs_no_connection() -> None:
    """JSON of a policy may hold a lone surrogate, which no pipe takes; the connection is that of all conversations."""
    tool = McpTool("calculate", command=COMMAND)
    environment = ToolUse({"calculate": tool})
    link = tool._server._link
    calls = (ToolCall("calculate", {"expression": "\ud83d"}, "c1"), ToolCall("calculate", {"expression": "6*7"}, "c2"))
    messages, _, _ = asyncio.run(_act(environment, Turn("", None, calls)))
    assert messages[0]["content"].startswith("error: ")
    assert messages[1]["content"] == "42"
    assert tool._server._link is link
    tool.close()


async def _act(environment: ToolUse, turn: Turn) -> Any:
    return await environment.act(turn)


def test_a_tool_over_http_has_the_schema_of_its_server_and_answers(url: str) -> None:
    check(McpTool("multiply", url=url))


def test_tools_of_one_server_share_a_process_which_may_die() -> None:
    before = threading.enumerate()  # connections of other tests may be open
    tool, other = McpTool("multiply", COMMAND), McpTool("calculate", COMMAND)
    check(tool)
    assert other.takes_text
    assert asyncio.run(other.answer({"anything": "6*7"})) == "42"
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "mcp_server"], capture_output=True, text=True)
    (child,) = children.stdout.split()
    os.kill(int(child), signal.SIGKILL)
    with pytest.raises(InfrastructureError, match=r"Connection closed|is gone|has ended"):
        asyncio.run(other.answer({"expression": "1+1"}))
    assert asyncio.run(other.answer({"expression": "1+1"})) == "2"  # by another process
    with pytest.raises(ToolError):
        asyncio.run(other.answer({"expression": "1+"}))
    tool.close()
    assert not any(thread.name == "mcp-server" for thread in threading.enumerate() if thread not in before)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"tool": "divide", "command": COMMAND}, "'divide' is no tool of .*, which has multiply, calculate"),
        ({"tool": "multiply", "command": ["/bin/false"]}, r"McpTool\.command: /bin/false is no MCP server"),
        ({"tool": "multiply", "url": "http://127.0.0.1:9/mcp"}, r"McpTool\.url: http.* is no MCP server"),
        ({"tool": "multiply"}, "needs either a command or a url"),
        ({"tool": "multiply", "command": COMMAND, "timeout_s": 0.0}, "timeout_s"),
    ],
)
def test_unusable_mcp_tool_is_refused_before_anything_runs(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        McpTool(**arguments)


def test_a_policy_asks_the_tool_in_a_run(tmp_path: Path) -> None:
    tool = json.dumps({"class_path": "McpTool", "init_args": {"tool": "calculate", "command": COMMAND}})
    options = [f"--data.rollouts.environment.tools={{calculator: {tool}}}", "--data.record_rollouts=true"]
    options += ["--model.cold_start.steps=150", "--model.cold_start.demonstrations.size=2048"]
    run = runs.fit(
        tmp_path, *options, "--data.max_response_tokens=48", config=runs.ROOT / "configs" / "calculator.yaml"
    )
    rows = [json.loads(line) for line in (run / "rollouts" / "000000.jsonl").read_text().splitlines()]
    results = [m["content"] for row in rows for m in row["messages"] if m["role"] == "tool"]
    assert any(text[1:-1].lstrip("-").isdigit() for text in results), results
