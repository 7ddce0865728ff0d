"""Inspect (inspect-ai) on checkpoints: ``--model gspo/CHECKPOINT``, and the rewards of training as scorers.

No other package imports this one. ``inspect`` finds it by the package's entry point.
"""

from __future__ import annotations

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.extras import install_command

try:
    import inspect_ai  # noqa: F401
except ImportError as error:
    raise UserError("gspo_lightning.commands.inspect", "needs inspect-ai", fix=install_command("eval")) from error

from gspo_lightning.commands.inspect.scorer import reward_scorer

__all__ = ["reward_scorer"]
