"""The table of docs/critic.md is what the program does: which objective takes advantages per token."""

from __future__ import annotations

import re

import pytest
import torch

from gspo_lightning import GSPOConfig, GSPOTrainer
from gspo_lightning.advantages import GAE, BatchNormalised
from gspo_lightning.critic import ValueModel
from gspo_lightning.errors import UserError
from gspo_lightning.objectives import DrGRPO, Objective
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.registry import component, components
from tests import ROOT

ROWS = re.findall(
    r"^\| `(\w+)` \| (yes|refused)[^|]*\| yes \|$", (ROOT / "docs" / "critic.md").read_text(), re.MULTILINE
)


def made(name: str) -> Objective:
    return DrGRPO(6) if name == "DrGRPO" else component("objectives", name)()


def test_the_table_has_every_objective() -> None:
    ours = {n for n, cls in components("objectives").items() if cls.__module__.startswith("gspo_lightning.")}
    assert {name for name, _ in ROWS} == ours


@pytest.mark.parametrize(("name", "word"), ROWS)
def test_an_objective_takes_advantages_per_token_or_is_refused(name: str, word: str) -> None:
    model, tokenizer = build_tiny_model("tiny-qwen3", seed=0), character_tokenizer()
    config, objective = GSPOConfig(learning_rate=1e-3, max_response_tokens=6), made(name)

    def train(**options: object) -> float:
        trainer = GSPOTrainer(model, tokenizer, config, objective, **options)  # type: ignore[arg-type]
        return trainer.train_step(["1+1:", "2*3:"], lambda q, r: float(len(set(r))))["optim/gradient_norm"]

    if word == "refused":
        with pytest.raises(UserError, match=f"but {name} takes one per response"):
            train(advantages=GAE(), critic=ValueModel())
    else:
        assert train(advantages=GAE(), critic=ValueModel()) > 0
    assert train(advantages=BatchNormalised()) > 0
    assert torch.isfinite(torch.cat([p.flatten() for p in model.parameters()])).all()
