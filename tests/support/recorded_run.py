"""Writes run folders as a training run leaves them, with curves that have the shape of real ones."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torch.utils.tensorboard import SummaryWriter

EXAMPLES = [
    {"prompt": "7+5*3-4:", "answer": "2", "before": "#5", "after": "7+5=2;2*3=6;6-4=2;#2"},
    {"prompt": "1*9|2+3:", "answer": "4", "before": "#`x`\n#4", "after": "1*9=9;9+2=1;1+3=4;#4"},
]


def curves(objective: str, seed: int, iterations: int, per_iteration: int = 4) -> dict[str, np.ndarray]:
    """{tag: [updates]}: the quickstart's numbers; token-level objectives clip few tokens and have rougher gradients."""
    rng = np.random.default_rng([seed, len(objective), *objective.encode()])
    iteration = np.repeat(np.arange(iterations), per_iteration).astype(float)
    tooth = np.tile(np.arange(per_iteration), iterations) / max(per_iteration - 1, 1)
    speed = 3.2 if objective == "GSPO" else 2.4
    learned = np.repeat(1 - np.exp(-np.arange(iterations) / speed), per_iteration)
    wobble = np.repeat(rng.normal(0, 0.02, iterations), per_iteration)
    reward = np.clip(0.3 + 0.69 * learned + wobble, 0, 1)
    sequence = objective.startswith("GSPO")
    noise = rng.lognormal(0, 0.25, len(iteration))
    norm = (0.9 + 0.8 * np.exp(-iteration / 6)) * noise
    if not sequence:
        norm = norm * np.where(rng.random(len(norm)) < 0.04, 6.0, 1.0)
    tags = {
        "reward/mean": reward,
        "reward/std": np.sqrt(reward * (1 - reward)),
        "reward/dead_groups": np.clip(0.15 + 0.8 * learned**3 + wobble, 0, 1),
        "response/length": 8 + 13 * learned + 10 * wobble,
        "response/terminated": np.clip(0.97 + 0.03 * learned + 0.2 * wobble, 0, 1),
        "response/truncated": 1 - np.clip(0.97 + 0.03 * learned + 0.2 * wobble, 0, 1),
        "ratio/log_sequence_std": 0.03 * tooth * noise * (1 - 0.7 * learned),
        "clip/tokens": (0.55 if sequence else 0.004) * tooth * np.clip(noise, 0, 1.4),
        "kl/old_new_k3": 8e-4 * tooth**2 * noise,
        "policy/entropy": 0.03 + 0.2 * np.exp(-iteration / 4) * np.clip(noise, 0.8, 1.2),
        "optim/gradient_norm": norm,
        "data/iteration": iteration,
        "throughput/generated_tokens_per_s": 9000 * noise,
        "loss": -1e-3 * tooth * noise,
    }
    return tags | ({"clip/sequences": tags["clip/tokens"]} if sequence else {})


def write_run(
    folder: Path,
    *,
    objective: str = "GSPO",
    seed: int = 1,
    iterations: int = 20,
    without: Collection[str] = (),
    changed: dict[str, np.ndarray] | None = None,
    finished: bool = True,
    evaluations: dict[int, float] | None = None,
) -> Path:
    """A run folder; ``changed`` replaces curves, ``without`` leaves tags out, not ``finished`` has no summary."""
    folder.mkdir(parents=True)
    tags = curves(objective, seed, iterations) | (changed or {})
    writer = SummaryWriter(str(folder))
    updates = len(tags["data/iteration"])
    if evaluations is None:
        at = np.arange(0, updates + 1, 20)
        scale = {"GSPO": 14.0}.get(objective, 10.0) + 2.5 * seed
        evaluations = {int(u): float(0.24 + (0.75 - 0.01 * seed) * (1 - np.exp(-u / scale))) for u in at}
    for tag, values in tags.items():
        for step, value in enumerate(values, start=1):
            if tag not in without:
                writer.add_scalar(tag, value, step)
    for step, accuracy in evaluations.items():
        if "val/accuracy" not in without:
            writer.add_scalar("val/accuracy", accuracy, step)
            writer.add_scalar("val/accuracy_standard_error", 0.02, step)
    writer.close()
    config: dict[str, Any] = {
        "seed_everything": seed,
        "trainer": {"gradient_clip_val": 1.0},
        "model": {
            "name_or_path": "tiny-qwen3",
            "objective": {
                "class_path": f"gspo_lightning.objectives.{objective}",
                "init_args": {"clip_low": 3e-4, "clip_high": 4e-4},
            },
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if finished:
        summary = {
            "accuracy_before": min(evaluations.items())[1] if evaluations else None,
            "accuracy_after": max(evaluations.items())[1] if evaluations else None,
            "iterations": iterations,
            "updates": updates,
            "seconds": 61.4,
            "objective": objective,
            "seed": seed,
            "clip_fraction_tokens": float(tags["clip/tokens"].mean()),
            "examples": EXAMPLES,
            "peak_memory_mb": 812.5,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder
