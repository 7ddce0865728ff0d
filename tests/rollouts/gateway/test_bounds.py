"""What one client sends costs the others nothing: bounds in bytes, turns and open requests, checked before work."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest

from gspo_lightning.rollouts.gateway import bounds
from gspo_lightning.rollouts.gateway.server import Gateway
from gspo_lightning.rollouts.gateway.session import Session
from gspo_lightning.rollouts.gateway.trace import SampledTurn
from tests.rollouts.gateway.stubs import Bytes, Script
from tests.rollouts.gateway.test_server import ASK, RESPONSES, TOOLS, Client, run, served

USER = {"role": "user", "content": "6+7"}
LARGE = 1 << 20


def one(content: str = "6+7", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


async def refused_bodies(client: Client) -> None:
    """Large requests, each refused for another reason."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "x" * 8 * LARGE}}
    for i in range(3):
        await client.post("chat/completions", one("9" * 8 * LARGE), 400)
        await client.post("chat/completions", one(tools=[{"type": f"{i}", "junk": "x" * 8 * LARGE}]), 400)
        await client.post("chat/completions", {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}, 400)
        await client.post("responses", {"input": "6", "previous_response_id": "x" * 8 * LARGE}, 400)


@pytest.mark.thorough
def test_bodies_of_refused_requests_do_not_stay_in_memory() -> None:
    """Twelve of 8 MiB; the collector of cycles is off, since it may not run for long."""

    async def test(client: Client) -> None:
        await client.post("chat/completions", one("9" * 100_000), 400)  # what is imported and kept once
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            await refused_bodies(client)
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            gc.enable()
        assert kept < 4 * LARGE
        assert (client.session.open_bytes, client.session.open_requests) == (0, 0)

    run(test, Script("13"))


@pytest.mark.parametrize(
    "body",
    [
        one(tools=[{"type": "function", "function": {"name": "f", "description": "x" * LARGE}}]),
        one(tools=[{"type": "function", "function": {"name": f"f{i}"}} for i in range(20_000)]),
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": "x" * LARGE})}}
        ]}, {"role": "tool", "tool_call_id": "c", "content": "1"}]},
        {"messages": [{**USER, "name": "x" * LARGE}]},
    ],
    ids=["a long tool", "many tools", "a long call", "a long name"],
)  # fmt: skip
def test_all_that_is_rendered_counts_for_the_length(body: Any) -> None:
    async def test(client: Client) -> None:
        refused = await client.post("chat/completions", body, 400)
        assert refused["error"]["code"] == "context_length_exceeded"
        assert client.session.trace.nodes() == []

    run(test, Script("13"), longest=60_000)


def test_values_without_number_are_refused() -> None:
    lists = b"[" + b"[]," * 500_000 + b"[]]"
    arguments = json.dumps("[" + "0," * 300_000 + "0]").encode()
    call = b'{"id": "c", "type": "function", "function": {"name": "f", "arguments": ' + arguments + b"}}"

    async def test(client: Client) -> None:
        body = b'{"messages": [{"role": "user", "content": "6"}], "junk": ' + lists + b"}"
        assert "values" in (await client.post("chat/completions", body, 400))["error"]["message"]
        body = b'{"messages": [{"role": "assistant", "tool_calls": [' + call + b"]}]}"
        refused = await client.post("chat/completions", body, 400)
        assert refused["error"]["code"] == "context_length_exceeded"  # a text that is no list of arguments

    run(test, Script("13"))


def test_concurrent_requests_do_not_pass_the_limit_of_turns() -> None:
    script = Script("13", wait_s=0.2)

    async def test(client: Client) -> None:
        client.session.max_turns = 3
        asked = [client.http.post(f"{client.address.base_url}/chat/completions", json=ASK | {"max_tokens": i + 1},
                                  headers={"x-api-key": client.address.api_key}) for i in range(12)]  # fmt: skip
        statuses = [reply.status for reply in await asyncio.gather(*asked)]
        assert sorted(statuses) == [200] * 3 + [400] * 9
        assert len(client.session.trace.turns) == len(script.asked) == 3

    run(test, script)


def test_a_turn_that_failed_leaves_its_place_to_another_one() -> None:
    script = Script("13")
    script.failures = 1

    async def test(client: Client) -> None:
        client.session.max_turns = 1
        await client.post("chat/completions", ASK, 500)
        await client.post("chat/completions", ASK)
        await client.post("chat/completions", ASK, 400)

    run(test, script)


