"""Critic: a value model trained beside the policy."""

from __future__ import annotations

from gspo_lightning.loop.critic.value_model import ValueModel

__all__ = ["ValueModel"]
