"""Fine-tune language models with sequence-level reinforcement learning (GSPO) on Lightning.

Importing the package loads nothing heavy (PEP 562): reward workers must start without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gspo_lightning.core.moved_names import accept_old_names

if TYPE_CHECKING:
    from gspo_lightning.training.data import PromptDataModule
    from gspo_lightning.training.module import GSPOModule
    from gspo_lightning.training.trainer import GSPOTrainer
    from gspo_lightning.training.trainer_config import GSPOConfig

__version__ = "0.1.0"
__all__ = ["GSPOConfig", "GSPOModule", "GSPOTrainer", "PromptDataModule", "__version__"]

_LAZY = {
    "GSPOConfig": "gspo_lightning.training.trainer_config",
    "GSPOModule": "gspo_lightning.training.module",
    "GSPOTrainer": "gspo_lightning.training.trainer",
    "PromptDataModule": "gspo_lightning.training.data",
}

accept_old_names()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
