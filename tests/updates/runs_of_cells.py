"""A cell as a config file, its run through ``gspo fit``, and what the run has left: rollouts, and weights by update."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from gspo_lightning.cli import main
from gspo_lightning.commands.export import sharded_weights
from tests import ROOT
from tests.runs.processes import Command
from tests.updates.cells import OBJECTIVES, TOKENS, Cell

__all__ = ["Outcome", "config_of", "fitted", "refused_by"]

SEED = 1
TEMPERATURE = 0.8
GROUP = 4
PASSES = 2
"""Updates of an iteration, each on all of its rows: in the second no ratio is 1."""
LIMIT = 0.05
"""Of the gradient's norm, which is larger."""
RANK = 4
ALPHA = 16.0
RATES = {"AdamW": 2e-4, "8-bit": 2e-4, "SGD": 0.3, "Muon": 2e-3}
CLASSES = {
    "AdamW": "torch.optim.AdamW", "SGD": "torch.optim.SGD", "8-bit": "bitsandbytes.optim.AdamW8bit",
    "Muon": "torch.optim.Muon",
}  # fmt: skip
DENSE = {"num_key_value_heads": 2, "tie_word_embeddings": True}
GAE = {"gamma": 0.98, "lam": 0.9, "lam_value": 0.95}
CRITIC_RATE = 1e-3
CRITIC_LIMIT = 0.5
TESTS = Path(__file__).parents[1] / "runs"
SCALER = {"class_path": "torch.amp.GradScaler", "init_args": {"device": "cpu", "init_scale": 1024.0}}
FLOAT16 = {
    "class_path": "lightning.pytorch.plugins.MixedPrecision",
    "init_args": {"precision": "16-mixed", "device": "cpu", "scaler": SCALER},
}
"""16-mixed on a CPU, which Lightning by itself turns into bf16-mixed."""


def config_of(cell: Cell) -> dict[str, Any]:
    """The YAML of a cell: no setting that it does not name is set, such as a weight decay."""
    optimizer: dict[str, Any] = {"class_path": CLASSES[cell.optimizer], "init_args": {"lr": RATES[cell.optimizer]}}
    if cell.optimizer == "SGD":
        optimizer["init_args"]["momentum"] = 0.9
    model: dict[str, Any] = {
        "name_or_path": "tiny-qwen3" if cell.model == "dense" else "tiny-qwen3-moe",
        "objective": {"class_path": cell.objective, "init_args": OBJECTIVES[cell.objective].settings},
        "optimizer": optimizer, "allow_unusual_clip": True, "old_logprobs": "recompute", "metrics": "basic",
    }  # fmt: skip
    if cell.model == "dense":
        model["config_overrides"] = DENSE
    if cell.model in ("MoE R2", "MoE R3"):
        model["routing_replay"] = cell.model.removeprefix("MoE ")
    if cell.strategy == "cp" and cell.model == "MoE":
        model["router_metrics"] = False
    if cell.weights != "all":
        model["lora"] = {"r": RANK, "alpha": ALPHA, "base": "4bit" if cell.weights == "QLoRA" else "as_loaded"}
    trainer: dict[str, Any] = {
        "accelerator": "cpu", "devices": cell.ranks, "max_epochs": 2 if cell.critic == "critic" else 1,
        "gradient_clip_val": LIMIT, "limit_val_batches": 0, "num_sanity_val_steps": 0,
        "callbacks": [
            {"class_path": "RunSummary", "init_args": {"report": False}},
            {
                "class_path": "tests.runs.saving.SaveAnywhere",
                "init_args": {"moments": ["on_train_start", "on_train_batch_end"]},
            },
        ],
    }  # fmt: skip
    if cell.precision == "bf16-mixed":
        trainer["precision"] = "bf16-mixed"
    if cell.precision == "16-mixed":
        trainer["plugins"] = [FLOAT16]
    data: dict[str, Any] = {
        "train": {"class_path": "ChainTask", "init_args": {"split": "train", "size": 64}},
        "rewards": {"graded": "Graded"}, "group_size": GROUP, "prompts_per_rollout": 4, "minibatches_per_rollout": 1,
        "epochs_per_rollout": PASSES, "max_prompt_tokens": 16, "max_response_tokens": TOKENS,
        "max_tokens_per_micro_batch": 60, "temperature": TEMPERATURE, "reward_workers": 1, "record_rollouts": True,
    }  # fmt: skip
    if cell.critic == "critic":
        settings = {"lr": CRITIC_RATE, "gradient_clip": CRITIC_LIMIT, "clip": 0.2}
        model["critic"] = {"class_path": "ValueModel", "init_args": settings}
        data["advantages"] = {"class_path": "GAE", "init_args": GAE}
    config = {"seed_everything": SEED, "plugins": [str(TESTS / "graded.py")]}
    return config | {"trainer": trainer, "model": model, "data": data}


