"""Default values of training settings."""

from __future__ import annotations

from typing import Any

DEFAULT_CLASSES = {
    "model.old_policy": "gspo_lightning.loop.old_policy.CachedLogProbs",
    "data.advantages": "gspo_lightning.loop.advantages.GroupNormalised",
    "data.rollouts": "gspo_lightning.rollouts.GroupedSampler",
}
"""Field -> class path of the default component."""
DEFAULT_ROOT = "runs"
"""Default folder of all runs."""
DEFAULTS: dict[str, Any] = {
    **{field: {"class_path": path} for field, path in DEFAULT_CLASSES.items()},
    "trainer.default_root_dir": DEFAULT_ROOT,
    "trainer.gradient_clip_val": 1.0,
    "trainer.num_sanity_val_steps": -1,  # the evaluation before the first update
    "trainer.log_every_n_steps": 1,
    "trainer.max_epochs": 100,
    "trainer.accelerator": "auto",
    "trainer.enable_model_summary": False,
}
"""Field -> default, where it differs from Lightning's or Lightning has none."""
