"""Half a character (a lone surrogate) that a policy samples: its tokens are trained, its text is escaped everywhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gspo_lightning.cli import main
from gspo_lightning.commands.evaluate.answers import read_completions
from gspo_lightning.core.bodies import BASE, read_body
from gspo_lightning.core.turn import ToolCall, Turn
from gspo_lightning.core.types import Prompt
from gspo_lightning.rollouts.environments import OpenEnvEnvironment, PythonTool, ToolUse
from gspo_lightning.rollouts.environments.conversation import Conversation
from tests.runs import runs
from tests.runs.half_characters import HALVES, save_policy

PLUGIN = """
import json

import aiohttp

from gspo_lightning.rewards import Reward
from gspo_lightning.rollouts.environments import Tool

FUNCTION = {"name": "echo", "description": "Echo.", "parameters": {
    "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}


class Quoting(Tool):
    def call(self, text: str) -> str:
        '''Quote a text.'''
        text.encode()  # as any file, socket or database would
        return f"{text!r} {chr(0xD83D)}"


class OddCharacters(Reward):
    def score(self, sample):
        return float(len(sample.completion) % 2)


async def solve(record, address):
    \"\"\"Two turns in each dialect, with and without a stream; what comes back goes back as it came.\"\"\"
    kind = int(record["rollout"].rpartition("/")[2]) % 4
    headers = {"Authorization": f"Bearer {address.api_key}"}
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as http:

        async def post(route, body):
            async with http.post(f"{address.base_url}/{route}", data=json.dumps(body).encode()) as reply:
                text = await reply.text()
            text.encode()
            return text

        ask = {"role": "user", "content": record["prompt"]}
        if kind < 2:  # chat
            tools = [{"type": "function", "function": FUNCTION}]
            text = await post("chat/completions", {"messages": [ask], "tools": tools, "stream": kind == 1})
            if kind == 1:
                first = json.loads(text.splitlines()[0].removeprefix("data: "))["choices"][0]["delta"]
            else:
                first = json.loads(text)["choices"][0]["message"]
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "heard " + call["function"]["arguments"]}
                       for call in first.get("tool_calls", [])]
            if results:
                await post("chat/completions", {"messages": [ask, first, *results], "tools": tools})
        elif kind == 2:
            tools = [{"type": "function", **FUNCTION}]
            first = json.loads(await post("responses", {"input": [ask], "tools": tools}))
            results = [{"type": "function_call_output", "call_id": item["call_id"], "output": chr(0xD83D)}
                       for item in first["output"] if item["type"] == "function_call"]
            if results:
                await post("responses", {"input": [ask, *first["output"], *results], "tools": tools, "stream": True})
        else:
            tools = [{"name": "echo", "description": "Echo.", "input_schema": FUNCTION["parameters"]}]
            body = {"max_tokens": 50, "tools": tools, "messages": [ask]}
            first = json.loads(await post("messages", body))
            results = [{"type": "tool_result", "tool_use_id": block["id"], "content": block["input"]["text"]}
                       for block in first["content"] if block["type"] == "tool_use"]
            if results:
                talk = [ask, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": results}]
                await post("messages", {**body, "messages": talk, "stream": True})
    return {"reward": float(bool(results)), "parts": {"half " + chr(0xDE00): 1.0}}
"""
TRAIN = [
    "--trainer.max_epochs=1", "--data.record_rollouts=true", "--data.max_response_tokens=600",
    "--data.max_prompt_tokens=300", "--data.val=null", "--trainer.check_val_every_n_epoch=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("halves")
    plugin = folder / "halving.py"
    plugin.write_text(PLUGIN)
    policy = save_policy(folder / "policy")
    return [f"--model.name_or_path={policy}", "--model.cold_start=null", f"--plugins=[{plugin}]", *TRAIN]


def records(run: Path) -> list[dict[str, Any]]:
    """Recorded rollouts, from a file that is UTF-8."""
    lines = [
        line for file in sorted((run / "rollouts").glob("*.jsonl")) for line in file.read_text("utf-8").split("\n")
    ]
    return [json.loads(line) for line in lines if line]


def check(run: Path, said: str) -> None:
    """Tokens as they were sampled, texts escaped, and every reader of the run reads it."""
    rows = records(run)
    calling = [row for row in rows if said in json.dumps(row["messages"])]
    assert calling
    for row in calling:
        assert any(half in row["completion"] for half in HALVES)  # decoded from the tokens
        json.dumps(row, ensure_ascii=False).encode()  # no half of a character is left
    out = run / "page.html"
    assert main(["view", str(run), f"--output={out}"]) == 0
    assert out.read_text("utf-8")
    assert main(["report", str(run)]) == 0


@pytest.mark.thorough
def test_a_run_with_a_tool_trains_on_them(options: list[str], tmp_path: Path) -> None:
    tools = '{"class_path": "ToolUse", "init_args": {"tools": {"echo": "Quoting"}}}'
    source = {"class_path": "EnvironmentRollouts", "init_args": {"environment": json.loads(tools), "max_turns": 2}}
    rewards = '--data.rewards={"odd": "OddCharacters"}'
    run = runs.fit(tmp_path / "tool", *options, f"--data.rollouts={json.dumps(source)}", rewards)
    check(run, r"'\\\\ud83d")


@pytest.mark.thorough
def test_a_run_with_agents_in_every_dialect_trains_on_them(options: list[str], tmp_path: Path) -> None:
    agent = {"class_path": "PythonAgent", "init_args": {"function": "halving.solve"}}
    source = {"class_path": "AgentRollouts", "init_args": {"agent": agent, "max_missing_rate": 0.0}}
    run = runs.fit(
        tmp_path / "agent", *options, f"--data.rollouts={json.dumps(source)}",
        '--data.rewards={"solved": "EnvironmentReward"}',
    )  # fmt: skip
    check(run, "ud83d")
    assert not [row["lost"] for row in records(run) if row.get("lost")]
    tree = [node for row in records(run) for node in row["tree"]]
    assert [node for node in tree if node["parent"] is not None and "heard" in json.dumps(node["messages"])]
    again = {"class_path": "Recorded", "init_args": {"path": str(run / "rollouts"), "rewards": "recorded"}}
    replayed = runs.fit(tmp_path / "replayed", *options, f"--data.rollouts={json.dumps(again)}")
    ids, replayed_ids = ([row["completion_ids"] for row in records(one)] for one in (run, replayed))
    assert replayed_ids == ids


def test_a_program_of_the_sandbox_gets_the_escape() -> None:
    """``print("\\ud83d")`` would fail in Python, and the error is what the policy reads."""
    environment = ToolUse({"python": PythonTool()})
    calls = tuple(ToolCall("python", {"code": code}, "c") for code in ("print(len('a\ud83d'))", r"print('\ud83d')"))
    messages, _, _ = asyncio.run(_step(environment, Turn("", None, calls)))
    assert messages[0]["content"] == "2"
    assert "UnicodeEncodeError" in messages[1]["content"]


async def _step(environment: ToolUse, turn: Turn) -> Any:
    return await environment.act(turn)


def test_an_observation_and_a_judge_may_say_half_a_character() -> None:
    """Replies of servers are JSON, too: over HTTP, and over the WebSocket of OpenEnv."""

    async def socket(request: web.Request) -> web.StreamResponse:
        out = web.WebSocketResponse()
        await out.prepare(request)
        async for message in out:
            kind = json.loads(message.data)["type"]
            if kind == "close":
                break
            data = {"observation": {"message": f"{kind} \ud83d"}, "reward": 0.5, "done": kind == "step"}
            await out.send_str(json.dumps({"type": "observation", "data": data}))
        return out

    async def said(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"text": "\\ud83d"}', content_type="application/json")

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/ws", socket)
        app.router.add_get("/said", said)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = "http://127.0.0.1:{1}".format(*runner.addresses[0])
        talk = Conversation(OpenEnvEnvironment(url, opens=True), Prompt(0, "1", (1,)), 0, 10.0)
        await talk.begin()
        assert talk.opening is not None
        talk.said.append("go")
        await talk.answer()
        await talk.close()
        assert [talk.opening[0]["content"], talk.steps[0][0][0]["content"]] == [r"reset \ud83d", r"step \ud83d"]
        async with aiohttp.ClientSession(auto_decompress=False) as http, http.get(f"{url}/said") as reply:
            assert (await read_body(reply, BASE)).json() == {"text": r"\ud83d"}
        await runner.cleanup()

    asyncio.run(main())


def test_recorded_answers_are_judged_with_the_escape(tmp_path: Path) -> None:
    """Answers that another program wrote, for ``gspo evaluate --completions``."""
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"id": "1", "completion": "#7 \ud83d"}) + "\n")
    (answer,) = read_completions(file, "suite", {"1"}, several=False)
    assert answer.completion == r"#7 \ud83d"
