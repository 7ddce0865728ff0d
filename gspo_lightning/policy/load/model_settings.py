"""Model settings: what to load and in which form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.hub import check_no_kernel

DType = Literal["float32", "bfloat16", "auto"]


Layout = Literal["auto", "packed", "padded"]


@dataclass(frozen=True)
class ModelSettings:
    """Settings to load a model."""

    name_or_path: str = "tiny-qwen3"
    """Hub id, local folder in transformers format, GGUF file, or a built-in tiny model (``tiny-qwen3``,
    ``tiny-qwen3-moe``, ``tiny-qwen3-vl``, ``tiny-qwen3-vl-moe``, ``tiny-qwen2.5-vl``, ``tiny-gemma3``,
    ``tiny-smolvlm``)."""
    dtype: DType = "float32"
    """Weight dtype. float32 masters with ``trainer.precision: bf16-mixed`` is the rule; ``bfloat16`` is for weights
    that are not trained: under adapters, which are float32, and in evaluations."""
    attn_implementation: str | None = None
    """``sdpa``, ``eager``, ``flash_attention_2`` ...; None lets transformers choose."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more compute."""
    trust_remote_code: bool = False
    """Run Python code that a model repository ships. Only for repositories you have read."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    config_overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the model's config to change before it is built (for example ``rope_theta``)."""
    seed: int = 0
    """Seed of freshly initialised weights (built-in tiny models)."""
    layout: Layout = "auto"
    """Layout of rows: ``packed`` (a prompt once for all its responses, no padding), ``padded``, or ``auto``: packed if
    a check on the model itself shows the same log-probabilities."""
    experts_implementation: str | None = None
    """Kernel for the experts of a mixture: ``grouped_mm``, ``batched_mm`` or ``eager``; None takes ``grouped_mm`` if
    the model supports it (1.6 times faster than ``eager`` on a CPU)."""
    lora: LoRA | None = None
    """Train low-rank adapters and freeze the weights; None trains all weights."""
    freeze: list[str] | None = None
    """Modules to freeze, by name with ``*`` for anything, or ``vision`` for the vision tower; None means ``[vision]``
    for a model that reads pictures."""
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

    def __post_init__(self) -> None:
        lora: Any = self.lora
        if isinstance(lora, dict):  # from a checkpoint
            object.__setattr__(self, "lora", LoRA(**lora))
