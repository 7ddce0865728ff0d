"""Model settings: what to load and in which form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.hub import check_no_kernel

DType = Literal["float32", "bfloat16", "auto"]
Layout = Literal["auto", "packed", "padded"]


@dataclass(frozen=True)
class BaseModelSettings:
    """Settings to load a model, a policy or a reward model."""

    name_or_path: str = "tiny-qwen3"
    """Model to load, under the names that the ``model.name_or_path`` of a config takes."""
    dtype: DType = "float32"
    """Dtype of the weights. float32 with ``trainer.precision: bf16-mixed`` is usual; ``bfloat16`` is for weights that
    are not trained: under adapters, which are float32, and in evaluations."""
    attn_implementation: str | None = None
    """``sdpa``, ``eager``, ``flash_attention_2`` ...; None lets transformers choose."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more compute."""
    trust_remote_code: bool = False
    """Run Python code that a model repository ships. Only for repositories you have read."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    config_overrides: dict[str, Any] | None = None
    """Fields of the model's config to change before it is built (for example ``rope_theta``)."""
    seed: int = 0
    """Seed of freshly initialised weights; the command line sets it from ``seed_everything``."""
    lora: LoRA | None = None
    """Train low-rank adapters (``{r: 16}``), of a reward model also the head, and keep the other weights as they are;
    None trains all weights."""

    def __post_init__(self) -> None:
        lora: Any = self.lora
        if isinstance(lora, dict):  # from a checkpoint
            object.__setattr__(self, "lora", LoRA(**lora))
        object.__setattr__(self, "config_overrides", self.config_overrides or {})

    @property
    def overrides(self) -> dict[str, Any]:
        """Fields of the model's config to change; empty if there are none."""
        return self.config_overrides or {}


@dataclass(frozen=True)
class ModelSettings(BaseModelSettings):
    """Settings to load a policy: the ``model`` of a config, besides the arguments of ``gspo_lightning.GSPOModule``."""

    layout: Layout = "auto"
    """``packed`` rows (a prompt once for all its responses, no padding), ``padded`` ones, or ``auto``, which packs them
    if a check on the model itself shows the same log-probabilities."""
    experts_implementation: str | None = None
    """``grouped_mm``, ``batched_mm`` or ``eager``, for mixtures of experts; None takes ``grouped_mm`` if the model
    supports it (1.6 times faster than ``eager`` on a CPU), and else leaves the choice to transformers."""
    freeze: list[str] | None = None
    """Modules that are not trained, by name with ``*`` for anything, or ``vision`` for the vision tower; None is
    ``[vision]`` for a model that reads pictures, ``[]`` trains everything."""
    batch_invariant: bool = False
    """Compute log-probabilities whose bits do not depend on the batch: those of the sampler equal those of training
    exactly (docs/rollouts.md). Dense Llama, Mistral, Qwen2 and Qwen3 models on a CPU; slower."""
    mask_padding: bool = True
    """Never sample rows of the vocabulary that no token has; False in what continues a run that began without this."""

    @classmethod
    def of_file(cls, written: Mapping[str, Any], trust_remote_code: bool) -> ModelSettings:
        """Build the settings that a checkpoint or a dump holds; a file may not decide whether its code is trusted.

        Args:
            written: all fields, as ``dataclasses.asdict`` gives them.
            trust_remote_code: value from the command line.
        """
        settings = cls(**{"mask_padding": False, **written, "trust_remote_code": trust_remote_code})
        for words in (settings.attn_implementation, settings.experts_implementation):
            check_no_kernel("model.name_or_path", words, trust_remote_code)
        return settings
