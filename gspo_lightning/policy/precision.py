"""Compute dtype: autocast's if it is on, else the weights' own."""

from __future__ import annotations

import torch

from gspo_lightning.policy.policy import Policy

__all__ = ["autocast_dtype", "compute_dtype"]


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the present autocast dtype of a kind of device; None if autocast is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def compute_dtype(policy: Policy) -> torch.dtype:
    """Return the dtype of the products in a policy's forward pass; call it inside the context of the rollouts."""
    return autocast_dtype(policy.device) or policy.model.dtype
