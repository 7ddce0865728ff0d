"""The load-balancing loss is that of transformers over the whole mini-batch, however it is cut and laid out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.update.loss import LossTerms, micro_batch_loss, mini_batch_count
from gspo_lightning.loop.update.router_loss import load_balance
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.packing.batches import filler
from gspo_lightning.policy.packing.memory import cut_rows
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import hook_routers, routers_of
from gspo_lightning.policy.routing.balance import _probabilities
from tests.support.model_families import build_policy

COEF = 0.5


def batch() -> MicroBatch:
    """Two prompts with two responses each, all of different lengths. Advantages of 0: the objective has no gradient."""
    prompts, responses = torch.tensor([5, 5, 3, 3]), torch.tensor([4, 2, 6, 1])
    ids = torch.arange(4 * 9).view(4, 9) * 7 % 38
    ids[1, :5], ids[3, :3] = ids[0, :5], ids[2, :3]
    mask = torch.arange(6) < responses.unsqueeze(1)
    return MicroBatch(ids, prompts, responses, mask, torch.zeros(4), prompt_index=torch.tensor([7, 7, 2, 2]))


def watched(packed: bool) -> Policy:
    policy = build_policy("qwen3-moe")
    policy.routing, policy.packed = hook_routers(policy.backbone), packed
    return policy


def gradients(policy: Policy) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad(set_to_none=True)
    return found


def expected(policy: Policy) -> tuple[float, dict[str, Tensor]]:
    part = batch()
    mask = torch.arange(8) < (part.lengths - 1).unsqueeze(1)  # the last token of a row is never forwarded
    out = policy.model(part.input_ids[:, :-1], attention_mask=mask.long(), output_router_logits=True)
    loss = load_balancing_loss_func(out.router_logits, 16, 2, mask.long())
    assert isinstance(loss, Tensor)
    (COEF * loss).backward()
    return float(loss), gradients(policy)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pieces", ["whole", "rows", "with a filler"])
def test_the_gradient_is_that_of_transformers(pieces: str, packed: bool) -> None:
    policy, part = watched(packed), batch()
    loss, wanted = expected(policy)
    cut = [part] if pieces == "whole" else list(cut_rows(part, 9, packed))
    parts = [*cut, filler(part)] if pieces == "with a filler" else cut
    parts = [dataclasses.replace(p, old_logprobs=policy(p)[0].detach()) for p in parts]
    balance = load_balance(COEF, policy, parts, 1.0)
    denominator, sums, objective = mini_batch_count(GSPO(), parts), MetricSums(), GSPO()
    for piece in parts:
        micro_batch_loss(
            piece, LossTerms(policy, CachedLogProbs(), objective, 1.0),
            denominator=denominator, sums=sums, balance=balance,
        ).backward()  # fmt: skip
    found = gradients(policy)
    assert any("gate" in name and float(wanted[name].abs().max()) > 1e-4 for name in wanted)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted.get(name, torch.zeros_like(gradient)), rtol=1e-4, atol=1e-6)
    total, count = sums.reduce()[0]["router_aux_loss"]
    assert count == pytest.approx(1.0)
    assert total / count == pytest.approx(loss, rel=1e-5)


def test_scores_of_any_kind_become_probabilities() -> None:
    logits = torch.tensor([[0.0, -1.0, 2.0]])
    torch.testing.assert_close(_probabilities(logits, logits=True), logits.softmax(-1))
    torch.testing.assert_close(_probabilities(torch.tensor([[0.2, 0.6]]), logits=False), torch.tensor([[0.25, 0.75]]))


def test_aux_loss_coef_without_routers_or_below_zero_is_refused() -> None:
    moe, dense = build_policy("qwen3-moe").backbone, build_policy("qwen3").backbone
    assert load_balance(0.0, watched(packed=True), [batch()], 1.0) is None
    assert routers_of(moe, "off", metrics=False) is None
    assert routers_of(moe, "off", metrics=False, aux_loss_coef=0.1) is not None
    with pytest.raises(UserError, match=r"router_aux_loss_coef: is 0.1, but Qwen3Model has no routers"):
        routers_of(dense, "off", metrics=None, aux_loss_coef=0.1)
    with pytest.raises(UserError, match="0 or above"):
        routers_of(moe, "off", metrics=None, aux_loss_coef=-1.0)
