"""The routers' load-balancing loss in whole runs: what is configured reaches the weights, and is transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from gspo_lightning.commands.replay import replay
from gspo_lightning.loop.update.dump import Dump
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.tiny import build_tiny_model
from tests import ROOT
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks

MOE = ROOT / "configs" / "moe.yaml"
COEF = 0.01
CONSTANT = [
    "--model.cold_start=null", f"--config={MOE}", f"--plugins={Path(__file__).with_name('graded.py')}",
    '--data.rewards={"flat": "Flat"}', "--trainer.max_epochs=1", "--data.minibatches_per_rollout=1",
    "--trainer.gradient_clip_val=null", "--data.record_rollouts=true", "--data.val=null",
    "--trainer.num_sanity_val_steps=0",
]  # fmt: skip
"""Every response is worth the same, so that the objective has no gradient of its own; one update, not clipped."""


def transformers_loss(model: PreTrainedModel, run: Path) -> torch.Tensor:
    """``load_balancing_loss_func`` over the whole mini-batch, padded on the right, without anything of this package."""
    rows = [json.loads(line) for file in sorted((run / "rollouts").iterdir()) for line in file.open()]
    forwarded = [torch.tensor(row["prompt_ids"] + row["completion_ids"][:-1]) for row in rows]  # the last never is
    ids = torch.nn.utils.rnn.pad_sequence(forwarded, batch_first=True)
    mask = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in forwarded]).unsqueeze(1)
    out = model(ids, attention_mask=mask.long(), output_router_logits=True)
    config = model.config
    loss = load_balancing_loss_func(out.router_logits, config.num_experts, config.num_experts_per_tok, mask.long())
    assert isinstance(loss, torch.Tensor)
    return loss


def first_gradients(run: Path) -> list[torch.Tensor]:
    """Of the only update: AdamW's first moment after one step is a tenth of it."""
    (state,) = runs.checkpoint(run)["optimizer_states"]
    return [state["state"][i]["exp_avg"] / 0.1 for i in range(len(state["state"]))]


def check_gradients(run: Path) -> None:
    model = build_tiny_model("tiny-qwen3-moe", seed=1)
    loss = transformers_loss(model, run)
    (COEF * loss).backward()
    wanted = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    found = first_gradients(run)
    assert max(float(g.abs().max()) for g in wanted) > 1e-4
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-8)
    ((step, logged),) = runs.scalars(run)["moe/aux_loss"]
    assert step == 1
    assert logged == pytest.approx(float(loss), rel=1e-5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A balanced update in one micro-batch."""
    return runs.fit(tmp_path_factory.mktemp("whole"), *CONSTANT, f"--model.router_aux_loss_coef={COEF}")


@pytest.mark.thorough
def test_the_balance_of_a_run_is_that_of_transformers(whole: Path) -> None:
    assert runs.scalars(whole)["data/micro_batches"] == [(1, 1.0)]
    check_gradients(whole)


@pytest.mark.thorough
def test_the_balance_does_not_depend_on_the_token_budget(tmp_path: Path) -> None:
    chosen = ["--data.max_tokens_per_micro_batch=64", f"--model.router_aux_loss_coef={COEF}"]
    run = runs.fit(tmp_path, *CONSTANT, *chosen)
    assert runs.scalars(run)["data/micro_batches"][0][1] > 4
    check_gradients(run)


def test_without_a_coefficient_nothing_moves_and_nothing_is_measured(tmp_path: Path) -> None:
    run = runs.fit(tmp_path, *CONSTANT)
    assert all(not bool(g.any()) for g in first_gradients(run))
    assert "moe/aux_loss" not in runs.scalars(run)


@pytest.mark.thorough
def test_the_coefficient_reaches_the_weights_beside_an_objective(tmp_path: Path) -> None:
    chosen = [*runs.UNTAUGHT, f"--config={MOE}", "--trainer.max_epochs=1", "--data.val=null"]
    balanced, free = (
        runs.fit(tmp_path / str(coef), *chosen, f"--model.router_aux_loss_coef={coef}") for coef in (0.01, 0.0)
    )
    assert runs.largest_difference(runs.weights(balanced), runs.weights(free)) > 1e-4
    assert [step for step, _ in runs.scalars(balanced)["moe/aux_loss"]] == [1, 2]
    assert all(2 <= value <= 16 for _, value in runs.scalars(balanced)["moe/aux_loss"])  # k of E experts


@pytest.mark.thorough
@pytest.mark.slow
def test_two_ranks_balance_their_tokens_together(tmp_path: Path) -> None:
    """Each rank holds other rows: their means of shares are not the share of the whole."""
    coef = f"--model.router_aux_loss_coef={COEF}"
    check_gradients(fit_on_ranks(tmp_path / "two", *CONSTANT, coef, "--trainer.strategy=ddp"))


@pytest.mark.thorough
def test_a_replayed_update_is_balanced_too(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, norm),) = runs.scalars(whole)["optim/gradient_norm"]
    original = GSPO.__call__

    def poisoned(self: GSPO, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        out.loss = out.loss * float("nan")
        return out

    monkeypatch.setattr(GSPO, "__call__", poisoned)
    run = runs.fit(tmp_path, *CONSTANT, f"--model.router_aux_loss_coef={COEF}", code=1)
    monkeypatch.undo()
    lines, values = replay(Dump.read(run / "dumps" / "update-00000001.pt"))
    assert not lines
    assert values["optim/gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert norm > 1e-4
