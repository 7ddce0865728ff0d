"""The gateway's routes over HTTP: answers in three dialects, streams, retries, limits and mistakes of clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gspo_lightning.rollouts.gateway import chat, replies
from gspo_lightning.rollouts.gateway.server import Gateway, described
from gspo_lightning.rollouts.gateway.session import Session
from tests.rollouts.gateway.stubs import Bytes, Script

CALL = 'So <tool_call>{"name": "add", "arguments": {"b": 7, "a": 6}}</tool_call>'
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
ASK = {"model": "m", "messages": [{"role": "user", "content": "6+7"}], "tools": TOOLS}


class Client:
    """A raw client of one session."""

    def __init__(self, gateway: Gateway, session: Session, http: aiohttp.ClientSession) -> None:
        self.gateway, self.session, self.http = gateway, session, http
        self.address = gateway.address(session)

    async def post(self, route: str, body: Any, status: int = 200, **headers: str) -> Any:
        headers = {"Authorization": f"Bearer {self.address.api_key}"} | headers
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = route if route.startswith("http") else f"{self.address.base_url}/{route}"
        async with self.http.post(url, data=data, headers=headers) as reply:
            text = await reply.text()
            assert reply.status == status, text
            if status >= 400:
                assert reply.headers.get("x-should-retry") == "false" or status == 500
            return json.loads(text) if reply.content_type == "application/json" else text


@asynccontextmanager
async def served(script: Script, longest: int = 4096, **options: Any) -> AsyncIterator[Client]:
    gateway = Gateway(lambda name: Session(name, Bytes(), script, longest), **options)
    await gateway.start()
    connector = aiohttp.UnixConnector(gateway.socket) if gateway.socket else None
    try:
        async with aiohttp.ClientSession(connector=connector) as http:
            yield Client(gateway, gateway.open_session("s1"), http)
    finally:
        await gateway.stop()


def run(test: Callable[[Client], Awaitable[None]], script: Script, longest: int = 4096, **options: Any) -> None:
    async def main() -> None:
        async with served(script, longest, **options) as client:
            await test(client)

    asyncio.run(main())


def test_two_turns_of_a_chat_are_the_tokens_that_were_served() -> None:
    script = Script(CALL, "13")

    async def test(client: Client) -> None:
        first = await client.post("chat/completions", {**ASK, "return_token_ids": True, "temperature": 0.3})
        (choice,) = first["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": 6, "b": 7}
        assert choice["message"]["content"] == "So "
        ids = first["prompt_token_ids"] + choice["token_ids"]
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == first["usage"]["completion_tokens"]
        assert (first["policy_version"], first["usage"]["prompt_tokens"]) == (5, len(first["prompt_token_ids"]))
        result = {"role": "tool", "tool_call_id": call["id"], "content": "13"}
        messages = [*ASK["messages"], choice["message"], result]  # type: ignore[misc]
        second = await client.post("chat/completions", {**ASK, "messages": messages, "return_token_ids": True})
        assert second["prompt_token_ids"][: len(ids)] == ids
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids)
        (row,) = client.session.trace.rows()
        whole = second["prompt_token_ids"] + second["choices"][0]["token_ids"]
        assert [*row.context, *row.token_ids.tolist()] == whole
        assert described(client.session)["requested_sampling"] == [{"temperature": 0.3}, {}]

    run(test, script)
    assert len({place for *_, place in script.asked}) == 2  # every request draws its own random numbers


def test_every_dialect_continues_its_own_history() -> None:
    def completions(turn: Any) -> Any:
        said = turn["choices"][0]["message"]
        call = said["tool_calls"][0]["id"]
        return {**ASK, "messages": [*ASK["messages"], said, {"role": "tool", "tool_call_id": call, "content": "13"}]}  # type: ignore[misc]

    def responses(turn: Any) -> Any:
        call = next(item for item in turn["output"] if item["type"] == "function_call")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "13"}
        return {**RESPONSES, "input": [{"role": "user", "content": "6+7"}, *turn["output"], result]}

    def previous(turn: Any) -> Any:
        return {**RESPONSES, "input": responses(turn)["input"][-1:], "previous_response_id": turn["id"]}

    def messages(turn: Any) -> Any:
        use = next(block for block in turn["content"] if block["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "13"}]}
        talk = [{"role": "user", "content": "6+7"}, {"role": "assistant", "content": turn["content"]}]
        return {**MESSAGES, "messages": [*talk, {"role": "user", "content": [result]}]}

    trees: list[Any] = []
    for route, ask, after in (
        ("chat/completions", ASK, completions), ("responses", RESPONSES, responses), ("responses", RESPONSES, previous),
        ("messages", MESSAGES, messages),
    ):  # fmt: skip

        async def test(client: Client, route: str = route, ask: Any = ask, after: Any = after) -> None:
            await client.post(route, after(await client.post(route, ask)))
            assert client.session.trace.reasons == {"first": 1}
            (row,) = client.session.trace.rows()
            assert len(row.turns) == 2
            trees.append((*row.context, *row.token_ids.tolist()))

        run(test, Script(f"<think>hm</think>{CALL}", "13"))
    assert len(set(trees)) == 1


RESPONSES = {"model": "m", "input": "6+7", "tools": [{"type": "function", **FUNCTION}]}
MESSAGES = {
    "model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "6+7"}],
    "tools": [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}],
}  # fmt: skip


def frames(text: str) -> list[Any]:
    """Data of a stream's events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_streams_say_what_the_whole_answer_says() -> None:
    async def test(client: Client) -> None:
        usage = {"stream_options": {"include_usage": True}}
        text = await client.post("chat/completions", {**ASK, "stream": True, **usage})
        said, last, usage = frames(text)
        assert text.endswith("data: [DONE]\n\n")
        assert said["choices"][0]["delta"]["content"] == "So "
        assert said["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
        assert last["choices"][0]["finish_reason"] == "tool_calls"
        assert usage["usage"]["completion_tokens"] == len(CALL) + 1
        events = frames(await client.post("responses", {**RESPONSES, "stream": True}))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        kinds = [event["type"] for event in events]
        assert kinds[0] == "response.created"
        assert {"response.output_text.delta", "response.function_call_arguments.done"} <= set(kinds)
        assert [item["type"] for item in events[-1]["response"]["output"]] == ["message", "function_call"]
        events = frames(await client.post("messages", {**MESSAGES, "stream": True}))
        assert [event["type"] for event in events][:: len(events) - 1] == ["message_start", "message_stop"]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert deltas[0]["text"] == "So "
        assert json.loads(deltas[1]["partial_json"]) == {"a": 6, "b": 7}
        assert len(client.session.trace.turns) == 3

    run(test, Script(CALL))


def test_a_slow_stream_gets_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "KEEP_ALIVE_S", 0.02)

    async def test(client: Client) -> None:
        text = await client.post("chat/completions", {**ASK, "stream": True})
        assert ": keep-alive" in text
        assert frames(text)[0]["choices"][0]["delta"]["content"] == "13"

    run(test, Script("13", wait_s=0.1))