@dataclass(frozen=True)
class Outcome:
    """What a run has left: recorded responses, and weights before the first update and after each."""

    rows: list[list[dict[str, Any]]]
    """By iteration."""
    weights: list[dict[str, Tensor]]
    critics: list[dict[str, Any]]
    """Of the same moments; empty without a critic."""


def fitted(cell: Cell, root: Path, changes: dict[str, Any] | None = None) -> Outcome:
    """Train a cell in a folder that is not there yet; ``changes`` is laid over its config."""
    code, output = _run(cell, root, changes or {})
    assert code == 0, output
    (run,) = (root / "runs" / "cell").iterdir()
    recorded = [
        json.loads(line) for file in sorted((run / "rollouts").iterdir()) for line in file.read_text().splitlines()
    ]
    iterations = sorted({row["iteration"] for row in recorded})
    moments = sorted((run / "checkpoints").glob("moment-*.ckpt"))
    assert len(moments) == 1 + PASSES * len(iterations)
    return Outcome(
        [[row for row in recorded if row["iteration"] == iteration] for iteration in iterations],
        [_weights(moment) for moment in moments],
        [_critic(moment) for moment in moments] if cell.critic == "critic" else [],
    )


def refused_by(cell: Cell, root: Path, changes: dict[str, Any] | None = None, ranks: int | None = None) -> str:
    """The output of a cell's run that ends with a mistake of the user's, on its own number of ranks or another."""
    code, output = _run(cell, root, changes or {}, ranks)
    assert code == 2, output
    assert "Traceback" not in output
    return output


def _run(cell: Cell, root: Path, changes: dict[str, Any], ranks: int | None = None) -> tuple[int | None, str]:
    root.mkdir(parents=True)
    ranks = cell.ranks if ranks is None else ranks
    config = root / "cell.yaml"
    changes = _laid_over({"trainer": {"devices": ranks}}, changes)
    config.write_text(yaml.safe_dump(_laid_over(config_of(cell), changes)))
    argv = ["fit", f"--config={config}", f"--trainer.default_root_dir={root / 'runs'}"]
    if cell.strategy != "one process":
        argv.insert(2, f"--config={ROOT / 'configs' / cell.strategy}.yaml")
    if ranks == 1:
        output = io.StringIO()
        with contextlib.redirect_stderr(output):
            code = main(argv)
        return code, output.getvalue()
    log = root / "log"
    codes = Command(argv, ranks, log=log).start().wait(240)
    assert len(set(codes)) == 1, log.read_text()
    return codes[0], log.read_text()


def _laid_over(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _laid_over(merged[key], value) if both else value
    return merged


def _weights(checkpoint: Path) -> dict[str, Tensor]:
    if checkpoint.is_dir():
        state = sharded_weights(checkpoint)
    else:
        state = torch.load(checkpoint, weights_only=True)["state_dict"]
    named = {name.removeprefix("policy.model."): weight for name, weight in state.items()}
    return {name.replace(".default.weight", ""): weight for name, weight in named.items()}


def _critic(checkpoint: Path) -> dict[str, Any]:
    file = checkpoint / "meta.pt" if checkpoint.is_dir() else checkpoint
    state: dict[str, Any] = torch.load(file, weights_only=True)["gspo_critic"]
    return state
