"""Agents as a rollout source: rows that one forward confirms, rewards, failures that change no group, limits."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp import web

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.data.prompts import VerifiersTasks
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.packing.rows import rows_of
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import AgentRollouts, Draws, GroupedSampler, ResponsePrefix, RolloutSource
from gspo_lightning.rollouts.agents import Agent, HttpAgent, PythonAgent, VerifiersAgent
from gspo_lightning.rollouts.agents.agent import Outcome
from gspo_lightning.rollouts.contract import check_groups
from gspo_lightning.rollouts.gateway.address import Address
from gspo_lightning.rollouts.recording.records import record as recorded
from tests.rollouts.agents import programs
from tests.support import model_families

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
SAMPLING = SamplingParams(40, stop_token_ids=(1, 5, 9, 20, 22, 30))
GROUP = 3
Play = Callable[["Chat", Mapping[str, Any]], Awaitable[Outcome]]


class Chat:
    """A raw client."""

    def __init__(self, http: aiohttp.ClientSession, address: Address) -> None:
        self.http, self.address = http, address

    async def ask(self, *messages: Any, status: int = 200, **options: Any) -> Any:
        talk = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        url, headers = f"{self.address.base_url}/chat/completions", {"x-api-key": self.address.api_key}
        async with self.http.post(url, json={"messages": talk, **options}, headers=headers) as reply:
            assert reply.status == status, await reply.text()
            found = await reply.json()
            return found["choices"][0]["message"] if status == 200 else found["error"]


class Played(Agent):
    """An agent that plays a coroutine of a test."""

    def __init__(self, play: Play) -> None:
        self.play = play

    async def run(self, record: Mapping[str, Any], address: Address) -> Outcome:
        async with aiohttp.ClientSession() as http:
            return await self.play(Chat(http, address), record)


async def linear(chat: Chat, record: Mapping[str, Any]) -> float:
    """Three turns of one conversation."""
    talk: list[Any] = [record["prompt"]]
    for _ in range(3):
        talk += [await chat.ask(*talk, max_tokens=6), "+1="]
    return float(len(talk[1]["content"]))


async def branching(chat: Chat, record: Mapping[str, Any]) -> None:
    """Two answers to each of two questions at once, and a compacted history."""
    first = await chat.ask(record["prompt"], max_tokens=4)
    questions = ["+1=", "+2=", "+1=", "+2="]
    await asyncio.gather(*(chat.ask(record["prompt"], first, q, max_tokens=4) for q in questions))
    await chat.ask("3*3", max_tokens=4)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return model_families.build_policy("qwen3", 0, 3.0)


def generate(
    source: RolloutSource,
    policy: Policy,
    prompts: Sequence[Prompt],
    sampling: SamplingParams = SAMPLING,
    size: int = GROUP,
) -> list[Rollout]:
    """The rollouts of all groups, which keep the contract."""
    groups = source.generate(policy, prompts, group_size=size, sampling=sampling, draws=DRAWS, version=8)
    return [r for group in check_groups(source, groups, prompts, size, sampling) for r in group]


def played(
    policy: Policy, prompts: Sequence[Prompt], play: Play, sampling: SamplingParams = SAMPLING, **options: Any
) -> list[Rollout]:
    with closing(AgentRollouts(Played(play), **options)) as source:
        return generate(source, policy, prompts, sampling)


@pytest.mark.parametrize(("play", "rows"), [(linear, 1), (branching, 5)])
def test_log_probabilities_of_every_row_are_those_of_one_forward(
    policy: Policy, prompts: list[Prompt], play: Play, rows: int
) -> None:
    rollouts = played(policy, prompts, play)
    for rollout in rollouts:
        rollout.reward = 1.0
        assert len(rollout.rows) == rows
    whole = rows_of(rollouts)
    with torch.no_grad():
        found = policy(make_micro_batch(whole), 1.0)[0]
    for row, values in zip(whole, found, strict=True):
        assert row.rollout.logprobs is not None
        own = row.trained
        assert own.any()
        assert torch.allclose(values[: row.size][own], row.slice(row.rollout.logprobs)[own], atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("play", [linear, branching])
def test_tokens_depend_on_what_was_asked_and_not_on_when(policy: Policy, prompts: list[Prompt], play: Play) -> None:
    """One rollout at a time, and all at once: the same rows, in an order that may differ."""
    one, all_ = (played(policy, prompts, play, in_flight=n) for n in (1, 64))
    for a, b in zip(one, all_, strict=True):
        assert {tuple(row.token_ids.tolist()) for row in rows_of([a])} == {
            tuple(row.token_ids.tolist()) for row in rows_of([b])
        }
    assert len({tuple(r.token_ids.tolist()) for r in one}) == len(one)  # a rollout draws its own numbers


def test_the_tree_of_a_rollout_is_recorded(policy: Policy, prompts: list[Prompt]) -> None:
    async def play(chat: Chat, record: Mapping[str, Any]) -> None:
        first = await chat.ask(record["prompt"], max_tokens=4)
        await asyncio.sleep(0.05)
        for question in ("+1=", "+2="):
            await chat.ask(record["prompt"], first, question, max_tokens=4)
        await chat.ask("3*3", max_tokens=4)

    with closing(AgentRollouts(Played(play))) as source:
        rollouts = generate(source, policy, prompts)
        measured = source.measured()
    for rollout in rollouts:
        row = json.loads(json.dumps(recorded(rollout, SAMPLING)))
        nodes, ids, mask = row["tree"], row["completion_ids"], row["response_mask"]
        assert [node["parent"] for node in nodes] == [None, 0, 1, 2, 1, 4, None, 6]
        assert [bool(node.get("answered_s")) for node in nodes] == [False, True] * 4
        assert [m["content"] for node in nodes[::2] for m in node["messages"]] == [row["prompt"], "+1=", "+2=", "3*3"]
        counted = 0
        for node in nodes[1::2]:
            begin, end = node["trained"]
            assert end - begin == node["tokens"]
            assert all(mask[begin:end])
            assert policy.tokenizer.decode(ids[begin:end], skip_special_tokens=True) == node["messages"][0]["content"]
            assert 0 <= node["asked_s"] <= node["answered_s"]
            counted += node["tokens"]
        assert counted == sum(mask)
        assert nodes[3]["asked_s"] - nodes[1]["answered_s"] >= 0.05
        assert nodes[5]["asked_s"] >= nodes[3]["answered_s"]
        assert sum(nodes[i]["tokens"] for i in (0, 1)) == len(row["prompt_ids"]) + row["turn_ends"][0]
    waits = [n[i]["asked_s"] - n[1]["answered_s"] for n in (r.tree for r in rollouts) for i in (3, 5)]
    assert measured["agents/tool_s"] == pytest.approx(sum(waits) / 12, abs=1e-3)


def test_a_linear_rollout_has_text_messages_turns_and_the_agents_reward(policy: Policy, prompts: list[Prompt]) -> None:
    for rollout in played(policy, prompts, linear):
        assert [m["role"] for m in rollout.messages] == ["user", "assistant"] * 3
        assert rollout.text == "\n".join(m["content"] for m in rollout.messages[1::2])
        assert len(rollout.turn_ends) == 3
        assert rollout.turn_rewards == (0.0, 0.0, float(len(rollout.messages[1]["content"])))
        assert [row.context for row in rollout.rows] == [rollout.prompt.token_ids]
        assert rollout.response_mask[: rollout.turn_ends[0]].all()
        assert not rollout.lost


def test_rewards_are_returned_posted_or_left_to_the_run(policy: Policy, prompts: list[Prompt]) -> None:
    async def play(chat: Chat, record: Mapping[str, Any]) -> Outcome:
        await chat.ask(record["prompt"], max_tokens=3)
        kind, number = record["rollout"].split("/")[1], chat.address.base_url.split("/")[-2]
        if kind == "0":
            return {"reward": 0.5}
        if kind == "1":
            url = chat.address.base_url.replace(f"/s/{number}/v1", f"/sessions/{number}/reward")
            headers = {"Authorization": f"Bearer {chat.address.api_key}"}
            async with chat.http.post(url, json={"reward": 0.25}, headers=headers) as reply:
                assert reply.status == 200
        return None

    rewards = [r.turn_rewards for r in played(policy, prompts[:1], play)]
    assert rewards == [(0.5,), (0.25,), ()]


def test_a_failure_is_missing_or_scored_and_every_group_keeps_its_size(policy: Policy, prompts: list[Prompt]) -> None:
    async def play(chat: Chat, record: Mapping[str, Any]) -> Outcome:
        sample = record["rollout"].split("/")[1]
        if record["prompt"] == "1:" and sample == "2":
            return 1.0  # without a turn there is nothing to train
        said = await chat.ask(record["prompt"], max_tokens=3)
        if record["prompt"] == "9-9:" and sample == "1":
            raise InfrastructureError("the database is down")
        if sample == "0":
            error = await chat.ask(record["prompt"], said, "1" * 99, status=400)
            assert error["code"] == "context_length_exceeded"
            raise ValueError("too long")
        if record["prompt"] == "9-9:" and sample == "2":
            await asyncio.sleep(60)
        return 1.0

    with closing(AgentRollouts(Played(play), deadline_s=1.0)) as source:
        seen: list[Sequence[Rollout]] = []
        source.on_group = seen.append
        rollouts = generate(source, policy, prompts)
        assert sorted(group[0].prompt.id for group in seen) == sorted(p.id for p in prompts)
        measured = source.measured()
    lost = {f"{r.prompt.text}{r.sample}": r.lost for r in rollouts if r.lost}
    assert set(lost) == {"1:2", "9-9:1", "9-9:2"}
    assert "environment: the database is down" in lost["9-9:1"]
    assert "deadline: no result in 1 s" in lost["9-9:2"]
    assert "no turn was requested" in lost["1:2"]
    for rollout in rollouts:
        ended = FinishReason.LOST if rollout.lost else FinishReason.LENGTH if rollout.sample == 0 else None
        assert ended in (None, rollout.finish_reason)
        if rollout.sample == 0:
            assert rollout.turn_rewards == (0.0,)
    assert measured["agents/failures/context"] == 4 / 12
    assert measured["agents/failures/deadline"] == 1 / 12
    assert measured["agents/turns"] == 11 / 12
    assert source.measured() == {}


def test_each_part_of_a_rollout_has_its_own_deadline(policy: Policy, prompts: list[Prompt]) -> None:
    """Set-up, conversation and verifier take 0.9 s each, or one of them for ever; one deadline is 2.5 s."""

    async def play(chat: Chat, record: Mapping[str, Any]) -> Outcome:
        slow = {"1:": "set-up", "9-9:": "agent", "2*2*2*2*2:": "verify"}.get(record["prompt"], "")
        await asyncio.sleep(60 if slow == "set-up" else 0.9)
        await chat.ask(record["prompt"], max_tokens=2)
        await asyncio.sleep(60 if slow == "agent" else 0.9)
        key = {"Authorization": f"Bearer {chat.address.api_key}"}
        async with chat.http.post(f"{chat.address.base_url}/finish", headers=key) as reply:
            assert reply.status == 200
        assert (await chat.ask("more", status=409))["code"] == "session_closed"
        await asyncio.sleep(60 if slow == "verify" else 0.9)
        async with chat.http.post(f"{chat.address.base_url}/reward", json={"reward": 0.5}, headers=key) as reply:
            assert reply.status == 200
        return None

    limits: dict[str, Any] = {"deadline_s": 2.5, "max_missing_rate": 1.0}
    found = played(policy, prompts, play, set_up_s=2.5, verify_s=2.5, **limits)
    why = {r.prompt.text: r.lost for r in found if r.lost}
    assert why["1:"] == "deadline: no turn was requested in 2.5 s"
    assert why["9-9:"] == "deadline: no result in 2.5 s"
    assert why["2*2*2*2*2:"] == "deadline: no result in 2.5 s after its conversation"
    assert {r.turn_rewards for r in found if not r.lost} == {(0.5,)}
    assert any(not r.lost for r in found)
    assert all("no result in 2.5 s" in r.lost for r in played(policy, prompts[:1], play, **limits))


def test_too_many_missing_rollouts_stop_the_run_with_their_reasons(policy: Policy, prompts: list[Prompt]) -> None:
    async def play(chat: Chat, record: Mapping[str, Any]) -> Outcome:
        raise KeyError("answer")

    async def unlucky(chat: Chat, record: Mapping[str, Any]) -> Outcome:
        raise InfrastructureError("no machine is free")

    with pytest.raises(UserError, match=r"of 12 rollouts of the agent are missing: .* x agent: KeyError"):
        played(policy, prompts, play)
    with pytest.raises(InfrastructureError, match=r"of 12 .* x environment: no machine is free"):
        played(policy, prompts, unlucky)
    kept = played(policy, prompts, play, max_missing_rate=1.0)
    assert [r.lost[:5] for r in kept] == ["agent"] * 12


def test_a_mistake_of_the_user_stops_the_run(policy: Policy, prompts: list[Prompt]) -> None:
    async def text(chat: Chat, record: Mapping[str, Any]) -> Any:
        await chat.ask(record["prompt"], max_tokens=1)
        return "1.0"

    async def refuses(chat: Chat, record: Mapping[str, Any]) -> Any:
        raise UserError("data.columns", "has no answer")

    for play, said in ((text, "returned '1.0'"), (refuses, "has no answer")):
        with pytest.raises(UserError, match=said):
            played(policy, prompts, play)


class Noting(GroupedSampler):
    """Remembers why every piece ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[FinishReason] = []

    def extend(self, policy: Policy, beginnings: Sequence[ResponsePrefix], **options: Any) -> list[Rollout]:
        pieces = super().extend(policy, beginnings, **options)
        self.ends += [piece.finish_reason for piece in pieces]
        return pieces


