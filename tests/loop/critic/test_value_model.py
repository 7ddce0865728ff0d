"""The critic on its own: what it reads, what it learns, what it leaves alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gspo_lightning.core.errors import NonFiniteError, UserError
from gspo_lightning.core.types import FinishReason, MiniBatch, Prompt, Rollout
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.critic.loss import value_loss
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.packing.batches import filler, make_micro_batch
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.policy import Policy

LONGEST = 40
KINDS = {
    "packed": ModelSettings(),
    "padded": ModelSettings(layout="padded"),
    "experts": ModelSettings("tiny-qwen3-moe"),
    "adapters": ModelSettings(lora=LoRA(r=4)),
    "checkpointing": ModelSettings(gradient_checkpointing=True),
    "tied": ModelSettings(config_overrides={"tie_word_embeddings": True}),
}


def policy_of(settings: ModelSettings = KINDS["packed"]) -> Policy:
    policy = load_policy(settings)
    policy.train()
    choose_layout(policy, settings.layout, LONGEST)
    return policy


def made(policy: Policy, trained_head: bool = True, **options: Any) -> ValueModel:
    critic = ValueModel(**{"lr": 1e-3, **options})
    critic.build(policy, longest=LONGEST)
    if trained_head:
        generator = torch.Generator().manual_seed(5)
        critic.head.weight.data = torch.randn(critic.head.weight.shape, generator=generator)
    return critic


def groups_of(count: int = 4, size: int = 3) -> list[list[Rollout]]:
    """Prompts and responses of different lengths; some tokens were not chosen; returns that can be learned."""
    generator = torch.Generator().manual_seed(11)
    groups = []
    for p in range(count):
        prompt = Prompt(p, "", tuple(torch.randint(3, 38, (2 + 2 * p,), generator=generator).tolist()))
        rows = []
        for s in range(size):
            ids = torch.randint(3, 38, (1 + (5 * p + 7 * s) % 11,), generator=generator)
            mask = torch.ones(len(ids), dtype=torch.bool)
            mask[2:4] = False
            rollout = Rollout(prompt, s, ids, None, mask, FinishReason.STOP, 0, reward=float(s))
            rollout.returns = torch.full((len(ids),), float(s)) + 0.1 * torch.arange(len(ids))
            rows.append(rollout)
        groups.append(rows)
    groups[0][1].masked = True
    return groups


def cut(groups: list[list[Rollout]], policy: Policy, budget: int = 1000, parts: int = 2) -> RolloutBatch:
    return RolloutBatch.of(groups, mini_batches=parts, max_tokens=budget, packed=policy.packed)


def learned(critic: ValueModel, policy: Policy, groups: list[list[Rollout]], **how: int) -> dict[str, float]:
    batch = cut(groups, policy, **how)
    critic.judge(batch)
    return critic.learn(batch)


def weights(module: nn.Module | None) -> dict[str, Tensor]:
    assert module is not None
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[k] - b[k]).abs().max()) for k in a)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [False, True])
def test_a_value_is_that_of_the_row_alone(kind: str, share: bool) -> None:
    """Rows that share a prompt, and the tokens after a state, leak nothing into its value."""
    policy = policy_of(KINDS[kind])
    critic, groups = made(policy, share=share), groups_of()
    critic.judge(cut(groups, policy))
    for rollout in (r for g in groups for r in g):
        assert rollout.values is not None
        alone = critic.values(make_micro_batch([rollout]))[0]
        assert alone.tolist() == pytest.approx(rollout.values.tolist(), abs=1e-5)
        assert float(rollout.values.abs().max()) > 0.1
        cut_short = copy.copy(rollout)
        keep = max(1, len(rollout.token_ids) // 2)
        cut_short.token_ids, cut_short.response_mask = rollout.token_ids[:keep], rollout.response_mask[:keep]
        before = critic.values(make_micro_batch([cut_short]))[0]
        assert before.tolist() == pytest.approx(rollout.values[:keep].tolist(), abs=1e-5)


def test_the_value_is_the_head_on_the_state_that_predicts_the_token() -> None:
    policy = policy_of()
    critic, rollout = made(policy), groups_of()[1][2]
    ids = torch.tensor([*rollout.prompt.token_ids, *rollout.token_ids.tolist()])
    hidden = policy.backbone(input_ids=ids[None, :-1]).last_hidden_state[0, len(rollout.prompt.token_ids) - 1 :]
    expected = hidden @ critic.head.weight[0] + critic.head.bias
    assert critic.values(make_micro_batch([rollout]))[0].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_new_critic_says_zero() -> None:
    policy, groups = policy_of(), groups_of()
    critic = made(policy, trained_head=False)
    critic.judge(cut(groups, policy))
    assert all(r.values is not None and r.values.abs().max() == 0 for g in groups for r in g)


def first_gradient(critic: ValueModel) -> Tensor:
    """Gradient of the only step, from AdamW's mean: a weight shows its sign alone, which is rounding where it is 0."""
    states = [state for optimizer in critic.optimizers for state in optimizer.state.values()]
    assert {float(state["step"]) for state in states} == {1.0}
    return torch.cat([state["exp_avg"].flatten() for state in states]) / 0.1


