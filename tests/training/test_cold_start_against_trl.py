"""The cold start beside TRL's own ``SFTTrainer``: the same batches give the same losses and the same weights."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from gspo_lightning.core.randomness import Purpose, permutation, stream
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.data.prompts.taught import PromptFormat, Taught, teach
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.training.cold_start import ColdStart
from tests.training.test_cold_start import Spoken

REASON = "TRL is not installed: `make test-trl` (the extra 'bench', trl==1.16.0) runs this comparison"
TASK = Spoken(*(pair for n in (2, 3, 4) for pair in ChainTask("cold_start", size=16, operands=n).demonstrations()))
COLD = ColdStart(TASK, steps=12, batch_size=8, learning_rate=3e-3, warmup_steps=3, gradient_clip=0.5)
TINY = ModelSettings("tiny-qwen3", seed=1)


def batches(rows: list[Taught], cold: ColdStart, seed: int) -> list[Taught]:
    """The rows of all steps, one batch after another."""
    orders = [permutation(stream(seed, Purpose.COLD_START, step), len(rows)) for step in range(cold.steps)]
    return [rows[int(i)] for order in orders for i in order[: cold.batch_size]]


def by_trl(model: Any, tokenizer: Any, rows: list[Taught], cold: ColdStart, folder: Path, accumulate: int) -> Any:
    """A trainer of TRL after the same steps."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    class InOrder(SFTTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return SequentialSampler(dataset if dataset is not None else self.train_dataset)

    records = [
        {
            "input_ids": [*row.prompt, *row.response],
            "labels": [-100] * len(row.prompt)
            + [token if learnt else -100 for token, learnt in zip(row.response, row.mask, strict=True)],
        }
        for row in rows
    ]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=cold.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    config = SFTConfig(
        str(folder), max_steps=cold.steps, per_device_train_batch_size=cold.batch_size // accumulate,
        gradient_accumulation_steps=accumulate, max_grad_norm=cold.gradient_clip, logging_steps=1, report_to="none",
        use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cold._schedule)
    trainer = InOrder(
        model, config, train_dataset=Dataset.from_list(records), processing_class=tokenizer,
        optimizers=(optimizer, scheduler),
    )  # fmt: skip
    trainer.train()
    return trainer


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("lora", [None, LoRA(r=4)], ids=["all weights", "adapters"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_and_weights_are_those_of_trl(layout: Any, lora: LoRA | None, accumulate: int, tmp_path: Path) -> None:
    pytest.importorskip("trl", minversion="1.16", reason=REASON)
    policy = load_policy(dataclasses.replace(TINY, lora=lora))
    policy.model.double()  # in float32 AdamW makes rounding of a gradient near 0 visible, on some processors more
    theirs = copy.deepcopy(policy.model)
    cold = dataclasses.replace(COLD, adapters=lora is not None)
    rows = teach(TASK.demonstrations(), policy.tokenizer, policy.eos_token_ids, PromptFormat(), str, "x")
    assert len({len(row.prompt) + len(row.response) for row in rows}) > 3  # padded rows have padding
    curve = cold.train(policy, seed=1, layout=layout)
    assert policy.packed == (layout == "packed")
    trainer = by_trl(theirs, policy.tokenizer, batches(rows, cold, 1), cold, tmp_path, accumulate)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [point.loss for point in curve] == pytest.approx(losses, rel=1e-5)
    assert curve[-1].loss < 0.9 * curve[0].loss
    own, other = policy.model.state_dict(), trainer.model.state_dict()
    assert own.keys() == other.keys()
    assert max(float((own[name] - other[name]).abs().max()) for name in own) < 1e-5
