"""Histories of any kind become rows in which every sampled token is trained once, in the context it was sampled in."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_lightning.rollouts.gateway.trace import REASONS, Node, Trace, TracedRow, TraceError, ids_of, key_of, text_of
from tests.rollouts.gateway.stubs import Letters, logprob, piece

Talk = list[dict[str, Any]]
TOOLS = [{"type": "function", "function": {"name": "add"}}]
USER = {"role": "user", "content": "6*7"}


def say(trace: Trace, messages: Talk, content: str, calls: int = 0, tools: Any = TOOLS, version: int = 0) -> Node:
    """One request and its answer."""
    node = trace.locate(messages, tools)
    context = ids_of(node.path)
    words = [9_000_000 + len(trace.turns), 8_000_000 + calls]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        arguments = [json.dumps({"b": i, "a": 1}) for i in range(calls)]
        functions = [{"name": "add", "arguments": text} for text in arguments]
        message["tool_calls"] = [{"id": f"c{i}", "function": function} for i, function in enumerate(functions)]
    return trace.add_turn(node, context, piece(context, words, version=version), message)


def answered(turn: Node, *contents: str) -> Talk:
    """The history of a turn with answers of tools, or of a user, after it."""
    history = [dict(m) for node in turn.path for m in node.messages]
    role = "tool" if history[-1].get("tool_calls") else "user"
    return [*history, *({"role": role, "content": text, "tool_call_id": "x"} for text in contents)]


def check(trace: Trace) -> list[TracedRow]:
    """Every kept token once, and each log-probability is that of its place in the row."""
    rows = trace.rows()
    seen = [id(node) for row in rows for _, node in row.turns]
    assert sorted(seen) == sorted({id(turn) for turn in trace.trained()})
    for row in rows:
        whole = (*row.context, *row.token_ids.tolist())
        assert row.logprobs is not None
        assert row.versions is not None
        assert row.token_ids.shape == row.response_mask.shape == row.logprobs.shape == row.versions.shape
        assert row.response_mask.sum() == sum(len(node.token_ids) for _, node in row.turns)
        places = range(len(row.context), len(whole))
        sampled = zip(places, row.response_mask.tolist(), strict=True)
        values = [logprob(whole[:place], whole[place]) if chosen else 0.0 for place, chosen in sampled]
        assert torch.equal(row.logprobs, torch.tensor(values))
        for end, node in row.turns:
            assert whole[len(row.context) + end - len(node.token_ids) : len(row.context) + end] == node.token_ids
    return rows


def test_a_conversation_is_one_row_of_the_tokens_that_were_served() -> None:
    trace = Trace(Letters())
    first = say(trace, [USER], "", calls=2, version=3)
    last = say(trace, answered(first, "1", "2"), "3", version=4)
    (row,) = check(trace)
    assert row.context == first.path[0].token_ids
    assert (*row.context, *row.token_ids.tolist()) == ids_of(last.path)
    assert row.response_mask.tolist() == [True] * 3 + [False] * 3 + [True] * 3
    assert row.versions is not None
    assert row.versions.tolist() == [3] * 6 + [4] * 3
    assert [end for end, _ in row.turns] == [3, 9]
    assert trace.reasons == {"first": 1}


def test_arguments_ids_parts_and_dropped_reasoning_do_not_fork() -> None:
    trace = Trace(Letters())
    node = trace.locate([{"role": "system", "content": "s"}, USER], TOOLS)
    call = {"id": "a", "function": {"name": "add", "arguments": '{"b":7 ,  "a": 6}'}}
    said = {"role": "assistant", "content": None, "reasoning_content": "hmm", "tool_calls": [call]}
    context = ids_of(node.path)
    turn = trace.add_turn(node, context, piece(context, [1]), said)
    theirs = {"id": "b", "function": {"name": "add", "arguments": {"a": 6, "b": 7}}}
    history = [
        {"role": "developer", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": [{"type": "text", "text": "6*"}, {"type": "text", "text": "7"}]},
        {"role": "assistant", "content": "", "tool_calls": [theirs]},
        {"role": "tool", "content": "42"},
    ]
    assert trace.locate(history, TOOLS).parent is turn
    other = copy.deepcopy(history)
    other[2]["reasoning_content"] = "another thought"
    assert trace.locate(other, TOOLS).parent is None
    assert trace.reasons == {"first": 1, "answer": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda talk: [{"role": "system", "content": "?"}, *talk], "system"),
        (lambda talk: [{"role": "user", "content": "6*8"}, *talk[1:]], "input"),
        (lambda talk: [talk[0], {"role": "assistant", "content": "Calling tools"}, *talk[2:]], "answer"),
        (lambda talk: [*talk, {"role": "assistant", "content": "!"}, USER], "answer"),
        (lambda talk: [{"role": "user", "content": "all so far: 42"}], "fresh"),
    ],
)
def test_rewritten_history_is_a_new_root_with_its_reason(change: Any, reason: str) -> None:
    trace = Trace(Letters())
    talk = answered(say(trace, [USER], "", calls=1), "1")
    say(trace, change(talk), "42")
    assert trace.reasons == {"first": 1, reason: 1}
    assert len(check(trace)) == 2


def test_other_tools_are_another_root_and_white_space_matches_where_it_is_told_to() -> None:
    strict, loose = Trace(Letters()), Trace(Letters(), match="strip")
    for trace in (strict, loose):
        talk = answered(say(trace, [USER], " 42\n"), "again")
        talk[1]["content"] = "42"
        say(trace, talk, "43")
        say(trace, answered(trace.turns[0], "again"), "43", tools=[*TOOLS, *TOOLS])
    assert strict.reasons == {"first": 1, "answer": 1, "tools": 1}
    assert loose.reasons == {"first": 1, "tools": 1}


def test_branches_share_a_trunk_that_is_trained_once() -> None:
    trace = Trace(Letters())
    first = say(trace, [USER], "", calls=1)
    for text in ("1", "2"):
        say(trace, answered(first, text), text)
    one, two = check(trace)
    assert [len(row.turns) for row in (one, two)] == [2, 1]
    assert two.context[: len(ids_of(first.path))] == ids_of(first.path)
    assert two.response_mask.tolist() == [True] * 3


def test_of_several_answers_to_one_request_those_never_continued_are_left_out() -> None:
    trace = Trace(Letters())
    turns = [say(trace, [USER], f"{i}") for i in range(3)]
    assert len(check(trace)) == 3  # a choice between finished answers: all are rows
    say(trace, answered(turns[1], "and?"), "42")
    (row,) = check(trace)
    assert [node.order for _, node in row.turns] == [1, 3]


def test_a_side_call_without_tools_is_not_trained() -> None:
    trace = Trace(Letters())
    say(trace, [USER], "42")
    say(trace, [{"role": "user", "content": "a title, please"}], "Numbers", tools=[])
    assert len(check(trace)) == 1
    alone = Trace(Letters())
    say(alone, [USER], "42", tools=[])
    assert len(check(alone)) == 1


def test_tokens_that_were_not_served_are_found() -> None:
    trace = Trace(Letters())
    node = trace.locate([USER], TOOLS)
    context = ids_of(node.path)
    for served in (context[:-1], (*context[:-1], 5)):
        with pytest.raises(TraceError, match="served"):
            trace.add_turn(node, served, piece(context, [1]), {"role": "assistant", "content": "42"})


class Client:
    """A client that does whatever clients do to a history, and remembers what it was served."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.trace = Trace(Letters())
        self.served: list[tuple[Talk, tuple[int, ...], str]] = []

    def act(self) -> None:
        """One request; a history that was not rewritten must go on from the very tokens that it was served."""
        kind = self.draw.choice(["go on"] * 4 + ["again", "compact", "rewrite", "title"])
        tools: Any = TOOLS
        expected, told_count = False, 0
        if not self.served or kind in ("compact", "title"):
            talk: Talk = [{"role": "user", "content": f"begin {self.draw.randrange(3)}"}]
            tools = [] if kind == "title" else TOOLS
        else:
            before, _, known = self.draw.choice(self.served)
            expected = True
            tools = json.loads(known)
            calls = len(before[-1].get("tool_calls", ())) or 1
            role = "tool" if before[-1].get("tool_calls") else "user"
            told = [{"role": role, "content": str(self.draw.randrange(2))} for _ in range(calls)]
            talk, told_count = [*copy.deepcopy(before), *told], len(told)
            if kind == "again":
                talk, expected = talk[: -calls - 1], False
            elif kind == "rewrite":
                talk[-calls - 1]["content"] = text_of(talk[-calls - 1]["content"]) + " indeed"
                expected = False
            else:
                self._restyle(talk)
        node = self.trace.locate(talk, tools)
        context = ids_of(node.path)
        if expected:  # equal answers to one request cannot be told apart: any of them is what the policy said
            before = [key_of(m) for m in talk[:-told_count]]
            equal = [ids for one, ids, known in self.served if [key_of(m) for m in one] == before]
            assert any(context[: len(ids)] == ids for ids in equal)
        calls = self.draw.randrange(3) if tools else 0
        turn = say(self.trace, talk, self.draw.choice(["", "a", "b"]), calls, tools)
        assert turn.parent is node
        self.served.append(([*talk, dict(turn.messages[0])], ids_of(turn.path), json.dumps(tools)))

    def _restyle(self, talk: Talk) -> None:
        for message in talk:
            if self.draw.random() < 0.3 and isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}] if message["content"] else None
            for call in message.get("tool_calls", ()):
                arguments = json.loads(call["function"]["arguments"])
                call["id"] = "other"
                call["function"]["arguments"] = json.dumps(dict(sorted(arguments.items())), separators=(",", ":"))


def histories(count: int, seed: int) -> None:
    client = Client(seed)
    for _ in range(count):
        client.act()
    check(client.trace)
    assert client.trace.encoder.openings == len(client.trace.roots) == sum(client.trace.reasons.values())  # type: ignore[attr-defined]
    assert set(client.trace.reasons) <= set(REASONS)


@given(count=st.integers(1, 14), seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_any_history_keeps_its_tokens_and_trains_each_once(count: int, seed: int) -> None:
    histories(count, seed)


@pytest.mark.thorough
def test_ten_thousand_random_histories_keep_their_tokens() -> None:
    for seed in range(10_000):
        histories(1 + seed % 14, seed)
