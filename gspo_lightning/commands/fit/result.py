"""What ``gspo validate`` and ``gspo test`` leave: a JSON file that says what was found, and of what."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gspo_lightning.callbacks.folder import fresh_folder
from gspo_lightning.resume import write_text
from gspo_lightning.resume.versions import versions
from gspo_lightning.training.module import GSPOModule

__all__ = ["shown_metrics", "write_result"]


def shown_metrics(module: GSPOModule) -> dict[str, float]:
    """What the last evaluation found; without accuracy and pass@k where the reward does not say right or wrong."""
    found = module.evaluator.last
    if module.shown_by == "accuracy":
        return dict(found)
    return {name: value for name, value in found.items() if not name.startswith(("val/accuracy", "val/pass@"))}


def write_result(
    command: str, run: Path, module: GSPOModule, prompts: int, checkpoint: str | None, config: Mapping[str, Any]
) -> Path:
    """Write ``<run>/<command>/<time>/<command>.json``; returns its path.

    Args:
        command: validate or test.
        run: folder of the run whose policy answered.
        module: has evaluated.
        prompts: how many were answered.
        checkpoint: that was loaded; None where the model is as the config says.
        config: of the command. Its hash leaves out where it was written and which checkpoint was loaded.

    Raises:
        OSError: the folder cannot be written.
        UserError: a file is in its place.
    """
    settings = {name: value for name, value in config.items() if name not in ("config", "ckpt_path")}
    finite = {name: value if math.isfinite(value) else None for name, value in shown_metrics(module).items()}
    content = {
        "command": command,
        "metrics": finite,
        "prompts": prompts,
        "samples_per_prompt": module.data.evaluation.samples,
        "data": module.data.fingerprints(),
        "model": module.settings.name_or_path,
        "checkpoint": checkpoint,
        "update": module.version,
        "seed": module.data.settings.seed,
        "config_sha256": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest(),
        "versions": versions(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    path = fresh_folder(run / command) / f"{command}.json"
    write_text(path, json.dumps(content, indent=2) + "\n")
    return path