def test_a_retry_replays_the_recorded_answer_and_joins_the_one_in_flight() -> None:
    script = Script("1", "2", "3", wait_s=0.05)

    async def test(client: Client) -> None:
        retry = {"x-stainless-retry-count": "1"}
        asked = client.post("chat/completions", ASK), client.post("chat/completions", ASK, **retry)
        one, two = await asyncio.gather(*asked)
        three = await client.post("chat/completions", ASK, **retry)
        assert one["choices"] == two["choices"] == three["choices"]
        assert client.session.counts["retries"] == 2
        new = await client.post("chat/completions", ASK)
        assert new["choices"][0]["message"]["content"] == "2"
        keyed = [await client.post("chat/completions", ASK, **{"Idempotency-Key": "k"}) for _ in range(2)]
        assert keyed[0]["id"] == keyed[1]["id"]

    run(test, script)
    assert len(script.asked) == 3
    assert len({place for *_, place in script.asked}) == 3  # siblings are other answers


def test_a_failed_turn_may_be_retried() -> None:
    script = Script("1")
    script.failures = 1

    async def test(client: Client) -> None:
        refused = await client.post("chat/completions", ASK, 500)
        assert refused["error"]["type"] == "server_error"
        assert isinstance(client.session.error, RuntimeError)
        await client.post("chat/completions", ASK, **{"x-stainless-retry-count": "1"})

    run(test, script)


