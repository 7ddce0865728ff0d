"""Attention for rows that share a prompt: computed once per prompt, without padding, on unmodified models."""

from gspo_lightning.policy.attention.cache import GroupCache, closed_up
from gspo_lightning.policy.attention.flex import uncompiled
from gspo_lightning.policy.attention.interface import (
    Plan,
    UnsupportedAttentionError,
    attention_dtype,
    layers_attended,
    windows,
    with_plan,
)
from gspo_lightning.policy.attention.layout import PackedLayout
from gspo_lightning.policy.attention.padded_kv_cache import capacity, reserved
from gspo_lightning.policy.attention.paged_cache import PagedCache
from gspo_lightning.policy.attention.pages import PagedPlan
from gspo_lightning.policy.attention.plans import attention_plan, check_attention

__all__ = [
    "GroupCache",
    "PackedLayout",
    "PagedCache",
    "PagedPlan",
    "Plan",
    "UnsupportedAttentionError",
    "attention_dtype",
    "attention_plan",
    "capacity",
    "check_attention",
    "closed_up",
    "layers_attended",
    "reserved",
    "uncompiled",
    "windows",
    "with_plan",
]
