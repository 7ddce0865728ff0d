"""Weights of shards go to servers a bucket at a time: memory, equality after an update, a rank that is killed."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.simulated.ranks import Held, WithoutTrainer
from gspo_lightning.core.distributed import local
from gspo_lightning.core.types import WeightsOn
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.gathering import WeightStream, leading
from gspo_lightning.policy.strategies.sharding import full_weights, gathered
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.rollouts import VLLMServer
from gspo_lightning.rollouts.serving import streamed
from gspo_lightning.rollouts.serving.streamed import StreamedWeights
from gspo_lightning.rollouts.serving.weights import in_checkpoint_format
from gspo_lightning.rollouts.vllm.transfer import CheckpointWeights
from tests.rollouts.toy_server import ToyServer
from tests.runs.processes import SERVER
from tests.runs.ranks import two_ranks

BUCKET = 1 << 18
LAYERS = {"num_hidden_layers": 16, "tie_word_embeddings": False}
CPU = torch.device("cpu")


def sharded(rank: int) -> Policy:
    del rank
    model = build_tiny_model("tiny-qwen3", seed=3, overrides=LAYERS)
    return WithoutTrainer(2).shard(Policy(model, character_tokenizer()))


def size(policy: Policy) -> int:
    return sum(local(p).nbytes for p in policy.parameters())


def changed(policy: Policy) -> None:
    """An update of the shards."""
    with torch.no_grad():
        for number, weight in enumerate(policy.parameters()):
            weight.mul_(1 + number / 1000)


def files(folder: Path) -> dict[str, Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def _by_files(rank: int, url: str) -> Any:
    policy, result = sharded(rank), []
    with mock.patch.object(streamed, "BUCKET", BUCKET), closing(VLLMServer([url])) as source:
        for version in (1, 2):
            changed(policy)
            with gathered(policy, source.weights_on) as twin, Held() as held:
                source.sync_weights(twin, version)
            expected = dict(full_weights(policy, CPU))
            if rank == 0:
                (folder,) = source.weight_sync.folders._made
                found = files(folder)
                assert len(list(folder.glob("model-*.safetensors"))) > 5
                assert found.keys() == expected.keys()
                assert all(torch.equal(found[name], value) for name, value in expected.items())
            result.append((held.most, size(policy), sum(value.nbytes for value in expected.values())))
    return result


@pytest.mark.thorough
def test_by_files_no_rank_holds_more_than_its_shards_and_two_buckets() -> None:
    with ToyServer() as toy:
        found = two_ranks(_by_files, toy.url)
        assert toy.loads == 2, found
    for rank in found:
        for above, shards, whole in rank:
            assert shards + above <= 1.1 * (shards + 2 * BUCKET), (above, shards, whole)
            assert shards + 2 * BUCKET < 0.8 * whole, "the test could not fail"


def _packed(rank: int) -> Any:
    """What vLLM's packing does for NCCL and IPC: tensors are collected up to a buffer, and copied into it."""
    policy = sharded(rank)
    changed(policy)
    with gathered(policy, WeightsOn.STREAMED) as twin, leading(twin) as leads, Held() as held:
        if leads:
            source, got, waiting = CheckpointWeights(), dict[str, bytes](), list[tuple[str, Tensor]]()
            source.follow(StreamedWeights(twin), torch.float32)
            names = list(source._state)

            def pack() -> None:
                buffer = torch.cat([value.flatten() for _, value in waiting])
                sizes = [value.numel() for _, value in waiting]
                for (name, _), piece in zip(waiting, buffer.split(sizes), strict=True):
                    got[name] = piece.numpy().tobytes()
                waiting.clear()

            filled = 0
            for name, value in source:
                if filled + value.nbytes > BUCKET:
                    pack()
                    filled = 0
                filled += value.nbytes
                waiting.append((name, value))
                del value
            pack()
            assert list(got) == names
            above = held.most
    expected = {name: value.numpy().tobytes() for name, value in full_weights(policy, CPU)}
    return (above, size(policy), got == expected) if rank == 0 else (held.most, size(policy), True)


def test_from_gpu_to_gpu_no_rank_holds_more_than_its_shards_and_two_buckets() -> None:
    for above, shards, equal in two_ranks(_packed):
        assert shards + above <= 1.1 * (shards + 2 * BUCKET), (above, shards)
        assert equal