def test_a_key_is_of_one_request() -> None:
    async def test(client: Client) -> None:
        key = {"Idempotency-Key": "k"}
        first = await client.post("chat/completions", ASK, **key)
        refused = await client.post("chat/completions", one("another question"), 422, **key)
        assert refused["error"]["code"] == "idempotency_key_reused"
        refused = await client.post("completions", {"prompt": "6+7"}, 422, **key)
        again = await client.post("chat/completions", ASK, **key)
        assert again["id"] == first["id"]
        assert len(client.session.trace.turns) == 1

    run(test, Script("13"))


async def give_up(client: Client, body: Any, after_s: float = 0.1, route: str = "chat/completions") -> None:
    """Ask, and close the connection before the answer comes."""
    async with aiohttp.ClientSession() as http:
        headers = {"x-api-key": client.address.api_key}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(http.post(f"{client.address.base_url}/{route}", json=body, headers=headers), after_s)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("last", [True, False])
def test_an_answer_that_nobody_got_is_not_trained(last: bool, stream: bool) -> None:
    """The client gives up, asks again, and gets another answer: the reward belongs to that one alone."""

    async def test(client: Client) -> None:
        await give_up(client, {**ASK, "stream": stream})
        said = await client.post("chat/completions", ASK)
        talk = [*ASK["messages"], said["choices"][0]["message"], USER]  # type: ignore[misc]
        if not last:
            await client.post("chat/completions", {**ASK, "messages": talk})
        await asyncio.sleep(0.1)
        trace = client.session.trace
        assert len(trace.turns) == 2 if last else 3
        assert said["choices"][0]["message"]["content"] == "22"
        (row,) = trace.rows()
        assert [bytes(node.token_ids[:-1]).decode() for _, node in row.turns] == ["22"] if last else ["22", "333"]

    run(test, Script("1", "22", "333", wait_s=0.3))


@pytest.mark.parametrize("header", [{"x-stainless-retry-count": "1"}, {"Idempotency-Key": "k"}])
def test_an_answer_that_a_retry_got_is_trained(header: dict[str, str]) -> None:
    async def test(client: Client) -> None:
        async with aiohttp.ClientSession(headers={**header, "x-api-key": client.address.api_key}) as http:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(http.post(f"{client.address.base_url}/chat/completions", json=ASK), 0.1)
        await asyncio.sleep(0.4)
        assert client.session.trace.rows() == []
        data = json.dumps(ASK).encode()  # as aiohttp wrote it
        said = await client.post("chat/completions", data, **header)
        assert said["choices"][0]["message"]["content"] == "1"
        (row,) = client.session.trace.rows()
        assert len(row.turns) == 1

    run(test, Script("1", "22", wait_s=0.3))


def test_open_requests_and_their_bytes_have_a_bound() -> None:
    """A body that is promised and never sent holds its own session's bytes only."""

    async def test(client: Client) -> None:
        host, port = client.gateway.url.removeprefix("http://").split(":")
        promised = 15 * LARGE
        head = f"POST /s/s1/v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {client.address.api_key}\r\n"
        _, slow = await asyncio.open_connection(host, int(port))
        slow.write((head + f"Content-Length: {promised}\r\n\r\n").encode() + b'{"messages"')
        while client.session.open_bytes < promised:
            await asyncio.sleep(0.01)
        url, key = f"{client.address.base_url}/chat/completions", {"x-api-key": client.address.api_key}
        async with client.http.post(url, data=b" " * 2 * LARGE, headers=key) as reply:
            assert reply.status == 429
            assert "x-should-retry" not in reply.headers
        await client.post("chat/completions", ASK)
        other = Client(client.gateway, client.gateway.open_session("s2"), client.http)
        await other.post("chat/completions", one(" " * 100), 200)
        slow.close()
        while client.session.open_bytes:
            await asyncio.sleep(0.01)
        waiting = []
        for _ in range(bounds.OPEN_REQUESTS):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write((head + "Content-Length: 10\r\n\r\n").encode())
            waiting.append(writer)
        while client.session.open_requests < bounds.OPEN_REQUESTS:
            await asyncio.sleep(0.01)
        async with client.http.post(url, json=ASK, headers=key) as reply:
            assert reply.status == 429
        await other.post("chat/completions", one("7"))
        for writer in waiting:
            writer.close()

    run(test, Script("13"))


