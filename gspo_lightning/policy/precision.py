"""The dtype that products are computed in: autocast's where a run has it, else the weights' own."""

from __future__ import annotations

import torch

from gspo_lightning.policy.policy import Policy

__all__ = ["autocast_dtype", "compute_dtype"]


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Of autocast as it is now, for one kind of device; None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def compute_dtype(policy: Policy) -> torch.dtype:
    """Of the products of a policy's forward pass, here and now: call it inside the context of the rollouts."""
    return autocast_dtype(policy.device) or policy.model.dtype
