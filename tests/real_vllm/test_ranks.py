"""One engine per rank in real processes, and one engine over several workers."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.simulated.ranks import WithoutTrainer
from gspo_lightning.core.types import Prompt
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import gathered
from gspo_lightning.rollouts import VLLMEngine, VLLMServer
from gspo_lightning.rollouts.serving import streamed
from tests.real_vllm import served

pytestmark = served.VLLM
GROUP = 2


def sums(policy: Policy) -> list[Prompt]:
    texts = [f"{i}+1=" for i in range(4)]
    return [Prompt(i, text, tuple(policy.tokenizer(text)["input_ids"])) for i, text in enumerate(texts)]


def on_a_rank(rank: int, world: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank}
    os.environ |= {name: str(value) for name, value in place.items()}
    dist.init_process_group("gloo")
    policy = served.tiny_policy()
    prompts = sums(policy)
    with closing(VLLMEngine(options={"block_size": served.BLOCK}, exact_seeds=True)) as source:
        source.open(128)
        source.sync_weights(policy, served.VERSION)
        own = served.sample(source, policy, prompts[rank::world], GROUP)
        assert served.largest_gap(policy, own) < 1e-5
        for _ in range(2 * rank):  # ranks sample as often as they like
            served.sample(source, policy, prompts[:1], GROUP)
        alone = served.sample(source, policy, prompts, GROUP) if rank == 0 else []
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(1.2)
        source.sync_weights(policy, served.VERSION + 1)
        newer = served.sample(source, policy, prompts[rank::world], GROUP, version=served.VERSION + 1)
        assert served.largest_gap(policy, newer) < 1e-5
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == (str(rank), str(rank))
    total = torch.ones(1)
    dist.all_reduce(total)  # the engine has ended, the ranks have not
    assert float(total) == world
    torch.save({"own": served.tokens(own), "alone": served.tokens(alone)}, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_sample_with_an_engine_each_what_one_samples_alone(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(on_a_rank, (2, port, tmp_path), nprocs=2, start_method="spawn")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    alone = first["alone"]
    assert [*first["own"][:GROUP], *second["own"][:GROUP]] == alone[: 2 * GROUP]
    assert [*first["own"][GROUP:], *second["own"][GROUP:]] == alone[2 * GROUP :]


def with_shards(rank: int, world: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank}
    os.environ |= {name: str(value) for name, value in place.items()}
    dist.init_process_group("gloo")
    plain, policy = served.tiny_policy(), WithoutTrainer(world).shard(served.tiny_policy())
    prompts = sums(plain)[rank::world]
    gaps = []
    with mock.patch.object(streamed, "BUCKET", 1 << 15), closing(VLLMServer(**served.QUICK_START)) as source:
        source.open(128)
        for version in (served.VERSION, served.VERSION + 1):
            with torch.no_grad():
                for one in (plain, policy):
                    for weight in one.parameters():
                        weight.mul_(1.1)
            with gathered(policy, source.weights_on) as twin:
                source.sync_weights(twin, version)
                rows = served.sample(source, twin, prompts, GROUP, version=version)
            gaps.append(served.largest_gap(plain, rows))
    torch.save(gaps, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_a_server_samples_from_the_weights_of_two_ranks_shards(tmp_path: Path) -> None:
    """By files, a bucket at a time; each rank samples from the one server after each of two updates."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(with_shards, (2, port, tmp_path), nprocs=2, start_method="spawn")
    gaps = [gap for rank in range(2) for gap in torch.load(tmp_path / f"{rank}.pt")]
    assert len(gaps) == 4
    assert max(gaps) < 1e-5


@pytest.mark.long
def test_an_engine_over_two_workers_has_the_newest_weights(
    policy: Policy, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # a core for each
    options = {"block_size": served.BLOCK, "tensor_parallel_size": 2}
    with closing(VLLMEngine(options=options, exact_seeds=True)) as source:
        source.open(128)
        source.sync_weights(policy, served.VERSION)
        served.check_that_weights_arrive(source, policy, prompts)