def test_a_body_without_a_length_is_counted_as_it_comes() -> None:
    async def parts(count: int) -> Any:
        for _ in range(count):
            yield b" " * 100_000

    async def test(client: Client) -> None:
        url, key = f"{client.address.base_url}/chat/completions", {"x-api-key": client.address.api_key}
        async with client.http.post(url, data=parts(11), headers=key) as reply:
            assert reply.status == 413
        await client.post("chat/completions", ASK)
        assert client.session.open_bytes == 0

    run(test, Script("13"), body_limit=1_000_000)


def test_stops_settings_and_rewards_have_a_bound() -> None:
    async def test(client: Client) -> None:
        for stop in (["x"] * 65, ["x" * 1025]):
            refused = await client.post("chat/completions", {**ASK, "stop": stop}, 400)
            assert "stop may have 64 texts" in refused["error"]["message"]
        await client.post("chat/completions", {**ASK, "logit_bias": {str(i): 1 for i in range(900)}})
        assert client.session.requested == [{"logit_bias": "too long"}]
        for parts in ({str(i): 1 for i in range(257)}, {"x" * 201: 1}):
            await client.post("reward", {"reward": 1, "parts": parts}, 400)
        await client.post("reward", {"reward": 1, "parts": {str(i): 1 for i in range(200)}})
        await client.post("reward", {"reward": 1, "parts": {f"more{i}": 1 for i in range(57)}}, 400)
        await client.post("reward", b'{"reward": 1, "junk": "' + b"x" * 70_000 + b'"}', 413)

    run(test, Script("13"))


def test_a_session_keeps_a_number_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_lightning.rollouts.gateway.session.SESSION_BYTES", 10_000)

    async def test(client: Client) -> None:
        for i in range(3):
            await client.post("chat/completions", one(f"{i}" * 3000))
        refused = await client.post("chat/completions", one("4" * 3000), 400)
        assert "with all that was said before" in refused["error"]["message"]

    run(test, Script("13"))


def test_echoes_of_equal_tools_are_kept_once() -> None:
    tools = [{"type": "function", "name": "f", "description": "x" * 20_000}]

    async def test(client: Client) -> None:
        kept = []
        for i in range(4):
            answer = await client.post("responses", {**RESPONSES, "input": f"{i}", "tools": tools, "instructions": "i"})
            assert answer["tools"] == tools
            kept.append(client.session.kept)
        assert kept[0] > 40_000  # in the tree, and in the answers
        assert kept[3] - kept[2] < 21_000  # each conversation begins anew

    run(test, Script("13"))


