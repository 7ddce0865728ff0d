"""docs/critic.md is what the program does: an objective takes advantages per token, or `gspo list` says otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gspo_lightning import GSPOConfig, GSPOTrainer
from gspo_lightning.commands.list import table
from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.advantages import GAE, BatchNormalised
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from tests.objectives.reference_formulas import FAMILY, REQUIRED, made


def said_to_take_one_per_response() -> set[str]:
    """Names of the objectives of which the table of `gspo list objectives` says so."""
    names, _, texts = (list(column.cells) for column in table("objectives").columns)
    return {str(name) for name, text in zip(names, texts, strict=True) if "one advantage per response" in str(text)}


def trainer(name: str) -> Callable[..., float]:
    """A step of this objective on the tiny model: its gradient norm."""
    model, tokenizer = build_tiny_model("tiny-qwen3", seed=0), character_tokenizer()
    limit = REQUIRED.get(name, {}).get("max_response_tokens", 6)
    config = GSPOConfig(learning_rate=1e-3, group_size=4, max_response_tokens=limit)

    def train(**options: object) -> float:
        steps = GSPOTrainer(model, tokenizer, config, made(name), **options)  # type: ignore[arg-type]
        norm = steps.train_step(["1+1:", "2*3:"], lambda q, r: float(len(set(r))))["optim/gradient_norm"]
        assert torch.isfinite(torch.cat([p.flatten() for p in model.parameters()])).all()
        return norm

    return train


def test_the_list_says_which_objectives_take_one_advantage_per_response() -> None:
    assert said_to_take_one_per_response() >= {"GSPO", "GMPO", "LUSPO", "VESPO"}
    assert not said_to_take_one_per_response() & {"GSPOToken", "GRPO", "DAPO", "PPO", "CISPO", "DrGRPO", "REINFORCE"}


@pytest.mark.thorough("REINFORCE", "SAPO", "Segment")
@pytest.mark.parametrize("name", FAMILY)
def test_an_objective_takes_advantages_per_token_or_is_refused(name: str) -> None:
    train = trainer(name)
    if name in said_to_take_one_per_response():
        with pytest.raises(UserError, match=f"but {name} takes one per response"):
            train(advantages=GAE(), critic=ValueModel())
    else:
        assert train(advantages=GAE(), critic=ValueModel()) > 0
    assert train(advantages=BatchNormalised()) > 0
