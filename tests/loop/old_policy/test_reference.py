"""The KL penalty in the reward is the trainer's own, on both sides."""

from __future__ import annotations

import pytest
import torch

from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.loop.old_policy.reference import ReferencePolicy
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs, OffloadedSnapshot, ResidentSnapshot
from gspo_lightning.policy.policy import Policy
from tests.support.model_families import build_policy

TEMPERATURE, COEF = 0.7, 0.3
CPU = torch.device("cpu")


def rollouts() -> list[Rollout]:
    """Of different lengths; what their source reports is far off, and one has tokens that are not the policy's."""
    found = []
    for i, count in enumerate((5, 2, 7, 3)):
        ids = torch.arange(count) * (3 + i) % 30 + 4
        mask = torch.tensor([j != 1 for j in range(count)]) if i == 2 else torch.ones(count, dtype=torch.bool)
        prompt = Prompt(i // 2, "p", tuple(range(4, 7 + i // 2)))
        found.append(Rollout(prompt, i % 2, ids, torch.full((count,), -9.0), mask, FinishReason.STOP, 0, reward=1.0))
    found[3].logprobs = None
    return found


def by_hand(policy: Policy, rollout: Rollout) -> float:
    """Summed log-probability of the tokens that the policy chose, in nats."""
    start, ids = len(rollout.prompt.token_ids), [*rollout.prompt.token_ids, *rollout.token_ids.tolist()]
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0].double() / TEMPERATURE
    logprobs = logits.log_softmax(-1)
    own = rollout.response_mask.tolist()
    return sum(float(logprobs[start + t - 1, ids[start + t]]) for t in range(len(own)) if own[t])


@pytest.mark.parametrize("budget", [12, 99])
@pytest.mark.parametrize("form", [CachedLogProbs, ResidentSnapshot, OffloadedSnapshot])
def test_the_penalty_is_the_log_ratio_of_what_sampled_to_the_reference(form: type[OldPolicy], budget: int) -> None:
    reference, policy, old = ReferencePolicy(build_policy("qwen3", 0)), build_policy("qwen3", 1), form()
    old.refresh(policy, 0)
    sampled = policy if form is CachedLogProbs else build_policy("qwen3", 1)
    if form is not CachedLogProbs:  # the policy moves on, its snapshot does not
        policy.load_state_dict(build_policy("qwen3", 2).state_dict(), strict=False)
    mine = rollouts()
    reference.penalise(mine, old.sampling_policy(policy), COEF, TEMPERATURE, budget, CPU)
    start = build_policy("qwen3", 0)
    wanted = [COEF * (by_hand(sampled, r) - by_hand(start, r)) for r in mine]
    assert [r.kl_penalty for r in mine] == pytest.approx(wanted, abs=2e-5)
    assert max(map(abs, wanted)) > 0.1


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_without_an_update_there_is_no_penalty_at_all(family: str) -> None:
    """Also in bfloat16, in train mode, and where the routers of one of the two are watched."""
    policy = build_policy(family).train()
    reference, mine = ReferencePolicy(policy), rollouts()
    with torch.autocast("cpu", torch.bfloat16):
        reference.penalise(mine, policy, 1e6, TEMPERATURE, 20, CPU)
    assert [r.kl_penalty for r in mine] == [0.0] * 4


def test_a_masked_response_has_no_penalty() -> None:
    reference, mine = ReferencePolicy(build_policy("qwen3", 0)), rollouts()
    mine[0].masked, mine[1].reward = True, None
    reference.penalise(mine, build_policy("qwen3", 1), COEF, TEMPERATURE, 99, CPU)
    assert [r.kl_penalty != 0 for r in mine] == [False, False, True, True]
