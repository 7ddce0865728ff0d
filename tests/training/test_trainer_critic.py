"""``GSPOTrainer`` with a critic: a step learns values, waits for them, and goes on from a saved state."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from gspo_lightning import GSPOConfig, GSPOTrainer
from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.advantages import GAE, BatchNormalised
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.objectives import PPO
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from tests.training.test_trainer import QUERIES, graded, same, weights

CONFIG = GSPOConfig(learning_rate=1e-3, group_size=4, max_response_tokens=8, minibatches=2)


@pytest.fixture
def model() -> PreTrainedModel:
    return build_tiny_model("tiny-qwen3", seed=0)


def trainer_of(model: PreTrainedModel, **options: Any) -> GSPOTrainer:
    critic = ValueModel(**{"lr": 1e-3, **options})
    return GSPOTrainer(model, character_tokenizer(), CONFIG, "GRPO", GAE(), critic)


@pytest.mark.thorough
@pytest.mark.parametrize("share", [False, True])
def test_a_saved_trainer_goes_on_bit_for_bit(model: PreTrainedModel, share: bool, tmp_path: Path) -> None:
    start = copy.deepcopy(model)
    trainer = trainer_of(model, share=share)
    first = trainer.train_step(QUERIES, graded)
    assert first["critic/updates"] == 2
    assert first["critic/value_mean"] == 0
    torch.save(trainer.state_dict(), tmp_path / "state.pt")
    resumed = trainer_of(start, share=share)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    second, again = trainer.train_step(QUERIES, graded), resumed.train_step(QUERIES, graded)
    assert second["critic/value_mean"] != 0
    timeless = {k for k in second if not k.startswith(("time/", "throughput/"))}
    assert {k: second[k] for k in timeless} == {k: again[k] for k in timeless}
    assert same(weights(trainer.policy.model), weights(resumed.policy.model))
    with pytest.raises(UserError, match="must both have a critic, or neither"):
        GSPOTrainer(start, character_tokenizer(), CONFIG, "GRPO").load_state_dict(trainer.state_dict())


def test_the_policy_waits_for_the_critic(model: PreTrainedModel) -> None:
    before, trainer = weights(model), trainer_of(model, warm_up=3)
    for moved in (False, False, True):
        trainer.train_step(QUERIES, graded)
        assert same(before, weights(model)) is not moved


@pytest.mark.thorough
def test_a_schedule_of_the_caller_begins_with_the_policy(model: PreTrainedModel) -> None:
    """The critic waits for nobody: it learns at its own rate until then, and follows the schedule from there on."""
    trainer = trainer_of(model, warm_up=3)
    assert trainer.critic is not None
    rising = torch.optim.lr_scheduler.LinearLR(trainer.optimizer, start_factor=0.1, total_iters=3)
    own, policy = trainer.critic.lr, trainer.config.learning_rate
    for of_critic, of_policy in ((1.0, 0.1), (1.0, 0.1), (0.1, 0.1), (0.4, 0.4)):
        found = trainer.train_step(QUERIES, graded)
        assert found["critic/lr"] == pytest.approx(of_critic * own)
        assert found["optim/lr"] == pytest.approx(of_policy * policy)
        if not trainer.critic.warming:
            rising.step()


def test_ppo_with_advantages_of_the_batch_needs_no_critic(model: PreTrainedModel) -> None:
    trainer = GSPOTrainer(model, character_tokenizer(), CONFIG, PPO(), BatchNormalised())
    assert trainer.train_step(QUERIES, graded)["optim/gradient_norm"] > 0


def test_trainer_refuses_advantages_that_do_not_fit_the_critic(model: PreTrainedModel) -> None:
    tokenizer = character_tokenizer()
    with pytest.raises(UserError, match=r"^advantages: is GAE, which needs the values of a critic"):
        GSPOTrainer(model, tokenizer, CONFIG, "GRPO", GAE())
    with pytest.raises(UserError, match=r"^advantages: is GroupNormalised, which never asks the critic"):
        GSPOTrainer(model, tokenizer, CONFIG, "GRPO", critic=ValueModel())
    with pytest.raises(UserError, match="but GSPO takes one per response"):
        GSPOTrainer(model, tokenizer, CONFIG, advantages=GAE(), critic=ValueModel())