@pytest.mark.parametrize("kind", ["packed", "padded", "adapters"])
def test_the_gradient_does_not_depend_on_the_cut(kind: str) -> None:
    """Rows whose mask is empty, uneven micro-batches: the same update."""
    policy = policy_of(KINDS[kind])
    found = []
    for budget in (1000, 45):
        critic = made(policy, gradient_clip=None)
        norm = learned(critic, policy, groups_of(), budget=budget, parts=1)["critic/gradient_norm"]
        found.append((norm, first_gradient(critic)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert float((found[0][1] - found[1][1]).norm() / found[0][1].norm()) < 1e-5


def test_a_mini_batch_of_which_this_rank_has_no_row_changes_nothing() -> None:
    """As where rows are shuffled: a filler of weight 0 stands for them."""
    policy, norms = policy_of(), []
    for parts in (1, 2):
        critic, groups = made(policy, gradient_clip=None), groups_of()
        batch = cut(groups, policy, parts=1)
        for _ in range(parts - 1):
            batch.dealt.append([])
            batch.mini_batches.append(MiniBatch([filler(batch.mini_batches[0].micro_batches[0])]))
        critic.judge(batch)
        assert all(r.values is not None and r.values.any() for group in groups for r in group)
        norms.append(parts * critic.learn(batch)["critic/gradient_norm"])  # a mean over updates
    assert norms[0] == norms[1]


def test_the_value_loss_by_hand_and_by_finite_differences() -> None:
    values = torch.tensor([[0.9, 0.9, 5.0], [0.4, 0.0, 7.0]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[0.5, 0.5, 9.0], [0.5, 0.0, 9.0]], dtype=torch.float64)
    returns = torch.tensor([[2.0, 0.0, 9.0], [0.0, 1.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, True, False]])
    plain, none = value_loss(values, old, returns, mask, None)
    assert float(plain) == pytest.approx((1.1**2 + 0.9**2 + 0.4**2 + 1) / 2)
    assert int(none) == 0
    # clipped: .7 where .9 moved towards 2 (too far: no gradient), and .9 away from 0 (the larger error stays)
    clipped, count = value_loss(values, old, returns, mask, 0.2)
    assert float(clipped.detach()) == pytest.approx((1.3**2 + 0.9**2 + 0.4**2 + 1) / 2)
    assert int(count) == 1
    for clip in (None, 0.2, 0.05):
        assert torch.autograd.gradcheck(lambda v, c=clip: value_loss(v, old, returns, mask, c)[0], (values,))
    clipped.backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[0.0, pytest.approx(0.9), 0.0], [pytest.approx(0.4), -1.0, 0.0]]


def test_a_value_within_the_range_is_not_clipped_by_rounding() -> None:
    """``old + (new - old)`` need not be ``new`` in float32."""
    generator = torch.Generator().manual_seed(2)
    old, values, returns = (s * torch.rand(1, 1000, generator=generator) for s in (0.15, 1e-3, 1.0))
    assert not torch.equal(old + (values - old), values)
    every = torch.ones(1, 1000, dtype=torch.bool)
    loss, count = value_loss(values, old, returns, every, 0.2)
    assert int(count) == 0
    assert torch.equal(loss, value_loss(values, old, returns, every, None)[0])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["packed", "adapters", "checkpointing", "tied"])
def test_critic_learns_without_changing_the_policy(kind: str) -> None:
    policy = policy_of(KINDS[kind])
    before, critic = weights(policy), made(policy, trained_head=False, lr=1e-2, epochs=10)
    groups = groups_of()
    first = learned(critic, policy, groups)
    learned(critic, policy, groups)
    third = learned(critic, policy, groups)  # the second is at .33 to .51, by rounding: gradients begin at 0
    assert third["critic/loss"] < 0.5 * first["critic/loss"]
    assert third["critic/updates"] == 60
    assert difference(before, weights(policy)) == 0
    assert all(p.grad is None for p in policy.parameters())


