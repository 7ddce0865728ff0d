"""``gspo export``: a checkpoint as a folder in transformers format, with a model card."""

from gspo_lightning.commands.export.command import export, main
from gspo_lightning.commands.export.weights import checkpoint_policy, sharded_weights

__all__ = ["checkpoint_policy", "export", "main", "sharded_weights"]
