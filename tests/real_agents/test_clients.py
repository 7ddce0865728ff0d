"""What real clients do to a history: their token trees, from the gateway in this process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.rollouts.gateway.server import Gateway, described
from gspo_lightning.rollouts.gateway.session import Session
from tests import ROOT
from tests.rollouts.gateway.stubs import Bytes, Script

PYTHON = os.environ.get("GSPO_AGENTS_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="needs the environment of the clients: make test-agents")
CALL = '  hmm\n\n<tool_call>{"name": "multiply", "arguments": {"b": 7, "a": 6}}</tool_call>'
ANSWER = "It is 42."
FINAL = '<tool_call>{"name": "final_answer", "arguments": {"answer": "42"}}</tool_call>'
KEEP = ["openai_chat", "openai_stream", "openai_responses", "anthropic_messages", "anthropic_stream", "openai_agents",
        "openai_agents_chat", "langgraph", "pydantic_ai"]  # fmt: skip


def play(client: str, folder: Path, *texts: str) -> tuple[str, dict[str, Any]]:
    """The answer of a client in a process of its own, and the tree of its session."""

    async def main() -> tuple[str, dict[str, Any]]:
        gateway = Gateway(lambda name: Session(name, Bytes(), Script(*texts), 100_000))
        await gateway.start()
        try:
            session = gateway.open_session("s")
            own = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "HOME": str(folder), "no_proxy": "*"}
            kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
            process = await asyncio.create_subprocess_exec(
                PYTHON, str(ROOT / "tests" / "real_agents" / "clients.py"), client, cwd=folder,
                env={**kept, **own, **gateway.address(session).environment()},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            out, err = await asyncio.wait_for(process.communicate(), 120)
            assert process.returncode == 0, err.decode()[-3000:]
            return json.loads(out.decode().splitlines()[-1])["answer"], described(session)
        finally:
            await gateway.stop()

    return asyncio.run(main())


@pytest.mark.parametrize("thought", ["", "<think>six times seven</think>"])
@pytest.mark.parametrize("client", KEEP)
def test_a_client_keeps_its_history(client: str, thought: str, tmp_path: Path) -> None:
    answer, tree = play(client, tmp_path, thought + CALL, ANSWER)
    assert answer == ANSWER
    assert tree["reasons"] == {"first": 1}
    (row,) = tree["rows"]
    assert [node["sampled"] for node in tree["nodes"]] == [False, True, False, True]
    assert row["context"] + row["token_ids"] == [i for node in tree["nodes"] for i in node["token_ids"]]
    assert bytes(i for i in tree["nodes"][1]["token_ids"] if i < 256).decode() == thought + CALL
    assert sum(row["mask"]) == len((thought + CALL + ANSWER).encode()) + 2


HALF = '<tool_call>{"name": "multiply", "arguments": {"b": 7, "a": 6, "why": "\\ud83d"}}</tool_call>'


@pytest.mark.parametrize(
    "client", [name for name in KEEP if name.startswith(("openai_agents", "langgraph", "pydantic"))]
)
def test_half_a_character_goes_to_a_client_and_comes_back(client: str, tmp_path: Path) -> None:
    """The policy's tokens stay; what the client gets is the escape, which it sends back as it is."""
    answer, tree = play(client, tmp_path, HALF, ANSWER)
    assert answer == ANSWER
    assert bytes(i for i in tree["nodes"][1]["token_ids"] if i < 256).decode() == HALF
    (call,) = tree["nodes"][1]["messages"][0]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["why"] == r"\ud83d"
    assert [node["sampled"] for node in tree["nodes"]] == [False, True, False, True]
    assert tree["reasons"] == {"first": 1}


def test_tools_of_an_mcp_server_are_offered_and_called(tmp_path: Path) -> None:
    answer, tree = play("openai_agents_mcp", tmp_path, CALL, ANSWER)
    assert answer == ANSWER
    assert (tree["reasons"], len(tree["rows"])) == ({"first": 1}, 1)
    (result,) = tree["nodes"][2]["messages"]
    assert result["role"] == "tool"
    assert "42, says the server" in str(result["content"])


def test_a_client_that_rewrites_calls_as_text_is_a_fork_at_every_turn(tmp_path: Path) -> None:
    answer, tree = play("smolagents", tmp_path, CALL, FINAL)
    assert answer == "42"
    assert tree["reasons"] == {"first": 1, "answer": 1}
    assert len(tree["rows"]) == 2
    assert sum(sum(row["mask"]) for row in tree["rows"]) == len((CALL + FINAL).encode()) + 2
    assert tree["counts"]["ignored/tool_choice"] == 2
