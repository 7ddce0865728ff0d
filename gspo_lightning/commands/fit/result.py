"""Result file of ``gspo validate`` and ``gspo test``: metrics, data, model and versions as JSON."""

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
    """Return the last evaluation's metrics, without accuracy and pass@k unless the reward judges correctness."""
    found = module.evaluator.last
    if module.shown_by == "accuracy":
        return dict(found)
    return {name: value for name, value in found.items() if not name.startswith(("val/accuracy", "val/pass@"))}


def write_result(
    command: str, run: Path, module: GSPOModule, prompts: int, checkpoint: str | None, config: Mapping[str, Any]
) -> Path:
    """Write ``<run>/<command>/<time>/<command>.json`` and return its path.

    Args:
        command: validate or test.
        run: folder of the evaluated run.
        module: module after its evaluation.
        prompts: number of answered prompts.
        checkpoint: loaded checkpoint; None if the weights come from the config's model.
        config: config of the command; its hash excludes the config file's path and the checkpoint.

    Raises:
        OSError: the folder cannot be written.
        UserError: a file is in place of the folder.
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
