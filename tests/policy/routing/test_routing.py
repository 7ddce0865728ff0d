"""Routers are found by what they do, recorded and replayed without a bit of difference, with the right gradients."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PreTrainedModel,
)

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import MicroBatch, MiniBatch, Prompt, SamplingParams
from gspo_lightning.loop.old_policy import CachedLogProbs, OldPolicy, ResidentSnapshot
from gspo_lightning.loop.old_policy.frozen import with_logprobs
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs, OldLogProbsChoice
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.packing.batches import filler
from gspo_lightning.policy.packing.memory import cut_rows
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import (
    Routing,
    checkpoint_contexts,
    find_routers,
    hook_routers,
    record_routers,
    routing_scalars,
    routing_sums,
    scatter_routes,
)
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts import Draws, GroupedSampler
from tests.support.model_families import COMMON, build_policy

SIX: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
BUILDERS = {
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**COMMON, num_local_experts=6, num_experts_per_tok=2)),
    "olmoe": lambda: OlmoeForCausalLM(OlmoeConfig(**COMMON, num_experts=6, num_experts_per_tok=2)),
    "gpt-oss": lambda: GptOssForCausalLM(GptOssConfig(**COMMON, num_local_experts=6, num_experts_per_tok=2)),
    "glm4-moe": lambda: Glm4MoeForCausalLM(
        Glm4MoeConfig(**COMMON, **SIX, n_routed_experts=6, n_group=2, topk_group=1, first_k_dense_replace=0)
    ),
}


def build(family: str) -> Policy:
    if family == "qwen3-moe":
        return build_policy("qwen3-moe")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = BUILDERS[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    return Policy(model, character_tokenizer()).eval()


def batch() -> MicroBatch:
    """Two prompts with two responses each, all of different lengths; the second row's last token counts for nothing."""
    prompts, responses = torch.tensor([5, 5, 3, 3]), torch.tensor([4, 2, 6, 1])
    ids = torch.arange(4 * 9).view(4, 9) * 7 % 38
    ids[1, :5], ids[3, :3] = ids[0, :5], ids[2, :3]
    mask = torch.arange(6) < responses.unsqueeze(1)
    mask[1, 1] = False
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5])
    return MicroBatch(ids, prompts, responses, mask, advantages, prompt_index=torch.tensor([7, 7, 2, 2]))


def recorded(policy: Policy, part: MicroBatch) -> MicroBatch:
    """With the routes and log-probabilities of this policy."""
    filled = with_logprobs("old_logprobs", policy, [MiniBatch([part])], 1.0)
    return filled[0].micro_batches[0]


