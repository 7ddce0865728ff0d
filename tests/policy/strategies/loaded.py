"""Ranks that load and gather a model by rank 0, compared with a model that every rank loads; prints JSON.

They also replay routes, and their gradients are compared with those of one process.

A process of its own, ``python -m tests.policy.strategies.loaded RANKS``: ranks are forked before anything is computed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from transformers import Phi3Config, Phi3ForCausalLM

from benchmarks.simulated.ranks import WithoutTrainer, traffic_of
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, WeightsOn
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import Replay
from gspo_lightning.policy.strategies import FSDPStrategy, Sharding, loading
from gspo_lightning.policy.strategies.gathering import leading
from gspo_lightning.policy.strategies.sharding import full_weights, gathered
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.training import build
from tests.policy.strategies.sent import compare_sent
from tests.support.model_families import COMMON

LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0],
            "original_max_position_embeddings": 16, "rope_theta": 10000.0}  # fmt: skip


CASES = ["tied", "not tied", "mixture", "adapters", "bfloat16", "longrope", "not sent"]


def settings_of(name: str, folder: Path) -> ModelSettings:
    if name == "longrope":
        return ModelSettings(str(folder / "phi"))
    return {
        "tied": ModelSettings("tiny-qwen3", config_overrides={"tie_word_embeddings": True}),
        "not tied": ModelSettings("tiny-qwen3", config_overrides={"tie_word_embeddings": False}),
        "mixture": ModelSettings("tiny-qwen3-moe", gradient_checkpointing=True),
        "adapters": ModelSettings("tiny-qwen3", gradient_checkpointing=True, lora=LoRA(r=4)),
        "bfloat16": ModelSettings("tiny-qwen3", dtype="bfloat16"),
        "not sent": ModelSettings("tiny-qwen3"),
        "pictures": ModelSettings("tiny-qwen3-vl", freeze=[]),
    }[name]


def made(settings: ModelSettings, *, on_first_rank: bool, replay: Replay | None = None) -> Policy:
    moe = "moe" in settings.name_or_path
    return build.build_policy(
        settings, replay=replay or ("R2" if moe else "off"), router_metrics=None, router_aux_loss_coef=0.0, longest=40,
        device=torch.device("cpu"), dtype=None, on_first_rank=on_first_rank,
    )  # fmt: skip


def tensors(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """All that a forward pass reads and no parameter is: buffers, and tensors that are plain attributes."""
    for path, module in policy.model.named_modules():
        for name, value in [*vars(module).items(), *module._buffers.items()]:
            if isinstance(value, Tensor):
                yield f"{path}.{name}", value


def logprobs(policy: Policy) -> Tensor:
    """Of a policy, or of one whose stream leads."""
    ids = torch.arange(3, 15)
    row = Rollout(Prompt(0, "", tuple(range(2, 9))), 0, ids, None, torch.ones(12, dtype=torch.bool),
                  FinishReason.LENGTH, 0, reward=0.0)  # fmt: skip
    with torch.no_grad():
        batch = make_micro_batch([row])
        found: Tensor = policy(batch, 1.0)[0] if policy.stream is None else policy.stream.logprobs(batch, 1.0)
    return found


def same(found: dict[str, Tensor], expected: dict[str, Tensor], what: str) -> None:
    assert found.keys() == expected.keys(), f"{what}: {found.keys() ^ expected.keys()}"
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, f"{what} {name}: {found[name].dtype}"
        assert torch.equal(found[name], value), f"{what} {name} differs"


def tied(policy: Policy) -> bool:
    return policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight


def compare(settings: ModelSettings, strategy: WithoutTrainer, *, sent: bool = True) -> None:
    """Raises AssertionError where the two ways of loading differ on this rank."""
    rank, cpu = dist.get_rank(), torch.device("cpu")
    plain = made(settings, on_first_rank=False)
    weights, buffers, expected = dict(full_weights(plain, cpu)), dict(tensors(plain)), logprobs(plain)
    policy = made(settings, on_first_rank=True)
    wanted = "meta" if rank and sent else "cpu"
    assert {p.device.type for p in policy.parameters()} == {wanted}, "where weights are before they are sharded"
    assert policy.training
    assert (policy.packed, policy.routing, policy.disabled_dropout) == (
        plain.packed,
        plain.routing,
        plain.disabled_dropout,
    )
    assert tied(policy) == tied(plain), "tied before"
    trained = {name: p.requires_grad for name, p in plain.named_parameters()}
    policy = strategy.shard(policy)
    assert {name: p.requires_grad for name, p in policy.named_parameters()} == trained
    assert tied(policy) == tied(plain), "tied"
    same(dict(full_weights(policy, cpu)), weights, "weights")
    same(dict(tensors(policy)), buffers, "buffers of shards")
    with gathered(policy) as every:
        same(dict(tensors(every)), buffers, "buffers")
        assert torch.equal(logprobs(every), expected), "log-probabilities"
    with gathered(policy, WeightsOn.STREAMED) as first, leading(first) as leads:
        assert leads == (rank == 0)
        assert {p.device.type for p in first.parameters()} == {"meta"}
        assert tied(first) == tied(plain), "tied"
        if leads:
            for number in range(2):
                streamed = dict(first.stream.weights())
                assert streamed.keys() == weights.keys(), f"names, pass {number}"
                same(streamed, weights, f"weights, pass {number}")
                assert torch.equal(logprobs(first), expected), "log-probabilities from shards"
            given_up = first.stream.weights()
            next(given_up)  # what is left of a pass is gathered before anything else
    with gathered(policy, WeightsOn.FIRST_RANK) as first:
        assert {p.device.type for p in first.parameters()} == {"meta" if rank else "cpu"}
        if rank == 0:
            assert torch.equal(logprobs(first), expected), "log-probabilities of the first rank"
    with gathered(policy, WeightsOn.NO_RANK) as nobody:
        assert {p.device.type for p in nobody.parameters()} == {"meta"}
    assert torch.equal(logprobs(policy), expected), "log-probabilities of shards"


def cannot_be_sent(settings: ModelSettings, strategy: WithoutTrainer) -> None:
    """A model with something that no pickle takes is loaded by every rank, and that is said."""
    load, said = build.load_policy, list[str]()

    def with_closure(given: ModelSettings) -> Policy:
        policy = load(given)
        policy.model.note = lambda: None
        return policy

    with (
        mock.patch.object(build, "load_policy", with_closure),
        mock.patch.object(loading.log, "warning", lambda text, *words: said.append(text % words)),
    ):
        compare(settings, strategy, sent=False)
    assert bool(said) == (dist.get_rank() == 0), said
    assert all(text.startswith("every rank loads the whole model, because its modules cannot be sent") for text in said)


def refused(_: ModelSettings, __: WithoutTrainer) -> None:
    """What the first rank finds wrong, every rank raises."""
    with pytest.raises(UserError, match="'sliding' is not a field"):
        made(ModelSettings("tiny-qwen3", config_overrides={"sliding": 1}), on_first_rank=True)


class OldFSDP(FSDPStrategy):
    """FSDP1 without a trainer."""

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu")


def rows_with_routes() -> list[Rollout]:
    """Four, of two prompts, each token with experts of its own, which live routers would not choose."""
    draws = torch.Generator().manual_seed(4)
    rows = []
    for number, (prompt, length) in enumerate([((4, 5, 6), 7), ((4, 5, 6), 5), ((9, 8), 6), ((9, 8), 9)]):
        ids = torch.randint(3, 30, (length,), generator=draws)
        rows.append(Rollout(Prompt(number // 2, "", prompt), number % 2, ids, None, torch.ones_like(ids).bool(),
                            FinishReason.LENGTH, 0, reward=0.0))  # fmt: skip
        tokens = len(prompt) + length - 1
        rows[-1].routes = torch.rand(tokens, 2, 16, generator=draws).argsort(-1)[..., :2].to(torch.uint8)
    for one, other in ((0, 1), (2, 3)):  # a prompt is computed once
        width, own = len(rows[one].prompt.token_ids), rows[one].routes
        assert own is not None
        assert rows[other].routes is not None
        rows[other].routes[:width] = own[:width]  # type: ignore[index]
    return rows


def gradients(policy: Policy, rows: list[Rollout], scale: float) -> dict[str, Tensor]:
    """Of the summed log-probabilities of some rows, by plain names; of shards the whole tensors, a collective."""
    policy.zero_grad()
    (policy(make_micro_batch(rows), 1.0)[0].sum() * scale).backward()
    if isinstance(policy, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(policy, with_grads=True):
            named = [(n.replace("_fsdp_wrapped_module.", ""), p.grad) for n, p in policy.named_parameters()]
            return {name: grad.clone() for name, grad in named if grad is not None}
    found = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g.clone() for name, g in found.items()}


def replay(strategy: Sharding) -> None:
    """Routes of the rollouts (R3) prescribe the experts on shards, too, also when activations are recomputed."""
    rank, rows = dist.get_rank(), rows_with_routes()
    settings = settings_of("mixture", Path())
    plain = made(settings, on_first_rank=False, replay="R3")
    assert plain.packed
    expected = gradients(plain, rows, 1.0)
    for row in (free_rows := rows_with_routes()):
        row.routes = None
    free = gradients(plain, free_rows, 1.0)
    worst = max(float((free[name] - value).abs().max()) for name, value in expected.items())
    assert worst > 1e-2, "nothing was replayed"
    groups = [rows[:2], rows[2:]]
    mine = groups[rank % 2]
    policy = strategy.shard(made(settings, on_first_rank=strategy.loads_on_first_rank, replay="R3"))
    found = gradients(policy, mine, 2.0)  # the mean over ranks is half the sum over both groups
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, value in expected.items():
        off = float((found[name] - value).abs().max() / value.abs().max())
        assert off < 1e-5, f"gradient of {name} is off by {off:.2g}"


SENT = ["tied", "not tied", "mixture", "adapters", "bfloat16", "pictures"]


def sending(settings: ModelSettings, strategy: Sharding) -> None:
    """Of a policy that no longer is what it was when it was loaded."""
    plain = made(settings, on_first_rank=False)
    policy = made(settings, on_first_rank=strategy.loads_on_first_rank)
    policy = strategy.shard(policy)
    with torch.no_grad():
        for one in (plain, policy):
            for weight in one.parameters():
                weight.mul_(1.5)
    compare_sent(plain, policy)


def rank_of(rank: int, world: int, folder: Path, answers: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    strategy, found = WithoutTrainer(world), dict[str, str]()
    jobs: dict[str, Callable[[ModelSettings, WithoutTrainer], None]] = dict.fromkeys(CASES, compare)
    jobs |= {"not sent": cannot_be_sent, "refused": refused}
    jobs |= {"replay fsdp2": lambda *_: replay(strategy), "replay fsdp": lambda *_: replay(OldFSDP())}
    for case in SENT:
        jobs |= {f"sent fsdp2 {case}": lambda given, _: sending(given, strategy)}
        jobs |= {f"sent fsdp {case}": lambda given, _: sending(given, OldFSDP())}
    for name, job in jobs.items():
        case = name.removeprefix("sent ").partition(" ")[2] if name.startswith("sent ") else name
        try:
            job(settings_of(case if case in (*CASES, *SENT) else "tied", folder), strategy)
            found[name] = ""
        except Exception as error:  # is what is reported; other ranks may be waiting for this one
            found[name] = f"{type(error).__name__}: {error}"
            answers.put(found)
            os._exit(0)
    answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def main(world: int) -> None:
    logging.disable(logging.INFO)
    traffic = traffic_of(world)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = Phi3Config(**COMMON | {"rope_parameters": LONGROPE})
        Phi3ForCausalLM(config).save_pretrained(folder / "phi")
        character_tokenizer().save_pretrained(folder / "phi")
        queues = [context.SimpleQueue() for _ in range(world)]
        ranks = [context.Process(target=rank_of, args=(r, world, folder, queues[r])) for r in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(100)
        for process in ranks:
            process.kill()
        found = [{"died": "yes"} if queue.empty() else queue.get() for queue in queues]
    print(json.dumps({"ranks": found, "traffic": dataclasses.asdict(traffic)}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
