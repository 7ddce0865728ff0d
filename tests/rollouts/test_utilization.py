"""How long servers wait for the trainer, by a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, VLLMServer
from gspo_lightning.rollouts.serving.pool import Utilization
from tests.rollouts.toy_server import ToyServer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_share_of_time_without_a_request() -> None:
    clock = Clock()
    server = Utilization(clock)
    assert server.idle_share() == 1.0
    clock.now = 110.0
    server.begin()  # what was before is not measured
    clock.now = 112.0
    server.begin()
    clock.now = 113.0
    server.end()
    clock.now = 114.0
    server.end()  # busy from 110 to 114
    clock.now = 120.0
    assert server.idle_share() == pytest.approx(0.6)
    clock.now = 121.0
    server.begin()
    clock.now = 125.0
    assert server.idle_share() == pytest.approx(0.2)  # under way when it is asked
    clock.now = 126.0
    assert server.idle_share() == 0.0
    server.end()
    clock.now = 130.0
    assert server.idle_share() == pytest.approx(1.0)


@pytest.fixture
def toy() -> Iterator[ToyServer]:
    with ToyServer() as server:
        yield server


def test_a_source_measures_it_over_its_servers(toy: ToyServer, policy: Policy, prompts: list[Prompt]) -> None:
    with closing(VLLMServer([toy.url])) as source:
        source.sync_weights(policy, 0)
        source.generate(
            policy, prompts, group_size=2, sampling=SamplingParams(6), draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
        )
        (server,) = source.servers.pool.servers
        clock = Clock()
        server.utilization = Utilization(clock)
        server.utilization.begin()
        clock.now += 3.0
        server.utilization.end()
        clock.now += 1.0
        assert source.measured() == {"throughput/server_idle_share": pytest.approx(0.25)}
