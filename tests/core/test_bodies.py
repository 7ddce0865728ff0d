"""Servers whose replies are bombs, endless, deep or in other encodings: every client reads them within limits."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.bodies import BASE, Body, BodyError
from gspo_lightning.data.prompts.pictures import reading
from gspo_lightning.rewards.judge.server import ChatServer, NoReplyError
from gspo_lightning.rollouts.serving.client import Client, ServerError
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from tests import ROOT
from tests.support.hostile_server import GOOD, HARM, HostileServer
from tools.rooms import PACKAGE, files, imports

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}


async def by_client(url: str) -> Any:
    client = Client(Endpoint(url), 20.0, 20.0)
    try:
        return (await client.chat(ASKED))["choices"][0]
    finally:
        await client.close()


async def by_judge(url: str) -> Any:
    async with ChatServer(url, concurrency=1, timeout_s=20.0, retries=0, backoff_s=0.0) as server:
        return await server.ask(ASKED)


CLIENTS: dict[str, tuple[Callable[[str], Any], type[Exception]]] = {
    "inference server": (by_client, ServerError),
    "judge": (by_judge, NoReplyError),
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("harm", HARM)
def test_a_harmful_reply_is_the_servers_failure(client: str, harm: str) -> None:
    ask, failure = CLIENTS[client]
    with HostileServer.of(harm) as server, pytest.raises(failure) as found:
        asyncio.run(asyncio.wait_for(ask(server.url), 60))
    assert HARM[harm][-1] in str(found.value)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", GOOD)
def test_a_reply_in_any_encoding_that_was_asked_for_is_read(client: str, kind: str) -> None:
    headers, pieces = GOOD[kind]
    with HostileServer(lambda: pieces, headers) as server:
        assert asyncio.run(CLIENTS[client][0](server.url))["message"]["content"] == "Hi"


@pytest.mark.parametrize(("status", "said"), [(400, "refuses"), (500, "status 500")])
def test_of_an_endless_error_the_beginning_is_shown(status: int, said: str) -> None:
    async def ask(url: str) -> str:
        client = Client(Endpoint(url), 20.0, 20.0)
        try:
            return await client.ailment()
        finally:
            await client.close()

    with HostileServer(lambda: iter(lambda: b"no room " * 999, b""), {}, status) as server:
        told = asyncio.run(ask(server.url))
    assert said in told
    assert "no room no room" in told
    assert len(told) < 500


def test_a_body_of_the_limit_is_read_and_one_byte_more_is_not() -> None:
    async def ask(url: str) -> Any:
        client = Client(Endpoint(url), 20.0, 20.0)
        try:
            return await client._call("GET", "/whatever")
        finally:
            await client.close()

    text = json.dumps("x" * (BASE - 2)).encode()
    with HostileServer(lambda: [text], {}) as server:
        assert len(asyncio.run(ask(server.url))) == BASE - 2
    with HostileServer(lambda: [text, b" "], {}) as server, pytest.raises(ServerError, match="more than the 4,194,304"):
        asyncio.run(ask(server.url))


def test_the_deepest_json_is_read_whatever_its_texts_hold() -> None:
    text = json.dumps(["[" * 500 + '\\"{'])
    assert Body((b"[" * 99 + text.encode() + b"]" * 99), None).json()
    with pytest.raises(BodyError, match="100 levels"):
        Body((b"[" * 100 + text.encode() + b"]" * 100), None).json()


# in bounded processes, through the front door --------------------------------------------------------------------

CHILD = """
import resource, sys
from gspo_lightning.cli import main