def test_a_full_context_and_a_limit_of_tokens() -> None:
    async def test(client: Client) -> None:
        said = await client.post("chat/completions", {**ASK, "max_tokens": 3})
        assert said["choices"][0]["finish_reason"] == "length"
        assert said["choices"][0]["message"]["content"] == "134"
        history = [*ASK["messages"], said["choices"][0]["message"], {"role": "user", "content": "9" * 40}]  # type: ignore[misc]
        for route, error in (("chat/completions", lambda e: e["code"]), ("messages", lambda e: e["type"])):
            refused = await client.post(route, {**ASK, "messages": history, "tools": []}, 400)
            assert error(refused["error"]) in ("context_length_exceeded", "invalid_request_error")
            assert "context" in refused["error"]["message"]
        assert client.session.full
        counted = await client.post("messages/count_tokens", MESSAGES)
        assert counted["input_tokens"] == len(client.session.trace.roots[0].token_ids)

    run(test, Script("1345"), longest=40)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b"[1]", "is a list"),
        (b"[" * 100_000, "not JSON"),
        ({"messages": []}, "messages must be a list with an element"),
        ({"messages": ["hi"]}, "an object with a role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "only text parts"),
        ({"messages": [{"role": "user", "content": 5}]}, "content must be"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "a tool call must have"),
        ({**ASK, "n": 2}, "n must be 1"),
        ({**ASK, "max_tokens": "9"}, "a limit of tokens"),
        ({**ASK, "stop": [""]}, "stop must be texts"),
        ({**ASK, "tools": [{"type": "web_search"}]}, "a tool must be"),
    ],
)
def test_mistakes_of_a_client_are_named(body: Any, said: str) -> None:
    async def test(client: Client) -> None:
        refused = await client.post("chat/completions", body, 400)
        assert said in refused["error"]["message"]
        assert refused["error"]["type"] == "invalid_request_error"
        assert not client.session.trace.turns

    run(test, Script("1"))


def test_keys_routes_sizes_and_closed_sessions() -> None:
    async def test(client: Client) -> None:
        other = client.gateway.open_session("s2")
        forged = {"Authorization": f"Bearer {other.key}"}
        assert (await client.post("chat/completions", ASK, 401, **forged))["error"]["code"] == "invalid_api_key"
        assert (await client.post("chat/completions", ASK, 401, Authorization="Bearer "))["error"]
        await client.post("chat/completions", ASK, **{"Authorization": "", "x-api-key": client.address.api_key})
        unknown = f"{client.gateway.url}/s/nobody/v1/chat/completions"
        await client.post(unknown, ASK, 401)
        refused = await client.post("embeddings", {}, 404)
        assert "there is no POST" in refused["error"]["message"]
        refused = await client.post("nothing", {}, 404, **{"anthropic-version": "2023-06-01"})
        assert (refused["type"], refused["error"]["type"]) == ("error", "not_found_error")
        assert client.gateway.counts["unknown_routes"] == 2
        await client.post("chat/completions", b" " * 2_000_000, 413)
        client.gateway.close_session(client.session)
        assert (await client.post("chat/completions", ASK, 409))["error"]["code"] == "session_closed"
        models = f"{client.gateway.url}/s/s2/v1/models"
        async with client.http.get(models, headers=forged) as reply:
            assert (await reply.json())["data"][0]["max_model_len"] == 4096

    run(test, Script("1"), body_limit=1_000_000)


