"""``GSPOTrainer(teacher=...)``: a model, a folder or a server, alone or beside a reward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_lightning import GSPOConfig, GSPOTrainer
from gspo_lightning.core.errors import UserError
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from tests.rollouts.toy_server import ToyServer
from tests.training.test_trainer import QUERIES, graded

CONFIG = GSPOConfig(learning_rate=3e-3, max_response_tokens=8, group_size=8)


def teacher() -> PreTrainedModel:
    model = build_tiny_model("tiny-qwen3", seed=7)
    with torch.no_grad():
        model.lm_head.weight.mul_(3.0)
    return model


def trainer(taught: PreTrainedModel | str | None, config: GSPOConfig = CONFIG, **objective: object) -> GSPOTrainer:
    followed = GSPO(**{"distill_coef": 1.0, **objective})  # type: ignore[arg-type]
    return GSPOTrainer(build_tiny_model("tiny-qwen3", seed=0), character_tokenizer(), config, followed, teacher=taught)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.thorough
@pytest.mark.parametrize("exact", [False, True])
def test_a_teacher_alone_is_followed(exact: bool) -> None:
    own = teacher()
    before = weights(own)
    taught = trainer(own, distill_exact=exact)
    kl = [taught.train_step(QUERIES * 2)["distill/kl"] for _ in range(16)]
    assert sum(kl[-4:]) < 0.7 * sum(kl[:4])
    assert all(torch.equal(value, before[name]) for name, value in weights(own).items())
    assert taught.train_step(QUERIES)["reward/mean"] == 0.0


def test_a_reward_beside_it_changes_what_is_learned() -> None:
    alone, both = trainer(teacher()), trainer(teacher())
    alone.train_step(QUERIES)
    both.train_step(QUERIES, graded)
    theirs = weights(both.policy.model)
    assert any(not torch.equal(value, theirs[name]) for name, value in weights(alone.policy.model).items())


@pytest.mark.thorough
def test_a_folder_and_a_server_teach_like_the_model(tmp_path: Path) -> None:
    own = teacher()
    own.save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    with ToyServer() as toy:
        toy.load(str(tmp_path))
        found = []
        for taught in (own, str(tmp_path), toy.url):
            one = trainer(taught)
            found.append(one.train_step(QUERIES)["distill/kl"])
            assert one.teacher is not None
            one.teacher.close()
    assert found[1:] == pytest.approx([found[0]] * 2, abs=1e-5)


@pytest.mark.thorough
def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="teacher: is not set, but the objective's distill_coef is 1"):
        trainer(None)
    with pytest.raises(UserError, match="teacher: is set, but the objective's distill_coef is 0"):
        trainer(teacher(), distill_coef=0.0)
    with pytest.raises(UserError, match=r"data.temperature: is 0.5, but a server's"):
        trainer("http://127.0.0.1:9", GSPOConfig(temperature=0.5))
    plain = GSPOTrainer(build_tiny_model("tiny-qwen3", seed=0), character_tokenizer(), CONFIG)
    with pytest.raises(UserError, match="reward_function: is None, and there is no teacher either"):
        plain.train_step(QUERIES)
