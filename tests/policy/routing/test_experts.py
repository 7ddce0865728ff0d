"""How experts are multiplied is a word in the config; what they answer does not depend on it."""

from __future__ import annotations

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings

IDS = torch.arange(24).view(2, 12) + 3


@torch.no_grad()
def logits(word: str | None) -> tuple[str, torch.Tensor]:
    model = load_policy(ModelSettings("tiny-qwen3-moe", experts_implementation=word)).model
    return str(model.config._experts_implementation), model(IDS).logits


def test_every_implementation_gives_the_same_logits() -> None:
    chosen, expected = logits(None)
    assert chosen == "grouped_mm"
    for word in ("eager", "batched_mm"):
        name, found = logits(word)
        assert name == word
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("model", "word"), [("tiny-qwen3-moe", "fast"), ("tiny-qwen3", "grouped_mm")])
def test_an_implementation_that_a_model_does_not_take_is_refused(model: str, word: str) -> None:
    with pytest.raises(UserError, match=r"model\.experts_implementation"):
        load_policy(ModelSettings(model, experts_implementation=word))