@pytest.mark.thorough
def test_a_long_turn_does_not_make_short_ones_wait_and_keeps_its_tokens(policy: Policy, prompts: list[Prompt]) -> None:
    order: list[str] = []

    async def play(chat: Chat, record: Mapping[str, Any]) -> None:
        kind = "long" if record["prompt"] == "1:" else "short"
        for i in range(1 if kind == "long" else 6):
            await chat.ask(f"{record['prompt']}{i}", max_tokens=120 if kind == "long" else 2)
        order.append(kind)

    source, endless = Noting(), SamplingParams(130)
    together = played(policy, prompts, play, endless, source=source, batch_ms=3000)
    assert FinishReason.CUT in source.ends
    assert order[-3:] == ["long"] * 3  # 120 tokens in one go would be over before the second of six short turns
    alone = played(policy, prompts, play, endless, in_flight=1)
    for a, b in zip(together, alone, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.logprobs is not None
        assert b.logprobs is not None
        assert torch.allclose(a.logprobs, b.logprobs, atol=1e-5)


@pytest.mark.thorough
def test_stop_texts_limits_and_turns(policy: Policy, prompts: list[Prompt]) -> None:
    async def play(chat: Chat, record: Mapping[str, Any]) -> None:
        await chat.ask(record["prompt"], max_tokens=12)
        for character in "0123456789":
            said = await chat.ask(record["prompt"], max_tokens=12, stop=[character])
            assert character not in said["content"]
        error = await chat.ask(record["prompt"], status=400)
        assert "11 turns already" in error["message"]

    for rollout in played(policy, prompts, play, SamplingParams(14), max_turns=11):
        assert len(rollout.rows) == 11  # of answers that were never continued none is better
        assert not rollout.lost


@pytest.mark.thorough
def test_a_function_runs_in_a_process_without_torch(policy: Policy, prompts: list[Prompt]) -> None:
    with closing(AgentRollouts(PythonAgent(programs.two_turns, processes=2))) as source:
        source.open(64)
        first, second = generate(source, policy, prompts), generate(source, policy, prompts)
    assert [r.token_ids.tolist() for r in first] == [r.token_ids.tolist() for r in second]
    assert all(len(r.turn_ends) == 2 for r in first)
    assert [r.turn_rewards[-1] for r in first] == [float(len(r.messages[3]["content"])) for r in first]


def test_failures_in_a_process_are_told_apart_and_it_is_started_again(policy: Policy, prompts: list[Prompt]) -> None:
    kinds = {"dies": "agent: AgentError: the agent's process died", "environment": "environment: the machine is gone",
             "exits": "agent: AgentError: SystemExit: enough", "well": ""}  # fmt: skip
    with closing(AgentRollouts(PythonAgent("tests.rollouts.agents.programs.fails"), in_flight=1)) as source:
        for prompt, (kind, said) in zip(prompts, kinds.items(), strict=True):
            told = Prompt(prompt.id, prompt.text, prompt.token_ids, {"kind": kind})
            (rollout,) = generate(source, policy, [told], size=1)
            assert rollout.lost.startswith(said)
            assert bool(rollout.lost) == bool(said)
        with pytest.raises(UserError, match=r"programs\.fails: returned 'much'"):
            generate(source, policy, [Prompt(1, "1:", prompts[0].token_ids, {"kind": "garbage"})], size=1)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (programs.large, "AnswerTooLongError: the answer has 681"),
        (programs.torrent, "the agent's process wrote no answer"),
    ],
)
def test_an_answer_above_64_mib_is_named_and_close_does_not_hang(
    policy: Policy, prompts: list[Prompt], function: Any, said: str
) -> None:
    """The pipe of a process stays full: its end must not be waited for."""
    source = AgentRollouts(PythonAgent(function), max_missing_rate=1.0, deadline_s=60.0)
    with closing(source):
        rollouts = generate(source, policy, prompts[:1], size=1)
    assert said in rollouts[0].lost


