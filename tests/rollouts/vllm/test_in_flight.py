"""Servers that get new weights while they sample: nothing is lost, and every token says which weights sampled it."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.loop.experience.settings import ExperienceSettings
from gspo_lightning.loop.experience.sources import check_sources
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies import gathering
from gspo_lightning.policy.tiny import build_tiny_model
from gspo_lightning.rollouts import Draws, EnvironmentRollouts, RolloutSource, VLLMServer
from gspo_lightning.rollouts.environments import Environment
from gspo_lightning.rollouts.serving.answers import BadReplyError
from gspo_lightning.rollouts.serving.client import Client, ServerError
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.pool import UNFINISHED, Faults, Pool, Server, Weights
from gspo_lightning.rollouts.serving.weights import WeightFolders
from gspo_lightning.rollouts.vllm import server
from gspo_lightning.rollouts.vllm.protocol import parse
from gspo_lightning.rollouts.vllm.transfer import Sender
from gspo_lightning.rollouts.vllm.weight_sync import WeightSync
from tests.rollouts.toy_server import Reply, ToyServer
from tests.runs import runs

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
SAMPLING = SamplingParams(40, stop_token_ids=(9,))
FAST: dict[str, Any] = {"backoff_s": 0.01, "timeout_s": 20.0, "retries": 2, "weights_in_flight": True}


@pytest.fixture
def toy() -> Iterator[ToyServer]:
    with ToyServer() as server:
        yield server


@pytest.fixture
def newer(policy: Policy) -> Policy:
    """Other weights."""
    return Policy(build_tiny_model("tiny-qwen3", seed=5), policy.tokenizer).eval()


class Asked(threading.Thread):
    """A rollout in another thread, as the prefetcher makes it."""

    def __init__(self, source: RolloutSource, policy: Policy, prompts: list[Prompt], version: int = 3) -> None:
        super().__init__(daemon=True)
        self.source, self.policy, self.prompts, self.version = source, policy, prompts, version
        self.groups: list[list[Rollout]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.source.sync_weights(self.policy, self.version)
            self.groups = self.source.generate(
                self.policy, self.prompts, group_size=3, sampling=SAMPLING, draws=DRAWS, version=self.version
            )
        except BaseException as error:
            self.error = error

    def during(self, toy: ToyServer, act: Callable[[], None]) -> list[list[Rollout]]:
        """What it brings, if something happens when every group has two tokens of its longest response."""
        toy.holds = 2
        self.start()
        deadline = time.monotonic() + 20
        while toy.held < len(self.prompts) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert toy.held == len(self.prompts)
        act()
        toy.release()
        self.join(30)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.groups


def by_weights(groups: list[list[Rollout]], version: int) -> list[tuple[Rollout, torch.Tensor]]:
    """Rollouts with tokens of these weights, and which tokens those are."""
    marked = [
        (r, (torch.full_like(r.token_ids, r.policy_version) if r.versions is None else r.versions) == version)
        for group in groups
        for r in group
    ]
    return [(rollout, mask) for rollout, mask in marked if bool(mask.any())]


def gap(policy: Policy, found: list[tuple[Rollout, torch.Tensor]]) -> float:
    """Nats between what the server reported of these tokens and what the policy says, the largest."""
    worst = 0.0
    for rollout, mask in found:
        rollout.reward = 0.0
        with torch.no_grad():
            mine = policy(make_micro_batch([rollout]))[0][0]
        assert rollout.logprobs is not None
        worst = max(worst, float((mine - rollout.logprobs).abs()[mask].max()))
    return worst


@pytest.mark.thorough
def test_every_token_says_which_weights_sampled_it(
    toy: ToyServer, policy: Policy, newer: Policy, prompts: list[Prompt]
) -> None:
    with closing(VLLMServer([toy.url], **FAST)) as source:
        groups = Asked(source, policy, prompts).during(toy, lambda: source.update_weights_in_flight(newer, 7))
        assert [len(group) for group in groups] == [3] * len(prompts)
        old, new = by_weights(groups, 3), by_weights(groups, 7)
        both = [r for r, _ in old if r.versions is not None]
        assert both
        assert all(r.versions.tolist()[:3] == [3, 3, 7] for r in both if r.versions is not None)
        assert sum(int(mask.sum()) for _, mask in old + new) == sum(r.length for g in groups for r in g)
        assert gap(policy, old) < 1e-5
        assert gap(newer, new) < 1e-5
        assert gap(policy, new) > 1e-2
        for rollout in both:
            assert rollout.versions is not None
            assert rollout.policy_version == 7
            assert rollout.versions.tolist() == sorted(rollout.versions.tolist())
        assert (toy.loads, toy.paused) == (2, 2)
        source.sync_weights(newer, 7)  # the next rollout's: they are there
        assert (toy.loads, toy.paused) == (2, 2)
        asked = source.generate(newer, prompts, group_size=3, sampling=SAMPLING, draws=DRAWS, version=7)
        assert {(r.policy_version, r.versions) for group in asked for r in group} == {(7, None)}


@pytest.mark.thorough
def test_a_rollout_that_was_submitted_earlier_does_not_bring_older_weights_back(
    toy: ToyServer, policy: Policy, newer: Policy, prompts: list[Prompt]
) -> None:
    with closing(VLLMServer([toy.url], **FAST)) as source:
        Asked(source, policy, prompts).during(toy, lambda: source.update_weights_in_flight(newer, 7))
        source.sync_weights(policy, 5)
        groups = source.generate(policy, prompts, group_size=3, sampling=SAMPLING, draws=DRAWS, version=5)
        assert {r.policy_version for group in groups for r in group} == {7}
        assert gap(newer, by_weights(groups, 7)) < 1e-5
        assert toy.loads == 2
        source.sync_weights(policy, 9)  # an evaluation of other weights, averaged ones for example
        assert toy.loads == 3


@pytest.mark.thorough
def test_weights_that_do_not_arrive_leave_the_rollout_what_it_has(
    toy: ToyServer, policy: Policy, newer: Policy, prompts: list[Prompt], caplog: pytest.LogCaptureFixture
) -> None:

    def refuses(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        return (500, {"error": "out of memory"}) if route == "/pause?mode=keep&clear_cache=false" else reply

    def act() -> None:
        toy.fault = refuses
        source.update_weights_in_flight(newer, 7)
        toy._going.set()
        toy.fault = None

    with closing(VLLMServer([toy.url], **FAST)) as source:
        groups = Asked(source, policy, prompts).during(toy, act)
        assert gap(policy, by_weights(groups, 3)) < 1e-5
        assert not by_weights(groups, 7)
        assert "weights 7 were not given to requests in flight" in caplog.text
        source.sync_weights(newer, 7)
        assert toy.loads == 2


@pytest.mark.thorough
def test_tokens_of_half_replaced_weights_are_sampled_again(
    toy: ToyServer, policy: Policy, newer: Policy, prompts: list[Prompt]
) -> None:
    """The weights are read, and then their tag does not arrive: the server goes on with weights that nobody knows."""

    def breaks(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        return (500, {"error": "boom"}) if route.startswith("/reset_prefix_cache") else reply

    def act() -> None:
        toy.fault = breaks
        source.update_weights_in_flight(newer, 7)
        assert toy.tag == "unfinished"
        toy.fault = None

    with closing(VLLMServer([toy.url], **FAST)) as source:
        groups = Asked(source, policy, prompts).during(toy, act)
        old, new = by_weights(groups, 3), by_weights(groups, 7)
        assert len(new) > 0
        assert gap(policy, old) < 1e-5 if old else True
        assert gap(newer, new) < 1e-5


def test_weights_for_which_there_is_no_room_leave_the_rollout_what_it_has(
    toy: ToyServer, policy: Policy, newer: Policy, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of this project, which all ranks raise together, and which a retry or a renewal puts up with."""

    def full(*_: object, **__: object) -> Path:
        raise OSError(28, "No space left on device")

    with closing(VLLMServer([toy.url], **FAST)) as source, monkeypatch.context() as patch:

        def act() -> None:
            patch.setattr(source.weight_sync.folders, "write", full)
            source.update_weights_in_flight(newer, 7)

        groups = Asked(source, policy, prompts).during(toy, act)
        assert not by_weights(groups, 7)
        with pytest.raises(InfrastructureError, match="No space left"):
            source.sync_weights(newer, 7)