def test_a_shared_trunk_is_not_moved() -> None:
    policy = policy_of()
    before, critic, groups = (
        weights(policy),
        made(policy, trained_head=False, share=True, lr=1e-2, epochs=10),
        groups_of(),
    )
    assert critic.trained_backbone() == []
    assert learned(critic, policy, groups)["critic/loss"] > learned(critic, policy, groups)["critic/loss"]
    assert difference(before, weights(policy)) == 0
    assert all(p.grad is None for p in policy.parameters())


def test_under_adapters_the_base_is_shared_and_only_adapters_are_saved() -> None:
    policy = policy_of(KINDS["adapters"])
    critic = made(policy)
    assert critic.backbone is not None
    mine = {n.removeprefix("policy."): p for n, p in critic.backbone.named_parameters()}
    for name, theirs in policy.named_parameters():
        if "lm_head" not in name:
            assert (mine[name] is theirs) == (not theirs.requires_grad), name
    assert all("lora_" in name for name in critic.state_dict()["trunk"])


@pytest.mark.parametrize("options", [{}, {"share": True}, {"clip": 0.1, "epochs": 2}], ids=str)
@pytest.mark.parametrize("kind", ["packed", "adapters"])
def test_a_resumed_critic_goes_on_bit_for_bit(kind: str, options: dict[str, Any], tmp_path: Any) -> None:
    policy = policy_of(KINDS[kind])
    critic, groups = made(policy, **options), groups_of()
    learned(critic, policy, groups)
    torch.save(critic.state_dict(), tmp_path / "critic.pt")
    resumed = made(policy, trained_head=False, **options)
    resumed.load_state_dict(torch.load(tmp_path / "critic.pt", weights_only=True))
    assert learned(critic, policy, groups) == learned(resumed, policy, groups)
    assert difference(weights(critic.head), weights(resumed.head)) == 0
    assert difference(weights(critic.backbone), weights(resumed.backbone)) == 0


def test_a_state_of_another_kind_is_refused() -> None:
    policy = policy_of()
    with pytest.raises(UserError, match=r"model\.critic\.share: is False, but the checkpoint was written with True"):
        made(policy).load_state_dict(made(policy, share=True).state_dict())


def test_clipping_of_its_own() -> None:
    policy, groups = policy_of(), groups_of()
    critic = made(policy, gradient_clip=1e-3)
    seen: list[float] = []

    def norm(*_: object) -> None:
        gradients = [p.grad for p in [*critic.head.parameters(), *critic.trained_backbone()] if p.grad is not None]
        seen.append(float(nn.utils.get_total_norm(gradients)))

    critic.optimizers[0].register_step_pre_hook(norm)
    assert learned(critic, policy, groups)["critic/gradient_norm"] > 0.1
    assert seen == pytest.approx([1e-3] * 2, rel=1e-2)


def test_another_model_with_the_same_tokens(tmp_path: Any) -> None:
    policy, other = policy_of(), tmp_path / "other"
    policy_of(ModelSettings(seed=4, config_overrides={"hidden_size": 32})).save_pretrained(other)
    critic = ValueModel(str(other))
    critic.build(policy, ModelSettings(), longest=LONGEST)
    assert critic.head.weight.shape == (1, 32)
    assert learned(critic, policy, groups_of())["critic/loss"] > 0
    with pytest.raises(UserError, match=r"model.critic.name_or_path: .* built for 512 tokens, but a row may have 600"):
        ValueModel(str(other)).build(policy, ModelSettings(), longest=600)


def test_other_tokens_are_refused(tmp_path: Any) -> None:
    policy, other = policy_of(), policy_of()
    other.tokenizer.add_tokens(["more"])
    other.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model.critic.name_or_path: the vocabulary of .* is not the policy's"):
        ValueModel(str(tmp_path)).build(policy, ModelSettings(), longest=LONGEST)


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    policy, groups = policy_of(), groups_of()
    critic = made(policy)
    returns = groups[0][0].returns
    assert returns is not None
    returns[0] = float("nan")
    before = weights(critic.backbone)
    with pytest.raises(NonFiniteError, match="the gradient of the critic is not finite in its update 1"):
        learned(critic, policy, groups)
    assert difference(before, weights(critic.backbone)) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "model.critic.lr"),
        ({"warm_up": -1}, "model.critic.warm_up"),
        ({"epochs": 0}, "model.critic.epochs"),
        ({"clip": 0.0}, "model.critic.clip"),
        ({"gradient_clip": 0.0}, "model.critic.gradient_clip"),
        ({"share": True, "name_or_path": "tiny-qwen3"}, "model.critic.share: is true, but"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        ValueModel(**options)
