"""vLLM on this device: sleep and wake of the engine in this process, and each way by which weights reach servers.

The source itself checks what arrives: a probe compares log-probabilities with the policy's after every hand-over.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import torch

from benchmarks.gpu_parts import Bench
from benchmarks.models import Shape, word_tokenizer
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, RolloutSource, VLLMEngine, VLLMServer

__all__ = ["check_engine", "check_ways"]

TOY = Shape(64, 64, 2, 2, 2, 32, 128)
"""With heads as large as vLLM wants them on a CPU."""
SAMPLING = SamplingParams(32)
LONG = 192
"""Tokens of a response that gets new weights in the middle."""


def check_engine(bench: Bench) -> dict[str, Any]:
    """Seconds of each hand-over, and GiB that the engine gives back while it sleeps.

    Raises:
        RuntimeError: it does not sleep, or does not give its weights and its cache back.
    """
    if (missing := _missing(bench)) is not None:
        return {"skipped": missing}
    policy = _policy(bench)
    found: dict[str, Any] = {}
    with closing(VLLMEngine(gpu_memory_utilization=0.3)) as source:
        source.open(256)
        for version in range(3):
            found[f"hand_over_{version}_s"] = _timed(bench, source.sync_weights, policy, version)
            found[f"decode_{version}_s"] = _timed(bench, _sample, source, policy, version)
            before = _free(bench)
            found[f"sleep_{version}_s"] = _timed(bench, source.sleep)
            found["given_back_gib"] = (_free(bench) - before) / 2**30
            with torch.no_grad():
                for weight in policy.parameters():
                    weight.mul_(1.02)
        total = 0.0 if bench.toy else torch.cuda.get_device_properties(0).total_memory / 2**30
        if found["given_back_gib"] < 0.2 * total:
            raise RuntimeError(f"the sleeping engine gave back {found['given_back_gib']:.1f} of {total:.0f} GiB")
    return found


def check_ways(bench: Bench) -> dict[str, Any]:
    """Seconds of the first hand-over to a server, with its start, and of later ones: by files, CUDA IPC, and NCCL."""
    if (missing := _missing(bench)) is not None:
        return {"skipped": missing}
    found: dict[str, Any] = {}
    ways: list[tuple[Any, list[str] | None]] = [("files", None)]
    if not bench.toy:
        ways.append(("ipc", None))
        if torch.cuda.device_count() > 1:
            ways.append(("nccl", ["1"]))
        else:
            found["nccl"] = {"skipped": "needs a second GPU"}
    policy = _policy(bench)
    for way, gpus in ways:
        options = {} if bench.toy else {"gpu_memory_utilization": 0.3, "enforce_eager": True}
        with closing(VLLMServer(transfer=way, gpus=gpus, options=options, weights_in_flight=True)) as source:
            source.open(LONG + 64)
            seconds = [_timed(bench, source.sync_weights, policy, n) for n in range(3)]
            found[way] = {"first_s": seconds[0], "later_s": min(seconds[1:]), **_in_flight(bench, source, policy, 2)}
    return found


def _in_flight(bench: Bench, source: VLLMServer, policy: Policy, version: int) -> dict[str, float]:
    """Seconds of a hand-over in the middle of a rollout, and the share of its tokens that the new weights sampled.

    Raises:
        RuntimeError: tokens have log-probabilities that the weights which sampled them do not give them.
    """
    newer = policy.frozen_copy().eval()
    with torch.no_grad():
        for weight in newer.parameters():
            weight.mul_(1.02)
    client = source.servers.pool.servers[0].client
    before = source.servers.loop.run(client.progress()) or 0.0
    with ThreadPoolExecutor(1) as pool:
        rollout = pool.submit(_sample, source, policy, version, SamplingParams(LONG))
        while not rollout.done() and (source.servers.loop.run(client.progress()) or 0.0) < before + 1000:
            time.sleep(0.005)
        seconds = _timed(bench, source.update_weights_in_flight, newer, version + 1)
        rollouts = [r for group in rollout.result() for r in group]
    found: dict[str, float] = {"in_flight_s": seconds}
    for weights, number, name in ((policy, version, "old"), (newer, version + 1, "new")):
        gaps = [_gaps(weights, r)[_versions(r) == number] for r in rollouts]
        own = torch.cat(gaps)
        found[f"in_flight_{name}_share"] = len(own) / sum(r.length for r in rollouts)
        if len(own) and not float(own.mean()) <= (1e-3 if bench.toy else 0.1):
            raise RuntimeError(f"tokens of the {name} weights are {float(own.mean()):.2g} nats off on average")
    return found


def _versions(rollout: Rollout) -> torch.Tensor:
    if rollout.versions is not None:
        return rollout.versions
    return torch.full_like(rollout.token_ids, rollout.policy_version)


@torch.no_grad()
def _gaps(policy: Policy, rollout: Rollout) -> torch.Tensor:
    """Nats between what the server reported of each token and what these weights give it."""
    rollout.reward = 0.0
    batch = make_micro_batch([rollout]).to(policy.device)
    assert batch.behaviour_logprobs is not None
    return (policy(batch, SAMPLING.temperature)[0] - batch.behaviour_logprobs).abs()[0].float().cpu()


def _missing(bench: Bench) -> str | None:
    if importlib.util.find_spec("vllm") is None:
        return "vllm is not installed"
    if bench.toy and torch.cuda.is_available():
        return "vllm computes on the GPU, a toy does not"
    return None


def _policy(bench: Bench) -> Policy:
    shape, dtype = (TOY, torch.float32) if bench.toy else (bench.shape("0.6b"), torch.bfloat16)
    return Policy(bench.model(shape).to(dtype), word_tokenizer(shape.vocabulary)).eval()


def _sample(
    source: RolloutSource, policy: Policy, version: int, sampling: SamplingParams = SAMPLING
) -> list[list[Rollout]]:
    rows = [Prompt(i, "", tuple(range(3 + i, 19 + i))) for i in range(8)]
    return source.generate(policy, rows, group_size=8, sampling=sampling, draws=Draws(version), version=version)


def _timed(bench: Bench, work: Callable[..., Any], *arguments: Any) -> float:
    bench.sync()
    start = time.perf_counter()
    work(*arguments)
    bench.sync()
    return time.perf_counter() - start


def _free(bench: Bench) -> int:
    """Bytes of the device that nobody has."""
    if bench.toy:
        return 0
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])