@pytest.mark.thorough
def test_newer_weights_that_are_others_on_the_server_stop_the_run(
    toy: ToyServer, policy: Policy, newer: Policy, prompts: list[Prompt]
) -> None:
    """What requests in flight have got is no rollout of anybody; no warning would take it out of what is trained on."""
    other = Policy(build_tiny_model("tiny-qwen3", seed=6), policy.tokenizer).eval()

    def wrong(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        if route == "/collective_rpc":
            toy._policy = other
        return reply

    def act() -> None:
        toy.fault = wrong
        with pytest.raises(InfrastructureError, match="differ from the trainer's"):
            source.update_weights_in_flight(newer, 7)

    with closing(VLLMServer([toy.url], **FAST)) as source:
        Asked(source, policy, prompts).during(toy, act)


def test_a_server_without_the_route_is_refused_at_once(toy: ToyServer, policy: Policy) -> None:
    toy.scale_out = False
    with (
        closing(VLLMServer([toy.url], **FAST)) as source,
        pytest.raises(UserError, match="switched off: start it with --enable-scale-out"),
    ):
        source.sync_weights(policy, 0)


@pytest.mark.parametrize(
    "spans",
    [
        None,
        [],
        [{"start": 0, "end": 4}],
        [7],
        [{"version": "a1-3-1", "start": 0, "end": 3}],
        [{"version": "a1-3-1", "start": 0, "end": 10**12}],
        [{"version": "a1-3-1", "start": 0, "end": None}],
        [{"version": "a1-3-1", "start": 1, "end": 4}],
        [{"version": "a1-3-1", "start": 0, "end": 2}, {"version": "b2-3-1", "start": 2, "end": 4}],
    ],
)
def test_tokens_of_unknown_weights_are_a_bad_reply(spans: Any) -> None:
    asked = {"n": 1, "prompt": [3], "max_tokens": 4, "stop_token_ids": [], "stop": []}
    choice = {"token_ids": [1, 2, 3, 4], "logprobs": {"token_logprobs": [-1.0] * 4}, "finish_reason": "length"}
    with pytest.raises(BadReplyError, match="weights"):
        parse({"choices": [choice | {"weight_versions": spans}]}, asked, 9, run="a1")


def test_another_prompt_than_was_sent_is_found_out(toy: ToyServer, policy: Policy) -> None:
    def shortens(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        return (200, reply[1] | {"prompt_token_ids": [3]}) if route == "/inference/v1/generate" else reply

    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        toy.fault = shortens
        with pytest.raises(InfrastructureError, match="it read another prompt than it was sent"):
            source.generate(policy, [Prompt(1, "", (3, 4))], group_size=2, sampling=SAMPLING, draws=DRAWS, version=0)


def test_older_weights_are_let_go(toy: ToyServer, policy: Policy, newer: Policy) -> None:
    """The copy that was given in flight is of no use once newer ones are asked for."""
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 3)
        renewed = copy.deepcopy(newer)
        source.update_weights_in_flight(renewed, 7)
        known = weakref.ref(renewed)
        del renewed
        source.sync_weights(newer, 9)
        gc.collect()
        assert known() is None


def test_a_server_that_cannot_forget_is_found_out(toy: ToyServer, policy: Policy) -> None:
    toy.forgets = False
    with (
        closing(VLLMServer([toy.url], **FAST)) as source,
        pytest.raises(
            (UserError, InfrastructureError), match="it could not forget what it had computed with other weights"
        ),
    ):
        source.sync_weights(policy, 0)


def test_a_server_that_does_not_say_which_weights_it_used_is_refused(toy: ToyServer, policy: Policy) -> None:
    def silent(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        if route == "/inference/v1/generate":
            for choice in reply[1]["choices"]:
                choice.pop("weight_versions")
        return reply

    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(policy, 0)
        toy.fault = silent
        with pytest.raises(InfrastructureError, match="does not say which weights sampled each token"):
            source.generate(policy, [Prompt(1, "", (3, 4))], group_size=2, sampling=SAMPLING, draws=DRAWS, version=0)


@pytest.mark.parametrize("route", ["/pause?mode=keep&clear_cache=false", "/resume"])
@pytest.mark.parametrize("again", [True, False])
def test_a_server_goes_on_although_it_did_not_say_that_it_would(
    toy: ToyServer, policy: Policy, prompts: list[Prompt], route: str, again: bool
) -> None:
    """An answer is lost, and who stays paused would be waited for in vain."""
    lost = 0

    def loses(asked: str, body: dict[str, Any], reply: Reply) -> Reply:
        nonlocal lost
        if asked != route or lost:
            return reply
        lost += 1
        if route == "/resume":
            toy._going.clear()
        return 500, {"error": "lost"}

    with closing(VLLMServer([toy.url], **FAST | {"retries": int(again)})) as source:
        source.sync_weights(policy, 0)
        source.servers.pool.servers[0].ready, toy.tag = False, "default"  # it was started anew
        toy.fault = loses
        with nullcontext() if again else pytest.raises(InfrastructureError, match="lost"):
            source.generate(policy, prompts[:1], group_size=2, sampling=SAMPLING, draws=DRAWS, version=0)
    assert lost
    assert toy._going.is_set() or (route == "/resume" and not again)


def test_a_server_goes_on_when_who_has_paused_it_closes(toy: ToyServer, policy: Policy) -> None:
    at_it = threading.Event()

    def slow(route: str, body: dict[str, Any], reply: Reply) -> Reply:
        if route == "/collective_rpc":
            at_it.set()
            time.sleep(0.5)
        return reply

    toy.fault = slow
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.open(64)
        source.servers.pool.weights = Weights(source.weight_sync.folders.write(policy), "a1-0-1")
        work = source.servers.loop.submit(source.servers.pool.ask(lambda known: known.client.weights()))
        assert at_it.wait(10)
        work.cancel()
    assert toy._going.is_set()


def test_newer_nccl_weights_are_never_sent_under_an_older_tag(
    toy: ToyServer, policy: Policy, newer: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is brought back with the weights of a rollout while newer ones are made ready for it."""
    sent: list[Policy] = []

    async def send(self: Sender, server: Server, policy: Policy, *_: object, **__: object) -> None:
        sent.append(policy)

    monkeypatch.setattr(Sender, "send", send)
    weight_sync = WeightSync(WeightFolders(str(tmp_path), in_memory=False), "a1", 10.0, in_flight=True)
    weight_sync.transport = "nccl"
    older, new = (weight_sync.prepare(p, torch.float32, v) for p, v in ((policy, 3), (newer, 7)))

    async def deliver(weights: Weights) -> None:
        known = Server(Client(Endpoint(toy.url), 5.0, 5.0))
        try:
            await weight_sync.deliver(known, weights)
        finally:
            await known.client.close()

    with pytest.raises(ServerError, match="those that it had are gone here, too"):
        asyncio.run(deliver(older))
    assert (toy.tag, sent) == ("default", [])
    asyncio.run(deliver(new))
    assert (toy.tag, sent) == (new.tag, [newer])


def test_weights_that_were_gathered_and_let_go_are_not_sent(policy: Policy, newer: Policy, tmp_path: Path) -> None:
    """A server is lost while shards are trained; the policy of its weights may hold other ones by then."""
    weight_sync = WeightSync(WeightFolders(str(tmp_path), in_memory=False), "a1", 10.0)
    weight_sync.transport = "nccl"
    weights = weight_sync.prepare(policy, torch.float32, 3)
    assert weight_sync.holder(weights.tag) is policy
    embedding = policy.model.get_input_embeddings()
    embedding.weight = torch.nn.Parameter(torch.randn_like(embedding.weight), requires_grad=False)
    assert weight_sync.holder(weights.tag) is None
    weight_sync.hold(newer)
    assert weight_sync.holder(weights.tag) is None
    weight_sync.hold(policy)  # gathered anew: the same weights
    assert weight_sync.holder(weights.tag) is policy


def of_another_rank(toy: ToyServer, tag: str, silence_s: float = 5.0) -> tuple[Pool, Server]:
    """What a rank that is not the first one has of a server; ``tag``: the weights that it was told of."""
    known = Server(Client(Endpoint(toy.url), 5.0, 5.0))
    pool = Pool([known], Faults(0, 0.01, 5.0, 5.0, silence_s), None, in_flight=True)
    pool.weights = Weights(Path("/nowhere"), tag)
    return pool, known


async def asked_once(pool: Pool) -> str:
    """The tag of the server as a request finds it."""
    try:
        tag: str = await pool.ask(lambda asked: asked.client.weights())
        await pool.check_weights()
        return tag
    finally:
        await pool.close()


def test_other_ranks_leave_a_server_alone_whose_weights_are_being_replaced(toy: ToyServer) -> None:
    """They would put older weights over those that the first rank is about to name."""

    async def run() -> str:
        pool, _ = of_another_rank(toy, "a1-3-1")
        toy.tag = UNFINISHED
        asyncio.get_running_loop().call_later(0.6, setattr, toy, "tag", "a1-7-2")
        return await asked_once(pool)

    assert asyncio.run(run()) == "a1-7-2"
    assert (toy.paused, toy.loads) == (0, 0)


def test_a_rollout_of_another_rank_may_end_while_weights_are_being_replaced(toy: ToyServer) -> None:
    async def run() -> None:
        pool, known = of_another_rank(toy, "a1-3-1")
        known.ready, toy.tag = True, UNFINISHED
        await asked_once(pool)
        assert known.ready

    asyncio.run(run())


def test_a_request_can_be_cancelled_while_weights_are_being_replaced(toy: ToyServer) -> None:
    """One group of a rollout has failed: the others are given up, and not asked for anew."""

    async def run() -> None:
        pool, known = of_another_rank(toy, "a1-3-1")
        toy.tag, asked = "a1-3-1", asyncio.Event()

        async def answer(_: Server) -> None:
            asked.set()
            await asyncio.Event().wait()

        request = asyncio.create_task(pool.ask(answer))
        await asked.wait()
        known.ready = False
        request.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await request
        finally:
            await pool.close()

    asyncio.run(run())


def test_other_ranks_wait_for_the_first_to_give_weights_and_not_for_ever(toy: ToyServer) -> None:
    for tag in ("default", UNFINISHED):
        toy.tag = tag
        with pytest.raises(InfrastructureError, match="only the first rank gives them"):
            asyncio.run(asked_once(of_another_rank(toy, "a1-3-1", silence_s=0.1)[0]))
    assert (toy.paused, toy.loads) == (0, 0)


def test_a_rank_that_is_not_the_first_gives_no_weights(
    toy: ToyServer, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [Endpoint(toy.url)], Weights(Path("/nowhere"), "a1-3-1")
    for module in (server, gathering):
        monkeypatch.setattr(module, "rank_and_world", lambda: (1, 2))
    monkeypatch.setattr(server, "all_gather_objects", lambda value: [told if value is None else value])
    with closing(VLLMServer([toy.url], **FAST)) as source:
        with pytest.raises(InfrastructureError, match="only the first rank gives them"):
            source.sync_weights(policy, 3)
        toy.tag = "a1-7-2"
        source.sync_weights(policy, 3)
    assert (toy.paused, toy.loads) == (0, 0)


@pytest.mark.parametrize(
    ("rollouts", "arguments", "says"),
    [
        ({"weights_in_flight": True}, [], "data.rollouts.weights_in_flight: is true, but nothing is sampled while"),
        (
            {"weights_in_flight": True, "options": {"enable_lora": True}},
            ["--data.max_staleness=1"],
            "a request keeps the adapters that it began with",
        ),
        ({"weights_in_flight": True, "routed_experts": True}, ["--data.max_staleness=1"], "use one of the two"),
    ],
)
def test_weights_in_flight_refuse_settings_that_they_exclude(
    rollouts: dict[str, Any], arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = [f"--data.rollouts={_source(rollouts | {'urls': ['http://127.0.0.1:9']})}"]
    runs.fit(tmp_path, *runs.UNTAUGHT, *source, *arguments, code=2)
    assert says in " ".join(capsys.readouterr().err.split())


class Twice(Environment):
    """Two turns, between which it waits for other weights."""

    waits, newer = threading.Event(), threading.Event()

    async def reset(self, prompt: Prompt) -> list[dict[str, str]]:
        self.heard = 0
        return []

    async def step(self, completion: str) -> Any:
        self.heard += 1
        self.waits.set()
        while not self.newer.is_set():
            await asyncio.sleep(0.01)
        return [{"role": "user", "content": "+1="}], 1.0, self.heard == 2

    def fresh(self) -> Twice:
        return Twice()


@pytest.mark.thorough
def test_tokens_of_a_conversation_say_which_weights_sampled_them(
    toy: ToyServer, policy: Policy, newer: Policy, prompts: list[Prompt]
) -> None:
    """New weights come after the first turn; the second is theirs alone."""
    source = EnvironmentRollouts(Twice(), VLLMServer([toy.url], **FAST))
    assert source.updates_in_flight
    with closing(source):
        asked = Asked(source, policy, prompts)
        asked.start()
        assert Twice.waits.wait(20.0)
        source.update_weights_in_flight(newer, 7)
        Twice.newer.set()
        asked.join(30)
    groups = asked.groups
    assert [len(group) for group in groups] == [3] * len(prompts)
    assert any(len(r.turn_ends) == 2 for group in groups for r in group)
    old = [(r, mask & r.response_mask) for r, mask in by_weights(groups, 3)]
    new = [(r, mask & r.response_mask) for r, mask in by_weights(groups, 7)]
    assert gap(policy, old) < 1e-5
    assert gap(newer, new) < 1e-5
    for rollout, _ in new:
        assert rollout.versions is not None
        assert rollout.versions.tolist() == sorted(rollout.versions.tolist())
        if len(rollout.turn_ends) == 2:
            second = torch.arange(len(rollout.token_ids)) >= rollout.turn_ends[0]
            assert set(rollout.versions[second & rollout.response_mask].tolist()) == {7}


class Wrapper(RolloutSource):
    """A plug-in that lets another source speak, and forgets what it was sampled with."""

    def __init__(self, source: RolloutSource) -> None:
        self.source = source

    def generate(self, policy: Policy, prompts: Sequence[Prompt], **options: Any) -> list[list[Rollout]]:
        return self.source.generate(policy, prompts, **options)


def test_a_wrapper_that_does_not_say_so_is_refused() -> None:
    outer = Wrapper(VLLMServer(["http://127.0.0.1:9"], weights_in_flight=True))
    with pytest.raises(UserError, match="behind Wrapper, which does not say"):
        check_sources(ExperienceSettings(max_staleness=1), outer, {}, (), "conversation")


@pytest.mark.thorough
def test_a_run_trains_on_fresher_tokens(tmp_path: Path) -> None:
    """A rollout takes longer than the updates beside it, so what is left of it is sampled from the newest weights."""
    with ToyServer(pace_s=0.06) as toy:
        source = _source({"urls": [toy.url], "weights_in_flight": True, "timeout_s": 60})
        run = runs.fit(
            tmp_path, *runs.UNTAUGHT, f"--data.rollouts={source}", "--data.max_staleness=1", "--trainer.max_epochs=2",
            "--data.val=null", "--trainer.num_sanity_val_steps=0", "--data.max_response_tokens=24",
            "--model.optimizer.lr=0.003", "--model.objective.correction=sequence",
        )  # fmt: skip
    scalars = runs.scalars(run)
    assert toy.loads == 2
    before, after = ([age for _, age in scalars["staleness/mean_age"]][i] for i in (0, 2))
    assert before == 0.0
    assert 0 < after < 1.95  # two without it (tests/runs/test_flight.py)
    assert [v for s, v in scalars["ratio/log_sequence_std"] if s % 2 == 1] == [0.0] * 2  # old: the start of training


def _source(init_args: dict[str, Any]) -> str:
    return json.dumps({"class_path": "VLLMServer", "init_args": init_args})
