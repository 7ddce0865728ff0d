"""An environment that raises, hangs or talks nonsense costs its own conversation, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gspo_lightning.core import registry
from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.types import Prompt
from gspo_lightning.rollouts.environments import Environment
from gspo_lightning.rollouts.environments.conversation import Conversation
from gspo_lightning.rollouts.environments.host import BlockedError, Host

PROMPT = Prompt(3, "how many?", (4, 5), {"answer": "7"})


class Counting(Environment):
    """Says how often it was spoken to; ends after three turns."""

    def __init__(self, fails_at: int = 0, failure: Callable[[], Any] = lambda: None, times: int = 99) -> None:
        self.fails_at, self.failure = fails_at, failure
        self.shared = {"failures left": times}

    def fresh(self) -> Counting:
        other = type(self)(self.fails_at, self.failure)
        other.shared = self.shared
        return other

    async def reset(self, prompt: Prompt) -> list[dict[str, str]]:
        self.turn = 0
        return [{"role": "user", "content": f"{prompt.text} {self.seed}"}]

    async def step(self, completion: str) -> Any:
        self.turn += 1
        if self.turn == self.fails_at and self.shared["failures left"] > 0:
            self.shared["failures left"] -= 1
            value = self.failure()
            return await value if asyncio.iscoroutine(value) else value
        return [{"role": "user", "content": f"{completion}{self.turn}"}], self.turn / 2, self.turn == 3


def conversation(environment: Environment, deadline_s: float = 20.0) -> Conversation:
    return Conversation(environment, PROMPT, 11, deadline_s)


async def talk(talk: Conversation, *said: str) -> None:
    await talk.begin()
    for text in said:
        talk.said.append(text)
        await talk.answer()


def raises() -> None:
    raise ValueError("the server is\nangry")


def test_answers_are_what_the_environment_said() -> None:
    mine = conversation(Counting())
    asyncio.run(talk(mine, "a", "b", "c"))
    assert mine.opening == [{"role": "user", "content": "how many? 11"}]
    assert [messages[0]["content"] for messages, _, _ in mine.steps] == ["a1", "b2", "c3"]
    assert [(reward, done) for _, reward, done in mine.steps] == [(0.5, False), (1.0, False), (1.5, True)]


def test_conversations_do_not_share_state() -> None:
    template = Counting()
    first, second = conversation(template), conversation(template)
    asyncio.run(talk(first, "a", "b"))
    asyncio.run(talk(second, "x"))
    assert second.steps[0][0] == [{"role": "user", "content": "x1"}]
    assert not hasattr(template, "turn")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (None, r"step: returned None; it must be \(messages, reward, done\)"),
        (([], 1.0), r"must be \(messages, reward, done\)"),
        (("hello", 1.0, False), "messages must be a list"),
        (([{"role": "user"}], 1.0, False), "both texts"),
        ((["hello"], 1.0, False), "both texts"),
        (([{"role": "user", "content": 3}], 1.0, False), "both texts"),
        (([], float("nan"), False), "the reward nan; it must be a finite number"),
        (([], "1", False), "the reward '1'"),
        (([], None, False), "the reward None"),
        (([], 1.0, "no"), "done = 'no'"),
        (([], 1.0, None), "done = None"),
    ],
)
def test_an_answer_of_a_wrong_type_is_the_users_mistake(value: object, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        asyncio.run(talk(conversation(Counting(1, lambda: value)), "a"))
    line = Counting.step.__code__.co_firstlineno
    first, last = str(caught.value).splitlines()
    assert all(f"test_conversations.py:{line}, in Counting.step" in text for text in (first, last))


def leaves() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("failure", "complaint"),
    [
        (raises, "Counting.step raised ValueError: the server is"),
        (leaves, "Counting.step raised RuntimeError: SystemExit: 3"),
        (lambda: asyncio.sleep(60), "gave no answer in 0.2 s"),
    ],
)
def test_environment_error_or_missed_deadline_is_an_infrastructure_error(
    failure: Callable[[], Any], complaint: str
) -> None:
    with pytest.raises(InfrastructureError, match=complaint):
        asyncio.run(talk(conversation(Counting(2, failure), 0.2), "a", "b"))


def test_a_mistake_of_the_user_passes() -> None:
    def wrong() -> None:
        raise UserError("plugins.mine", "cannot work")

    with pytest.raises(UserError, match="cannot work"):
        asyncio.run(talk(conversation(Counting(1, wrong)), "a"))


def test_a_successor_tells_a_fresh_environment_everything_again() -> None:
    mine = conversation(Counting(3, raises, times=1))
    with pytest.raises(InfrastructureError):
        asyncio.run(talk(mine, "a", "b", "c"))
    other = mine.successor()
    asyncio.run(other.again())
    assert [messages[0]["content"] for messages, _, _ in other.steps] == ["a1", "b2", "c3"]
    assert len(mine.steps) == 2


def test_a_successor_whose_environment_has_changed_its_mind_is_refused() -> None:
    moody = iter(range(100))

    class Moody(Counting):
        async def step(self, completion: str) -> Any:
            messages, reward, done = await super().step(completion)
            return messages, reward + next(moody), done

    mine = conversation(Moody(2, raises, times=1))
    with pytest.raises(InfrastructureError, match="angry"):
        asyncio.run(talk(mine, "a", "b"))
    with pytest.raises(InfrastructureError, match="answered differently"):
        asyncio.run(mine.successor().again())


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"reset": lambda self: None}, "reset: cannot be called with the prompt"),
        ({"step": lambda self, a, b: None}, "step: cannot be called with the completion"),
        ({"step": 3}, "is not a plain or async method"),
        ({"step": staticmethod(lambda completion: None)}, "is not a plain or async method"),
    ],
)
def test_a_wrong_signature_is_refused_where_the_class_is_defined(body: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        type("Wrong", (Environment,), body)


def test_an_environment_that_cannot_be_copied_says_how_to_make_it() -> None:
    class Locked(Environment):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def reset(self, prompt: Prompt) -> list[dict[str, str]]:
            return []

        def step(self, completion: str) -> Any:
            return [], 0.0, True

    with pytest.raises(UserError, match="override fresh"):
        asyncio.run(conversation(Locked()).begin())


def test_environments_and_tools_are_registered() -> None:
    assert {"GuessNumber", "ToolUse"} <= registry.components("environments").keys()
    assert {"Calculator", "PythonTool"} <= registry.components("tools").keys()


# the host ----------------------------------------------------------------------------------------------------------


class Plain(Environment):
    """A plain step that waits for all the others: it only returns if they run at the same time."""

    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties)

    def fresh(self) -> Plain:
        return self

    def reset(self, prompt: Prompt) -> list[dict[str, str]]:
        self.barrier.wait(timeout=20)
        return []

    def step(self, completion: str) -> Any:
        return [], 0.0, True


def test_plain_methods_run_at_the_same_time() -> None:
    host = Host(deadline_s=20, max_concurrent=8)
    calls = [conversation(Plain(8))]
    calls += [conversation(calls[0].template) for _ in range(7)]
    assert host.start([c.begin for c in calls]).wait() == [None] * 8
    host.close()


def test_no_more_conversations_are_answered_at_a_time_than_allowed() -> None:
    running, most = 0, 0

    async def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    host = Host(deadline_s=20, max_concurrent=3)
    assert host.start([call] * 12).wait() == [None] * 12
    assert most == 3
    host.close()


def test_hanging_environment_does_not_delay_other_conversations() -> None:
    """It ignores that it is cancelled, too."""

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    host = Host(deadline_s=0.2, max_concurrent=4)
    good, bad = conversation(Counting(), 0.2), conversation(Counting(1, stubborn), 0.2)
    assert host.start([good.begin, bad.begin]).wait() == [None, None]
    good.said.append("a")
    bad.said.append("a")
    fine, failed = host.start([good.answer, bad.answer]).wait()
    assert fine is None
    assert "no answer in 0.2 s" in str(failed)
    host.close()


def test_an_environment_that_blocks_the_loop_is_left_behind() -> None:
    release = threading.Event()
    host = Host(deadline_s=0.1, max_concurrent=4)
    bad, good = conversation(Counting(1, release.wait)), conversation(Counting())
    assert host.start([bad.begin, good.begin]).wait() == [None, None]
    for each in (bad, good):
        each.said.append("a")
    errors = host.start([bad.answer, good.answer]).wait()
    assert [type(e) for e in errors] == [BlockedError, BlockedError]
    again = good.successor()
    assert host.start([again.again]).wait() == [None]  # a new loop
    assert again.steps[0][1] == 0.5
    release.set()
    host.close()
    deadline = time.monotonic() + 20
    while any(t.name == "environments-blocked" for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [t for t in threading.enumerate() if t.name.startswith("environments")]
