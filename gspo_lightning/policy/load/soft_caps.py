"""Attention of models that cap its scores (Gemma 2): transformers 5.19 starts them with one that leaves the cap out."""

from __future__ import annotations

from typing import Any


def attention_options(config: Any, chosen: str | None = None) -> dict[str, str]:
    """Return the arguments of transformers' ``from_pretrained`` about attention.

    Args:
        config: of the model.
        chosen: implementation that a user asks for; None: the model's own, but eager where scores are capped, because
            sdpa ignores a cap in transformers 5.19 and raises in 5.24.
    """
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    implementation = chosen or ("eager" if capped else None)
    return {"attn_implementation": implementation} if implementation else {}