def moved(policy: Policy, by: float) -> Policy:
    """The same policy after a change of all weights that is large enough to change routes."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * by)
    return policy


@pytest.mark.parametrize("family", ["qwen3-moe", *BUILDERS])
def test_routers_are_found_and_an_unchanged_policy_replays_them_bit_by_bit(family: str) -> None:
    policy = build(family)
    policy.routing = hook_routers(policy.backbone, "R2")
    assert policy.routing == Routing(2, 16 if family == "qwen3-moe" else 6, 2, "R2")
    plain = policy(batch())[0].detach()
    for packed in (False, True) if family != "gpt-oss" else (False,):  # attention sinks are not packed
        policy.packed = packed
        part = recorded(policy, batch())
        assert part.routes is not None
        assert part.old_logprobs is not None
        assert part.routes.shape == (4, 8, 2, 2)
        assert part.routes.dtype == torch.uint8
        assert torch.equal(policy(part)[0], part.old_logprobs)
        torch.testing.assert_close(part.old_logprobs, plain, rtol=1e-4, atol=1e-4)
        other = (part.routes + 1) % policy.routing.experts
        assert not torch.allclose(policy(dataclasses.replace(part, routes=other))[0], plain, atol=1e-3)


def test_a_dense_model_has_no_routers() -> None:
    assert find_routers(build_policy("qwen3").backbone) == []
    assert hook_routers(build_policy("llama").backbone) is None


def test_recorded_routes_are_those_that_transformers_reports() -> None:
    policy, part = build("qwen3-moe"), batch()
    row = part.input_ids[2:3, :9]
    logits = policy.model(row, output_router_logits=True, use_cache=False).router_logits
    expected = torch.stack([x.topk(2, dim=-1).indices for x in logits], dim=1)
    policy.routing = hook_routers(policy.backbone)
    for packed in (False, True):
        policy.packed = packed
        routes = recorded(policy, part).routes
        assert routes is not None
        assert torch.equal(routes[2].long(), expected[:8])
        assert torch.equal(routes[3, :3].long(), expected[:3])  # the same prompt


def test_watching_changes_no_bit() -> None:
    policy, part = build("qwen3-moe"), batch()
    plain = policy(part)[0]
    policy.routing = hook_routers(policy.backbone)
    with record_routers(policy.routing) as recording:
        assert torch.equal(policy(part)[0], plain)
    assert recording is not None
    assert recording.stacked().shape == (32, 2, 2)
    assert torch.equal(policy(part)[0], plain)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_gradients_under_replay_equal_an_independent_computation(experts: str, packed: bool) -> None:
    policy = build("qwen3-moe")
    policy.routing = hook_routers(policy.backbone, "R2")
    part = recorded(policy, batch())
    moved(policy, 0.05)
    own = build("qwen3-moe")
    moved(own, 0.05)
    policy.packed = packed
    policy.model.set_experts_implementation(experts)
    by_hand(own, part)
    for each in (policy, own):
        (each(part)[0] * part.advantages.unsqueeze(1))[part.response_mask].sum().backward()
    with record_routers(policy.routing) as recording:
        policy(part)
    assert recording is not None
    changed = float(routing_sums(recording, part, policy.routing)[0]["changed_choices"][0])
    assert changed > 0  # else this test shows nothing
    expected = {name: p.grad for name, p in own.named_parameters()}
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None
        assert expected[name] is not None
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5, msg=name)
        assert "gate.weight" not in name or parameter.grad.abs().sum() > 0


def by_hand(policy: Policy, part: MicroBatch) -> None:
    """Have the padded forward pass of a Qwen3-MoE follow the routes of ``part`` by formulas of our own."""
    assert part.routes is not None
    for layer, decoder in enumerate(policy.backbone.layers):  # type: ignore[union-attr, arg-type]
        experts = part.routes[:, :, layer].flatten(0, 1).long()

        def forward(hidden: Tensor, block: nn.Module = decoder.mlp, experts: Tensor = experts) -> Tensor:
            x = hidden.flatten(0, 1)
            gate, up_gate, down = block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj  # type: ignore[union-attr]
            weights = torch.softmax(x @ gate.T, dim=-1).gather(1, experts)
            weights = weights / weights.sum(1, keepdim=True)
            out = torch.zeros_like(x)
            for k in range(experts.shape[1]):
                both = torch.einsum("mh,mih->mi", x, up_gate[experts[:, k]])
                left, right = both.chunk(2, dim=-1)
                inner = nn.functional.silu(left) * right
                out = out + weights[:, k : k + 1] * torch.einsum("mi,mhi->mh", inner, down[experts[:, k]])
            return out.view_as(hidden)

        decoder.mlp.forward = forward


@pytest.mark.parametrize(("packed", "measured"), [(False, False), (True, False), (True, True)])
def test_gradient_checkpointing_recomputes_with_the_same_experts(packed: bool, measured: bool) -> None:
    policies = [build("qwen3-moe") for _ in range(2)]
    for policy in policies:
        policy.packed = packed
        policy.routing = hook_routers(policy.backbone, "R2")
    part = recorded(policies[0], batch())
    how = {"use_reentrant": False, "context_fn": checkpoint_contexts}
    policies[1].model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    losses = []
    for policy in policies:
        moved(policy, 0.05).train()
        with record_routers(policy.routing if measured else None):
            losses.append((policy(part)[0] * part.advantages.unsqueeze(1)).sum())
        losses[-1].backward()
    assert torch.equal(losses[0], losses[1])
    for one, other in zip(policies[0].parameters(), policies[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


def test_routes_follow_their_rows_through_cuts_fillers_and_checkpoints() -> None:
    policy = moved(build("qwen3-moe"), 0.0)
    policy.packed = True
    policy.routing = hook_routers(policy.backbone, "R2")
    part = recorded(policy, batch())
    moved(policy, 0.05)
    whole = policy(part)[0]
    pieces = cut_rows(part, 8, packed=True)
    assert len(pieces) == 4
    for row, piece in enumerate(pieces):
        count = int(piece.response_lengths[0])
        torch.testing.assert_close(policy(piece)[0][0, :count], whole[row, :count], rtol=1e-5, atol=1e-5)
    again = MicroBatch.from_state_dict(part.state_dict())
    assert torch.equal(policy(again)[0], whole)
    blank = filler(part)
    assert blank.routes is not None
    assert torch.equal(blank.routes[0], part.routes[0])  # type: ignore[index]


@pytest.mark.parametrize("packed", [False, True])
def test_the_sampler_records_the_experts_it_sampled_with(packed: bool) -> None:
    policy = build("qwen3-moe")
    policy.packed = packed
    policy.routing = hook_routers(policy.backbone, "R3")
    prompts = [Prompt(i, "", ids) for i, ids in enumerate([(5, 9, 4), (8, 17), (20, 21, 22, 23, 24), (3,)])]
    sampling = SamplingParams(9, stop_token_ids=(1, 10, 11, 12))
    groups = GroupedSampler(max_rows=6).generate(
        policy, prompts, group_size=3, sampling=sampling, draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 0)
    )
    rollouts = [r for g in groups for r in g]
    assert len({len(r.token_ids) for r in rollouts}) > 2  # rows leave and join
    for rollout in rollouts:
        row = torch.tensor([[*rollout.prompt.token_ids, *rollout.token_ids.tolist()]])
        logits = policy.model(row, output_router_logits=True, use_cache=False).router_logits
        expected = torch.stack([x.topk(2, dim=-1).indices for x in logits], dim=1)[:-1]
        assert rollout.routes is not None
        assert torch.equal(rollout.routes.long(), expected)


def test_numbers_of_a_pass_by_hand() -> None:
    policy, part = build("qwen3-moe"), batch()
    policy.routing = Routing(1, 4, 2)
    hooked = hook_routers(policy.backbone)
    with record_routers(hooked) as recording:
        policy(part)
    assert recording is not None
    assert recording.places is not None
    tokens = recording.places.predicts
    recording.chosen = {0: torch.zeros(32, 2, dtype=torch.int64)}
    recording.confidence = {0: torch.full((32,), 0.25)}
    recording.chosen[0][:, 1] = 1  # everything to experts 0 and 1
    before = recording.stacked().clone()
    before[tokens[0], 0] = torch.tensor([1, 0])  # the same set
    before[tokens[1], 0] = torch.tensor([2, 0])  # one other
    before[tokens[2], 0] = torch.tensor([2, 3])  # two others
    before[tokens[5], 0] = torch.tensor([2, 3])  # of the token that does not count
    part.routes = scatter_routes(before, recording.places, dataclasses.replace(part, prompt_index=None), 4)
    sums, load = routing_sums(recording, part, policy.routing)
    assert {k: (float(a), float(b)) for k, (a, b) in sums.items()} == {
        "router_confidence": (3.0, 12.0),
        "changed_choices": (2.0, 12.0),
        "changed_experts": (3.0, 24.0),
    }
    assert load.tolist() == [12.0, 12.0, 0.0, 0.0]
    assert routing_scalars(load.tolist(), policy.routing) == {
        "moe/load_max_violation": 1.0,
        "moe/load_entropy": 0.5,
        "moe/idle_experts": 0.5,
    }


@pytest.mark.parametrize("choice", get_args(OldLogProbsChoice))
@pytest.mark.parametrize("form", [CachedLogProbs, ResidentSnapshot])
def test_rollouts_without_experts_are_never_routed_freely_in_their_place(
    choice: OldLogProbsChoice, form: type[OldPolicy]
) -> None:
    """One micro-batch without them is enough, whatever the ratio divides by and wherever the old policy is."""
    policy, old = build_policy("qwen3-moe"), form()
    policy.routing = hook_routers(policy.backbone, "R2")
    whole = recorded(policy, dataclasses.replace(batch(), behaviour_logprobs=torch.zeros(4, 6)))
    policy.routing = dataclasses.replace(policy.routing, replay="R3")  # type: ignore[type-var]
    old.refresh(policy, 0)
    logprobs = OldLogProbs(choice, GSPO())
    fill = partial(logprobs.fill, old, policy, temperature=1.0, first_is_free=False)
    (filled,) = fill([MiniBatch([whole, whole])])
    assert all(part.routes is not None for part in filled.micro_batches)
    with pytest.raises(UserError, match=r"model\.routing_replay: is R3, but some responses came without the experts"):
        fill([MiniBatch([whole]), MiniBatch([whole, dataclasses.replace(whole, routes=None)])])
