"""The critic: what a state is worth before the rest of a response is written, learned beside the policy."""

from __future__ import annotations

from gspo_lightning.critic.value_model import ValueModel

__all__ = ["ValueModel"]