@contextmanager
def counted_on(thread: threading.Thread, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of all texts that a thread parses as JSON, writes as JSON or renders."""
    sizes: list[int] = []

    def noting(function: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            if threading.current_thread() is thread:
                sizes.append(size(made, *args))
            return made

        return call

    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", noting(json.loads, lambda made, text, *_: len(text)))
        patch.setattr(json, "dumps", noting(json.dumps, lambda made, *_: len(made)))
        patch.setattr(bounds, "weight", noting(bounds.weight, lambda made, *_: made))
        patch.setattr(Bytes, "opening", noting(Bytes.opening, lambda made, *_: len(made)))
        patch.setattr(Bytes, "reply", noting(Bytes.reply, lambda made, *_: len(made)))
        patch.setattr(Bytes, "parse", noting(Bytes.parse, lambda made, *args: len(args[1])))
        yield sizes


class Instant(Script):
    """Says 13 at once, whatever the context is."""

    async def sample(self, session: Session, context: tuple[int, ...], *_: Any) -> SampledTurn:
        return SampledTurn((49, 51, Bytes.END), (-1.0, -1.0, -1.0))


@pytest.mark.thorough
def test_nothing_above_64_kib_is_handled_on_the_loop_between_two_turns_of_another_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One session sends a megabyte in every field, in every dialect; another one takes its turns meanwhile."""
    text = "x" * LARGE
    tool = {"type": "function", "function": {"name": "f", "description": text}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": text})}}
    result = {"role": "tool", "tool_call_id": "c", "content": "1"}
    bodies: list[tuple[str, Any]] = [
        ("chat/completions", one(text, return_token_ids=True)),
        ("chat/completions", one(tools=[tool], stream=True, return_token_ids=True)),
        ("chat/completions", {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result]}),
        ("responses", {"input": text, "tools": [{"type": "function", "name": "f", "description": text}]}),
        ("messages", {"max_tokens": 9, "messages": [USER], "tools": [{"name": "f", "description": text}]}),
        ("messages/count_tokens", {"messages": [USER], "system": text}),
        ("completions", {"prompt": text}),
    ]

    async def main() -> None:
        async with served(Instant(), longest=8 * LARGE) as client:
            quiet = Client(client.gateway, client.gateway.open_session("quiet"), client.http)
            await quiet.post("chat/completions", ASK)
            raw = [(route, json.dumps(body).encode()) for route, body in bodies]
            with counted_on(threading.current_thread(), monkeypatch) as sizes:
                url, key = client.address.base_url, {"x-api-key": client.address.api_key}
                asked = [client.http.post(f"{url}/{route}", data=data, headers=key) for route, data in raw]
                large = asyncio.gather(*map(_read, asked))
                turns = 0
                while not large.done():
                    reply = await client.http.post(
                        f"{quiet.address.base_url}/chat/completions", data=json.dumps(one(f"{turns}")),
                        headers={"x-api-key": quiet.address.api_key},
                    )  # fmt: skip
                    assert reply.status == 200
                    turns += 1
                    quiet.session.max_turns += 1
                assert await large == [200] * len(bodies)
            assert turns > 2
            assert sizes
            assert max(sizes) <= bounds.LOOP_BYTES

    asyncio.run(main())


async def _read(asked: Awaitable[aiohttp.ClientResponse]) -> int:
    reply = await asked
    await reply.read()
    return reply.status


HOSTILE: list[tuple[str, bytes]] = [
    ("chat/completions", b"{"),
    ("chat/completions", b"[" * 300_000),
    ("chat/completions", b"{" + b'"a":{' * 20_000),
    ("chat/completions", b"[" + b"[]," * 700_000 + b"[]]"),
    ("chat/completions", json.dumps(one("9" * 3 * LARGE)).encode()),
    ("chat/completions", json.dumps(one(tools=TOOLS * 20_000)).encode()),
    ("chat/completions", json.dumps(one(stop=["x" * 100] * 10_000)).encode()),
    ("responses", json.dumps({"input": [{"type": "function_call", "arguments": "[" * LARGE}] * 2}).encode()),
    ("messages", json.dumps({"messages": [USER], "max_tokens": 10**90}).encode()),
    ("completions", json.dumps({"prompt": "\ud83d" * 1000}).encode()),
    ("reward", b'{"reward": 1e999}'),
    ("reward", json.dumps({"parts": {str(i): i for i in range(5000)}}).encode()),
    ("nothing", b"x" * 100_000),
]


@pytest.mark.thorough
@pytest.mark.parametrize("sessions", [30, 200])
def test_sessions_with_one_hostile_among_them_lose_nothing(sessions: int) -> None:
    """Every other session gets all its turns, in one row, with nothing but its own texts in it."""
    rounds = 2

    async def main() -> None:
        gateway = Gateway(lambda name: Session(name, Bytes(), Script("13", wait_s=0.01), 60_000, max_turns=12))
        await gateway.start()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            bad = Client(gateway, gateway.open_session("bad"), http)
            stop = asyncio.Event()
            attacks = [asyncio.ensure_future(_attack(bad, stop, start)) for start in range(8)]
            good = [Client(gateway, gateway.open_session(f"good{i}"), http) for i in range(sessions - 1)]
            await asyncio.gather(*(_talk(client, rounds) for client in good))
            stop.set()
            sent = sum(await asyncio.gather(*attacks))
        assert sent > len(HOSTILE)
        for client in good:
            (row,) = client.session.trace.rows()
            assert len(row.turns) == rounds
            assert client.session.error is None
            text = bytes(i for i in (*row.context, *row.token_ids.tolist()) if i < 256).decode()
            assert text == "".join(f"{client.session.name} {i}13" for i in range(rounds))
        assert bad.session.error is None
        assert len(bad.session.trace.turns) <= 12
        await gateway.stop()

    asyncio.run(main())


async def _talk(client: Client, rounds: int) -> None:
    talk: list[Any] = []
    for i in range(rounds):
        talk.append({"role": "user", "content": f"{client.session.name} {i}"})
        talk.append((await client.post("chat/completions", {"messages": talk}))["choices"][0]["message"])
    await client.post("reward", {"reward": 1.0})


async def _attack(client: Client, stop: asyncio.Event, start: int) -> int:
    sent = 0
    while not stop.is_set() or sent < 2:
        route, data = HOSTILE[(start + sent) % len(HOSTILE)]
        headers = {"Authorization": f"Bearer {client.address.api_key}", "x-stainless-retry-count": str(sent % 2)}
        async with client.http.post(f"{client.address.base_url}/{route}", data=data, headers=headers) as reply:
            assert reply.status < 500, await reply.text()
            await reply.read()
        sent += 1
    return sent
