"""Names and layouts of weights in GGUF files, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from transformers import PretrainedConfig

from gspo_lightning.policy.load.gguf_config import FAMILIES

_ROTATED = ("attn_q.", "attn_k.")


class Place(NamedTuple):
    """Weight of a model that a tensor of a file belongs to."""

    name: str
    """Of the weight in transformers."""
    half: int | None = None
    """0 or 1 where the file has two tensors for the halves of dimension 1 of one weight: gate and up of experts."""


def places(config: PretrainedConfig, names: Mapping[str, object]) -> dict[str, Place]:
    """Return the name in a file -> weight of the model, for all weights.

    Args:
        config: of the model.
        names: weights of the model, tied ones once.
    """
    import gguf

    family = family_of(config)
    architecture = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == family)
    table = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    place_of: dict[str, Place] = {}
    for name in names:
        base, _, kind = name.rpartition(".")
        if kind not in ("weight", "bias"):
            base = name
            kind = "weight"
        if base.endswith(".gate_up_proj") and ".experts." in base:
            for half, part in enumerate(("gate_proj", "up_proj")):
                written = table.get_name(base.replace("gate_up_proj", part))
                place_of[f"{written}.{kind}"] = Place(name, half)
        else:
            place_of[f"{table.get_name(base)}.{kind}"] = Place(name)
    return place_of


def family_of(config: PretrainedConfig) -> str:
    """Return the architecture in files of a model's family."""
    return next(family for family, (kind, _) in FAMILIES.items() if kind == config.model_type)


def from_file(values: np.ndarray, name: str, config: PretrainedConfig) -> np.ndarray:
    """Return a weight as transformers computes with it.

    llama.cpp rotates neighbouring dimensions in its ``llama`` family, transformers the halves of a head. Norms of
    Gemma are stored with the one that transformers adds.

    Args:
        values: of the file, (out, in) or (out,).
        name: in the file.
        config: of the model.
    """
    family = family_of(config)
    if family == "llama" and any(part in name for part in _ROTATED):
        return values.reshape(_heads(name, config), -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    return values - 1 if family.startswith("gemma") and name.endswith("norm.weight") else values


def to_file(values: np.ndarray, name: str, config: PretrainedConfig) -> np.ndarray:
    """Return a weight as files hold it; the inverse of :func:`from_file`."""
    family = family_of(config)
    if family == "llama" and any(part in name for part in _ROTATED):
        return values.reshape(_heads(name, config), 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    return values + 1 if family.startswith("gemma") and name.endswith("norm.weight") else values


def _heads(name: str, config: PretrainedConfig) -> int:
    return int(config.num_attention_heads if "attn_q." in name else config.num_key_value_heads)