def adapted() -> Policy:
    model = build_tiny_model("tiny-qwen3", seed=3)
    add_adapters(model, LoRA(r=2, alpha=6), seed=0)
    with torch.no_grad():
        for number, (name, weight) in enumerate(model.named_parameters()):
            if "lora_B" in name:
                weight.add_(torch.linspace(-1, 1, weight.numel()).view_as(weight) * (1 + number / 50))
    return Policy(model, character_tokenizer())


def _adapters(rank: int, url: str) -> Any:
    """Adapters alone, or merged where the server takes none; the probe compares the server with the shards."""
    plain, policy = adapted(), WithoutTrainer(2).shard(adapted())
    with mock.patch.object(streamed, "BUCKET", BUCKET), closing(VLLMServer([url])) as source:
        for version in (1, 2):
            with torch.no_grad():
                for one in (plain, policy):
                    for name, weight in one.named_parameters():
                        weight.mul_(1.3 if "lora_" in name else 1.0)
            with gathered(policy, source.weights_on) as twin:
                source.sync_weights(twin, version)
        if rank != 0:
            return []
        expected, base = in_checkpoint_format(plain), in_checkpoint_format(plain, adapters=False)
        found = {folder.name.partition("-")[0]: files(folder) for folder in source.weight_sync.folders._made}
        if "adapters" not in found:
            return [same(found["weights"], expected)]
        loras = {name: value.detach() for name, value in plain.model.named_parameters() if "lora_" in name}
        mine = {
            name.removeprefix("base_model.model.").replace(".weight", ".default.weight"): value
            for name, value in found["adapters"].items()
        }
        return [same(found["weights"], base), same(mine, loras)]


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    return all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.thorough
@pytest.mark.parametrize("alone", [True, False])
def test_adapters_of_shards_go_alone_or_merged(alone: bool) -> None:
    with ToyServer(lora=alone) as toy:
        assert two_ranks(_adapters, toy.url) == [[True] * (2 if alone else 1), []]
        assert toy.loads == (1 if alone else 3)  # the frozen weights, and merged ones once they are refused


def _killed(rank: int, store: str, url: str, results: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    policy = sharded(rank)
    source = VLLMServer([url])
    gather = WeightStream._gathered

    def dies(self: WeightStream, adapters_only: bool) -> Any:
        for number, _ in enumerate(policy.parameters()):
            if number == 100:
                os.kill(os.getpid(), signal.SIGKILL)
            yield from ()
        yield from gather(self, adapters_only)

    with gathered(policy, source.weights_on) as twin:
        source.sync_weights(twin, 1)
        changed(policy)
        with mock.patch.object(WeightStream, "_gathered", dies if rank else gather):
            try:
                source.sync_weights(twin, 2)
            except Exception as error:
                results.put(f"{type(error).__name__}: {error}")
                results.close()
                results.join_thread()
    os._exit(0)


@pytest.mark.thorough
def test_a_rank_that_is_killed_ends_the_others_and_leaves_the_server_with_its_weights() -> None:
    results = SERVER.Queue()
    with ToyServer() as toy, tempfile.TemporaryDirectory() as folder:
        arguments = f"file://{folder}/store", toy.url, results
        ranks = [SERVER.Process(target=_killed, args=(rank, *arguments)) for rank in range(2)]
        for process in ranks:
            process.start()
        try:
            said = results.get(timeout=60)
        finally:
            for process in ranks:
                process.join(20)
                process.kill()
        assert "RuntimeError" in said, said
        assert ranks[1].exitcode == -signal.SIGKILL
        assert toy.loads == 1
        assert toy.tag != "unfinished"


@pytest.mark.parametrize("sizes", [[], [5], [1, 2, 3, 4], [9, 1, 9], [3] * 50])
def test_buckets_take_everything_once_and_no_more_than_their_size(sizes: list[int]) -> None:
    counts = streamed.buckets(sizes, 8)
    assert sum(counts) == len(sizes)
    rest = list(sizes)
    for count in counts:
        bucket, rest = rest[:count], rest[count:]
        assert count == 1 or sum(bucket) <= 8
