"""A separate output head for engines that need one where the model's is tied to the embedding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gspo_lightning.core.temp_files import share
from gspo_lightning.policy.policy import Policy

HEAD = "lm_head.weight"
WHOLE = "model.safetensors"


def needs_own_head(policy: Policy) -> bool:
    """Return True if vLLM must load the tied output head as a separate tensor (:func:`untie`).

    On a CPU it packs the head anew only when the head itself is loaded: a tied one keeps its first weights (0.32). On
    GPUs nothing is packed. Models that read pictures are excluded: their settings have other names.
    """
    return (
        policy.device.type == "cpu" and policy.image_processor is None and bool(policy.model.config.tie_word_embeddings)
    )


def own_head(policy: Policy, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Return the weights of the output head by the name that checkpoints give it."""
    weight = policy.model.get_output_embeddings().weight.detach()
    return {HEAD: weight.to(dtype or weight.dtype).contiguous().clone()}


def untie(policy: Policy, folder: Path, dtype: torch.dtype | None) -> None:
    """Give a saved model with tied embeddings a separate output head with the same weights."""
    index = folder / f"{WHOLE}.index.json"
    whole = folder / WHOLE
    retie(folder)
    if index.exists():  # the weights are in several files
        save_file(own_head(policy, dtype), folder / "lm_head.safetensors", metadata={"format": "pt"})
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        _change(index, {"weight_map": files | {HEAD: "lm_head.safetensors"}})
    elif whole.exists():
        save_file(load_file(whole) | own_head(policy, dtype), whole, metadata={"format": "pt"})
    share(folder, folder / "config.json")


def retie(folder: Path) -> None:
    """Say in the config of a saved model that its output head is a separate tensor."""
    _change(folder / "config.json", {"tie_word_embeddings": False})


def _change(file: Path, words: dict[str, Any]) -> None:
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(config | words, indent=2), encoding="utf-8")