def test_odd_requests_are_mistakes_of_the_client_and_leave_no_trace() -> None:
    user = {"role": "user", "content": "6+7"}
    bodies: list[tuple[str, Any, str]] = [
        ("chat/completions", {"messages": [user], "stop": {"a": 1}}, "stop must be texts"),
        ("responses", {"input": [{"type": "reasoning", "content": 5}]}, "cannot be read: TypeError"),
        ("chat/completions", {"messages": [{**user, "content": "9" * 5000}]}, "5000 characters, more than 4096"),
    ]
    script = Script("1")

    async def test(client: Client) -> None:
        for route, body, complaint in bodies:
            assert complaint in (await client.post(route, body, 400))["error"]["message"]
        host, port = client.gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        key = b"\xff\xfe"  # no text
        writer.write(b"GET /s/s1/v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key + b"\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()
        assert client.session.trace.nodes() == []
        assert not client.session.trace.reasons

    run(test, script)
    assert script.asked == []


def test_a_refused_history_is_not_kept() -> None:
    async def test(client: Client) -> None:
        said = (await client.post("chat/completions", ASK))["choices"][0]["message"]
        long = [*ASK["messages"], said, {"role": "user", "content": "9" * 60}]  # type: ignore[misc]
        for _ in range(3):
            await client.post("chat/completions", {**ASK, "messages": long}, 400)
        assert len(client.session.trace.nodes()) == 2

    run(test, Script("13"), longest=66)


def test_unenforced_request_options_are_counted_or_refused_if_strict() -> None:
    forced = {**ASK, "tool_choice": "required", "response_format": {"type": "json_object"}}

    async def test(client: Client) -> None:
        await client.post("chat/completions", forced)
        assert client.session.counts == {"ignored/tool_choice": 1, "ignored/response_format": 1}

    async def refused(client: Client) -> None:
        answer = await client.post("chat/completions", forced, 400)
        assert "strict" in answer["error"]["message"]

    run(test, Script("1"))
    run(refused, Script("1"), strict=True)


def test_rewards_of_a_rollout_and_of_a_turn() -> None:
    async def test(client: Client) -> None:
        url = f"{client.gateway.url}/sessions/s1"
        await client.post("completions", {"prompt": "6+7="})
        admin = {"Authorization": f"Bearer {client.gateway.admin_key}"}
        assert await client.post(f"{url}/reward", {"reward": 0.5, "turn": 0}, **admin) == {"reward": 0.0}
        assert client.session.trace.turns[0].reward == 0.5
        assert await client.post(f"{url}/reward", {"reward": 1, "parts": {"found": 1}}) == {"reward": 1.0}
        assert await client.post(f"{url}/reward", {"turns": [0.25]}) == {"reward": 1.0}
        assert (client.session.trace.turns[0].reward, client.session.parts) == (0.25, {"found": 1.0})
        wrong: list[dict[str, Any]] = [{}, {"reward": "1"}, {"reward": 1e999}, {"reward": 1, "turn": 7}, {"turn": 0}]
        wrong += [{"turns": [1, 2]}, {"turns": "1"}, {"turns": [None]}, {"parts": [1]}, {"parts": {"a": 10**400}}]
        for body in wrong:
            await client.post(f"{url}/reward", body, 400)
        opened: Mapping[str, str] = await client.post(f"{client.gateway.url}/sessions", {}, **admin)
        assert opened["base_url"].endswith(f"/s/{opened['id']}/v1")
        await client.post(f"{client.gateway.url}/sessions", {}, 401)
        await client.post(f"{url}/finish", {}, **admin)
        await client.post(f"{url}/reward", {"reward": 1}, 409)

    run(test, Script("13"))


def test_a_socket_file_serves_as_well(tmp_path: Any) -> None:
    async def test(client: Client) -> None:
        assert client.address.socket == str(tmp_path / "s")
        assert (await client.post("chat/completions", ASK))["choices"][0]["message"]["content"] == "13"

    run(test, Script("13"), socket=str(tmp_path / "s"))


def test_a_thousand_sessions_left_open_do_not_hold_up_another_one() -> None:
    slow, quick = Script("1", wait_s=60.0), Script("2")

    async def main() -> float:
        gateway = Gateway(lambda name: Session(name, Bytes(), quick if name == "quick" else slow, 4096))
        await gateway.start()
        sessions = [gateway.open_session(f"s{i}") for i in range(1000)]
        request = chat.read(ASK)
        asked = [session.begin(request, "k", again=False) for session in sessions]
        async with aiohttp.ClientSession() as http:
            await Client(gateway, gateway.open_session("quick"), http).post("chat/completions", ASK)
        begun = asyncio.get_running_loop().time()
        await gateway.stop()
        await asyncio.wait(asked)
        assert all(task.cancelled() for task in asked)
        return asyncio.get_running_loop().time() - begun

    assert asyncio.run(main()) < 60.0
    assert len(slow.asked) == 1000
