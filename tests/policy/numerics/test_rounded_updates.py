"""What products see of the first update, beside a layer under autocast and one step of AdamW."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.numerics.rounded_updates import rounding_line, sample, say_rounded_updates, share_seen
from tests.runs import runs

RATE = 1e-6


def layer_of(dtype: torch.dtype) -> nn.Linear:
    """A layer whose float32 weights are numbers of a dtype, of the size that they have in models."""
    torch.manual_seed(0)
    layer = nn.Linear(512, 512, bias=False)
    with torch.no_grad():
        layer.weight.copy_((0.09 * torch.randn(512, 512)).to(dtype))
    return layer


def moved_by_autocast(layer: nn.Linear) -> float:
    """How far a step of AdamW moves the layer's outputs under autocast, along their move in float64."""
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    goal = torch.randn(256, 512, generator=torch.Generator().manual_seed(2))

    def outputs() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return x.double() @ layer.weight.double().t(), x.double() @ layer.weight.bfloat16().double().t()

    optimizer = torch.optim.AdamW(layer.parameters(), lr=RATE, weight_decay=0.0)
    exact, rounded = outputs()
    with torch.autocast("cpu", torch.bfloat16):
        loss = (layer(x).float() * goal).sum()
    loss.backward()
    optimizer.step()
    exact_after, rounded_after = outputs()
    move = exact_after - exact
    return float(((rounded_after - rounded) * move).sum() / move.square().sum())


@pytest.mark.parametrize(("dtype", "least", "most"), [
    (torch.float32, 0.7, 1.3), (torch.bfloat16, 0.0, 0.1), (torch.float16, 15.0, 60.0),
])  # fmt: skip
def test_share_of_the_first_update_is_what_autocast_makes_of_a_step(
    dtype: torch.dtype, least: float, most: float
) -> None:
    layer = layer_of(dtype)
    share = share_seen(sample(layer.parameters()), torch.bfloat16, RATE)
    assert least <= share <= most
    assert moved_by_autocast(layer) == pytest.approx(share, rel=0.25, abs=0.05)


def test_a_line_names_what_is_seen_and_is_said_for_steps_of_the_learning_rate_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert rounding_line(layer_of(torch.float32).parameters(), torch.bfloat16, RATE) is None
    few = rounding_line(layer_of(torch.bfloat16).parameters(), torch.bfloat16, RATE)
    assert few is not None
    assert "see 1% of the first update at a learning rate of 1e-06, and half of what about 128 of them add up to" in few
    layer = layer_of(torch.float16)
    for optimizer, dtype, said in (
        (torch.optim.AdamW(layer.parameters(), lr=RATE), torch.bfloat16, 1),
        (torch.optim.AdamW(layer.parameters(), lr=RATE), None, 0),
        (torch.optim.SGD(layer.parameters(), lr=RATE), torch.bfloat16, 0),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            say_rounded_updates(layer.parameters(), dtype, [SimpleNamespace(optimizer=optimizer, **vars(optimizer))])
        assert caplog.text.count("times as large as a learning rate of 1e-06 makes it") == said
    frozen = layer.requires_grad_(False)
    assert rounding_line(frozen.parameters(), torch.bfloat16, RATE) is None


def test_a_run_from_a_float16_checkpoint_says_it_in_bf16_mixed_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(ModelSettings("tiny-qwen3"))
    policy.model.half().float().save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    short = [*runs.UNTAUGHT, "--data.val=null", f"--model.name_or_path={tmp_path / 'model'}", "--trainer.max_epochs=1"]
    for precision, said in (("32-true", 0), ("bf16-mixed", 1)):
        runs.fit(tmp_path, *short, f"--trainer.precision={precision}", "--model.optimizer.init_args.lr=1e-6")
        assert capsys.readouterr().err.count("times as large as a learning rate of 1e-06 makes it") == said
