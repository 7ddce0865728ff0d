"""Mixtures of experts that read pictures: routes recorded and replayed, compared with transformers' own forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import MicroBatch, MiniBatch, Rollout, SamplingParams
from gspo_lightning.loop.old_policy.frozen import with_logprobs
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import Replay, Routing, hook_routers
from gspo_lightning.rollouts import Draws, GroupedSampler
from tests.policy.routing.test_routing import moved
from tests.policy.vision.test_exact import alone, policy_of, prompts_of, rollouts_of

MOE = "tiny-qwen3-vl-moe"


def routed_policy(replay: Replay, packed: bool) -> Policy:
    policy = policy_of(MOE)
    policy.packed = packed
    policy.routing = hook_routers(policy.backbone, replay)
    assert policy.routing == Routing(2, 16, 2, replay)
    return policy


def gates(policy: Policy) -> list[nn.Module]:
    return [layer.mlp.gate for layer in policy.backbone.layers]  # type: ignore[union-attr]


@contextmanager
def hooked(policy: Policy, hooks: Sequence[Any]) -> Iterator[None]:
    handles = [gate.register_forward_hook(hook) for gate, hook in zip(gates(policy), hooks, strict=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def chosen_alone(policy: Policy, rollout: Rollout) -> Tensor:
    """[tokens, layers, k]: what the routers of an unwatched model choose in a plain forward of the row."""
    seen: list[Tensor] = []

    def note(module: nn.Module, args: Any, out: tuple[Tensor, Tensor, Tensor]) -> None:
        seen.append(out[2])

    with torch.no_grad(), hooked(policy, [note, note]):
        alone(policy, rollout)
    return torch.stack(seen, dim=1)[:-1]


def prescribed_alone(policy: Policy, rollout: Rollout, routes: Tensor) -> Tensor:
    """Log-probabilities by a plain forward of the row whose routers are told what to choose, by formulas of our own."""
    last = torch.zeros_like(routes[:1])  # the last token predicts nothing
    wanted = torch.cat([routes, last]).long()

    def told(layer: int) -> Any:
        def choose(module: nn.Module, args: Any, out: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            weights = out[0].softmax(-1).gather(-1, wanted[:, layer])
            return out[0], weights / weights.sum(-1, keepdim=True), wanted[:, layer]

        return choose

    with hooked(policy, [told(0), told(1)]):
        return alone(policy, rollout)


def recorded(policy: Policy, batch: MicroBatch) -> MicroBatch:
    return with_logprobs("old_logprobs", policy, [MiniBatch([batch])], 1.0)[0].micro_batches[0]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_recorded_routes_are_those_of_rows_alone_and_replay_without_a_bit_of_difference(packed: bool) -> None:
    policy = routed_policy("R2", packed)
    rollouts = rollouts_of(prompts_of(policy))
    part = recorded(policy, make_micro_batch(rollouts))
    assert part.routes is not None
    unwatched = policy_of(MOE)
    for row, rollout in enumerate(rollouts):
        expected = chosen_alone(unwatched, rollout)
        assert torch.equal(part.routes[row, : len(expected)].long(), expected)
    with torch.no_grad():
        assert torch.equal(policy(part)[0], part.old_logprobs)
    again = MicroBatch.from_state_dict(part.state_dict())
    with torch.no_grad():
        assert torch.equal(policy(again)[0], part.old_logprobs)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_replay_after_an_update_has_the_values_and_gradients_of_rows_that_are_told_their_experts(packed: bool) -> None:
    policy = routed_policy("R2", packed)
    rollouts = rollouts_of(prompts_of(policy))
    part = recorded(policy, make_micro_batch(rollouts))
    own = moved(policy_of(MOE), 0.02)
    assert part.routes is not None
    lengths = [len(r.prompt.token_ids) + r.length - 1 for r in rollouts]
    routes = [part.routes[row, :length] for row, length in enumerate(lengths)]
    changed = [not torch.equal(chosen_alone(own, r), route.long()) for r, route in zip(rollouts, routes, strict=True)]
    assert sum(changed) > len(rollouts) // 2  # else this test shows nothing
    logprobs = moved(policy, 0.02)(part)[0]
    expected = [prescribed_alone(own, r, route) for r, route in zip(rollouts, routes, strict=True)]
    for row, alone_row in zip(logprobs, expected, strict=True):
        torch.testing.assert_close(row[: len(alone_row)], alone_row, rtol=1e-5, atol=1e-5)
    (logprobs * part.response_mask).sum().backward()
    torch.cat(expected).sum().backward()
    theirs = dict(own.named_parameters())
    for name, parameter in policy.named_parameters():
        if theirs[name].grad is None:
            assert parameter.grad is None, name
            continue
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_the_sampler_records_the_experts_of_picture_tokens_and_of_its_own(packed: bool) -> None:
    policy = routed_policy("R3", packed)
    groups = GroupedSampler(max_rows=6).generate(
        policy, prompts_of(policy), group_size=2, sampling=SamplingParams(9, stop_token_ids=(1, 10, 11, 12)),
        draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 0),
    )  # fmt: skip
    unwatched = policy_of(MOE)
    for rollout in (r for group in groups for r in group):
        assert rollout.routes is not None
        assert torch.equal(rollout.routes.long(), chosen_alone(unwatched, rollout))