def test_a_plain_function_that_hangs_is_missing_at_the_deadline(policy: Policy, prompts: list[Prompt]) -> None:
    with closing(AgentRollouts(PythonAgent(programs.slow), deadline_s=0.3)) as source:
        (rollout,) = generate(source, policy, prompts[:1], size=1)
    assert rollout.lost == "deadline: no result in 0.3 s"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("tests.rollouts.agents.programs.nobody", "has no attribute 'nobody'"),
        ("no_such_module.solve", "No module named"),
        (programs.one_argument, "too many positional arguments"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_before_the_run(function: Any, said: str) -> None:
    with closing(AgentRollouts(PythonAgent(function))) as source, pytest.raises(UserError, match=said):
        source.open(64)


@pytest.mark.parametrize("python", [None, sys.executable])
def test_verifiers_is_asked_for_in_a_process_of_its_own(python: str | None) -> None:
    said = rf"\.python: {python or sys.executable} \(.*\) has no package verifiers\n.*pip install 'verifiers>=0.4'"
    with pytest.raises(UserError, match="VerifiersTasks" + said):
        VerifiersTasks({"taskset": {"id": "gsm8k"}}, python=python).records()
    with pytest.raises(UserError, match="VerifiersAgent" + said):
        asyncio.run(VerifiersAgent({"taskset": {"id": "gsm8k"}}, python).open())


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: PythonAgent("solve"), "not a dotted path"),
        (lambda: PythonAgent("a.b", processes=0), "at least 1"),
        (lambda: HttpAgent("localhost:80"), "is not a URL"),
        (lambda: AgentRollouts(PythonAgent("a.b"), in_flight=0), "in_flight"),
        (lambda: AgentRollouts(PythonAgent("a.b"), deadline_s=0), "deadline_s"),
        (lambda: AgentRollouts(PythonAgent("a.b"), failures={"sampler": "score"}), "is no class"),
        (lambda: AgentRollouts(PythonAgent("a.b"), max_missing_rate=2), "max_missing_rate"),
    ],
)
def test_settings_that_cannot_work_are_refused(build: Callable[[], object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build()


@pytest.fixture
def service() -> Iterator[str]:
    """An agent as a service, in a thread of its own."""

    async def play(request: web.Request) -> web.Response:
        told = await request.json()
        sample = told["record"]["rollout"].split("/")[1]
        if sample == "1":
            return web.Response(status=503, text="no machine is free")
        if sample == "2":
            return web.Response(status=422, text="what?")
        async with aiohttp.ClientSession() as http:
            await Chat(http, Address(told["base_url"], told["api_key"])).ask(told["record"]["prompt"], max_tokens=3)
        return web.json_response({"reward": 2})

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/play", play)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}/play")
        ready.set()
        await stop.wait()
        await runner.cleanup()

    urls: list[str] = []
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait(10)
    yield urls[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def test_a_service_is_an_agent(policy: Policy, prompts: list[Prompt], service: str) -> None:
    with closing(AgentRollouts(HttpAgent(service))) as source:
        rollouts = generate(source, policy, prompts[:2])
    assert [r.turn_rewards for r in rollouts[::3]] == [(2.0,)] * 2
    assert "status 503: no machine is free" in rollouts[1].lost
    assert "status 422" in rollouts[2].lost
    assert rollouts[1].lost.startswith("environment")
    assert rollouts[2].lost.startswith("agent")


@pytest.mark.thorough
def test_bad_agents_get_a_clear_answer_and_change_no_other_rollout(policy: Policy, prompts: list[Prompt]) -> None:
    keys: dict[str, Address] = {}
    answers: list[tuple[str, int]] = []

    async def raw(chat: Chat, what: str, data: bytes, key: str, url: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"}
        async with chat.http.post(url or f"{chat.address.base_url}/chat/completions", data=data, headers=headers) as r:
            answers.append((what, r.status))

    async def bad(chat: Chat, record: Mapping[str, Any]) -> float:
        if record["rollout"].endswith("/0"):
            own, others = chat.address.api_key, [a for a in keys.values() if a != chat.address]
            await raw(chat, "garbage", b'{"messages": [{', own)
            await raw(chat, "large", b" " * (17 << 20), own)
            await raw(chat, "deep", b'{"messages": ' + b"[" * 200_000, own)
            for other in others[:3]:
                await raw(
                    chat,
                    "forged",
                    b'{"messages": [{"role": "user", "content": "1"}]}',
                    own,
                    f"{other.base_url}/chat/completions",
                )
            for _ in range(3):  # asks, and is gone before the answer
                work = asyncio.ensure_future(chat.ask(record["prompt"], max_tokens=30))
                await asyncio.sleep(0.01)
                work.cancel()
            return 0.0
        return await linear(chat, record)

    async def noted(chat: Chat, record: Mapping[str, Any]) -> float:
        keys[record["rollout"]] = chat.address
        return await bad(chat, record)

    limits = {"failures": {"agent": "missing"}, "max_missing_rate": 1.0}
    with_bad, without = (played(policy, prompts, play, **limits) for play in (noted, linear))
    for a, b in zip(with_bad, without, strict=True):
        if a.sample:
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert a.turn_rewards == b.turn_rewards
    wanted = {"garbage": 400, "large": 413, "deep": 400, "forged": 401}
    assert {what for what, _ in answers} == set(wanted)
    assert all(status == wanted[what] for what, status in answers)


def test_the_agent_of_training_and_evaluation_is_opened_and_closed_once() -> None:
    seen: list[str] = []

    class Counted(Agent):
        async def open(self) -> None:
            seen.append("open")

        async def run(self, record: Mapping[str, Any], address: Address) -> Outcome:
            return 1.0

        async def close(self) -> None:
            seen.append("close")

    source = AgentRollouts(Counted())
    evaluation = source.for_evaluation()
    for one in (evaluation, source):
        one.open(0)
    for one in (evaluation, source):
        one.close()
    assert seen == ["open", "close"]
