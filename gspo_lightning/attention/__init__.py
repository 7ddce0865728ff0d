"""Attention for rows that share a prompt: computed once per prompt, without padding, on unmodified models."""

from gspo_lightning.attention.cache import GroupCache
from gspo_lightning.attention.interface import Plan, UnsupportedAttentionError, windows, with_plan
from gspo_lightning.attention.kernels import kernel_for
from gspo_lightning.attention.layout import PackedLayout
from gspo_lightning.attention.prefix import PrefixPlan

__all__ = [
    "GroupCache",
    "PackedLayout",
    "Plan",
    "PrefixPlan",
    "UnsupportedAttentionError",
    "kernel_for",
    "windows",
    "with_plan",
]
