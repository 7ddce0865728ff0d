"""``GSPOTrainer`` with ``positive_nll_coef``: what is correct follows from the reward that the caller gives."""

from __future__ import annotations

import pytest

from gspo_lightning import GSPOConfig, GSPOTrainer
from gspo_lightning.core.errors import UserError
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.rewards import Reward
from tests.training.test_trainer import QUERIES, graded

CONFIG = GSPOConfig(learning_rate=1e-3, group_size=4, max_response_tokens=8)


class Early(Reward):
    """About half of all responses are correct."""

    def score(self, completion: str) -> float:
        return float(graded("", completion) < 0.5)


def trainer(**more: object) -> GSPOTrainer:
    objective = GSPO(positive_nll_coef=0.1, distill_coef=1.0 if more else 0.0)
    model = build_tiny_model("tiny-qwen3", seed=0)
    return GSPOTrainer(model, character_tokenizer(), CONFIG, objective, **more)  # type: ignore[arg-type]


def test_a_function_and_a_reward_mark_the_same_responses() -> None:
    found = [
        trainer().train_step(QUERIES, reward)
        for reward in (Early(), lambda query, response: float(graded(query, response) < 0.5))
    ]
    assert 0 < found[0]["policy/positive_tokens"] < 1
    assert found[0]["policy/positive_nll"] > 1
    for tag in ("policy/positive_tokens", "policy/positive_nll", "loss", "optim/gradient_norm"):
        assert found[0][tag] == found[1][tag], tag
    half = trainer().train_step(QUERIES, lambda query, response: 0.5 * Early().score(response))
    assert (half["policy/positive_tokens"], half["policy/positive_nll"]) == (0.0, 0.0)  # nothing reaches 1


def test_a_teacher_alone_marks_nothing_and_is_refused() -> None:
    with pytest.raises(UserError, match="reward_function: is None, so no response can be correct"):
        trainer(teacher=build_tiny_model("tiny-qwen3", seed=7)).train_step(QUERIES)