if sys.argv[1] == "evaluate":
    from gspo_lightning.commands.evaluate import command, served
    served._FIRST_PAUSE_S = 0.01
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
code = main(sys.argv[1:])
after = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print("MEMORY", (after[0] - before) // 1024, after[1] // 1024)
sys.exit(code)
"""


def bounded(*arguments: object) -> tuple[int, str, list[int]]:
    """Exit code, output, and MiB: by which the process has grown, and which a process that it has started had."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("MEMORY")] or [done.stderr]
    return done.returncode, done.stdout + done.stderr, [int(word) for word in line.split()[1:]]


SUITE = """\
about: one question
data: {class_path: ChainTask, init_args: {split: held_out, size: 1}}
reward: {class_path: ExactMatch}
sampling: {temperature: 0.0, top_p: 1.0, max_response_tokens: 32}
metrics: [avg]
"""


@pytest.mark.thorough
def test_a_bomb_ends_an_evaluation_and_not_the_machine(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(SUITE)
    with HostileServer.of("gzip bomb") as server:
        options = (f"--server={server.url}", f"--output={tmp_path / 'out'}", "--workers=1")
        code, said, (grown, _) = bounded("evaluate", f"--suite={tmp_path / 'one.yaml'}", *options)
        assert code == 1
        assert f"the server {server.url} " in said
        assert "more than the 4,196,352 bytes" in said
        assert "see that an inference server answers at this address" in said
    assert grown < 150


def test_a_bomb_leaves_a_judges_sample_without_a_reward(tmp_path: Path) -> None:
    answers, scores = tmp_path / "answers.jsonl", tmp_path / "scores.jsonl"
    answers.write_text(json.dumps({"id": 1, "prompt": "Hi", "completion": "Hi", "answer": ""}) + "\n")
    with HostileServer.of("gzip bomb") as server:
        judge = {"url": server.url, "model": "j", "rubric": {"right": "Is it?"}, "retries": 0}
        options = ("--reward", f"LLMJudge:{json.dumps(judge)}", "--input", answers, "--output", scores, "--workers=1")
        _, said, (_, most) = bounded("score", *options)
    score = json.loads(scores.read_text())
    assert (score["reward"], score["status"]) == (None, "missing"), said
    assert "more than the 4,194,304 bytes" in score["detail"]
    assert most < 300


# pictures --------------------------------------------------------------------------------------------------------


def test_a_picture_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 1 << 20)
    with HostileServer(lambda: iter(lambda: b"x" * 9999, b""), {}) as server:
        address = f"{server.url}/a.png"
        with pytest.raises(reading.BadPictureError, match="more than 1 MiB"):
            reading.picture_file(address, urls=True)
        monkeypatch.setattr(reading, "_DEADLINE_S", 0.0)
        with pytest.raises(reading.BadPictureError, match="within 0 s"):
            reading.picture_file(address, urls=True)


# no client beside these ------------------------------------------------------------------------------------------

CLIENTS_OF_HTTP = {
    "core/bodies.py": "reads them",
    "rollouts/serving/client.py": "inference servers: rollouts, teachers, gspo evaluate --server, Inspect",
    "rewards/judge/server.py": "judges",
    "rewards/judge/judge.py": "imports aiohttp before the first request",
    "data/prompts/pictures/reading.py": "pictures by address, tested above",
    "rollouts/agents/http_agent.py": "services that run an agent; tests/rollouts/agents",
    "rollouts/environments/open_env.py": "an uncompressed WebSocket, whose messages have a limit; tests/real_agents",
    "rollouts/gateway/replies.py": "answers of that server",
    "rollouts/gateway/server.py": "a server; it sends no request",
    "report/view/server.py": "a server; it sends no request",
}
_OF_HTTP = {"aiohttp", "urllib.request", "http.client", "requests", "httpx", "urllib3", "openai"}


def test_whatever_speaks_http_is_known_and_leaves_the_unpacking_to_bodies() -> None:
    found = set()
    for file in files():
        source = file.read_text(encoding="utf-8")
        if _OF_HTTP & {module for _, module, _ in imports(source)}:
            found.add(str(file.relative_to(PACKAGE)))
            assert source.count("ClientSession(") <= source.count("auto_decompress=False"), file
            assert not re.search(r"await reply\.(text|json|read)\(", source), f"{file}: use read_body"
    assert found == set(CLIENTS_OF_HTTP), (
        "a new client of HTTP: read replies by gspo_lightning.core.bodies, and test it here"
    )
