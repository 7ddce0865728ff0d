"""Adapters in PEFT's format, in and out: ``adapter_config.json`` beside ``adapter_model.safetensors``."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.temp_files import share
from gspo_lightning.policy.hub import check_path, check_reachable
from gspo_lightning.policy.tiny import TINY_MODELS

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel

MARK = ".lora_"
"""Substring of the names of adapter weights."""
FIELD = "model.lora.start_from"
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PLAIN = {
    "use_dora": False, "bias": "none", "modules_to_save": None, "trainable_token_indices": None, "lora_bias": False,
    "layer_replication": None, "target_parameters": None, "fan_in_fan_out": False, "use_qalora": False,
    "alora_invocation_tokens": None, "velora_config": None, "monteclora_config": None, "use_bdlora": None,
    "arrow_config": None, "kasa_config": None, "megatron_config": None,
}  # fmt: skip
"""Field of a PEFT config -> the value of plain LoRA, where training and sampling add one product to a linear layer."""
_KEEPS_BASE = (True, False, "gaussian", "eva", "orthogonal", None)
"""Initialisations after which the frozen weights are still those of the base model."""
MERGE = "merge it into the model with PEFT (merge_and_unload) and start from that folder"
"""Fix for adapters that training does not go on with."""


def adapter_folder(name: str) -> Path:
    """Return the local folder of adapters, after a download if the name is a hub id.

    Args:
        name: a folder, or a hub id with an optional ``@REVISION``.

    Raises:
        UserError: there is no such folder, the hub does not have it, or its weights are no safetensors file.
    """
    folder = Path(name)
    if not folder.is_dir():
        check_path(FIELD, name)
        folder = _downloaded(name)
    missing = [file for file in (CONFIG, WEIGHTS) if not (folder / file).is_file()]
    if missing:
        fix = "give a folder that PEFT's save_pretrained or gspo export --adapter wrote"
        if missing == [WEIGHTS] and (folder / "adapter_model.bin").is_file():
            fix = "save it again with PEFT (safe_serialization=True): a .bin file may hold code, so it is not read"
        raise UserError(FIELD, f"{name} has no {missing[0]}", fix=fix)
    return folder


def _downloaded(name: str) -> Path:
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    check_reachable(FIELD, repository, "model")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as error:  # not found, private, offline, no valid id: the library's own words
        fix = "give a folder, NAME/REPO or NAME/REPO@REVISION; private ones need `hf auth login`"
        raise UserError(FIELD, f"{name!r} cannot be read: {first_line(error)}", fix=fix) from error


def adapter_config(folder: Path) -> LoraConfig:
    """Read the config of plain LoRA adapters; dropout is off.

    Raises:
        UserError: they are of another kind, or another version of PEFT wrote what this one cannot read.
    """
    from peft import LoraConfig

    try:
        kind = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["peft_type"]
        config = LoraConfig.from_pretrained(str(folder)) if kind == "LORA" else None
    except Exception as error:  # a damaged file can raise anything
        raise UserError(FIELD, f"{folder / CONFIG} cannot be read: {first_line(error)}") from error
    if config is None:
        raise UserError(FIELD, f"{folder} holds {kind} adapters, but only LoRA is trained", fix=MERGE)
    for name, plain in _PLAIN.items():
        value = getattr(config, name, plain)
        if value and value != plain:
            raise UserError(FIELD, f"{folder} has {name}: {value}, which is no plain LoRA", fix=MERGE)
    if config.init_lora_weights not in _KEEPS_BASE:
        problem = (
            f"{folder} has init_lora_weights: {config.init_lora_weights}, which has changed the frozen weights, too"
        )
        raise UserError(
            FIELD, problem, fix="convert it with PEFT (path_initial_model_for_weight_conversion), or merge it"
        )
    config.lora_dropout = 0.0
    config.inference_mode = False
    config.init_lora_weights = True
    return config


@torch.no_grad()
def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Load adapter weights into a model whose layers have adapters of the same config.

    Raises:
        UserError: names or shapes differ: they belong to another model.
    """
    from peft import set_peft_model_state_dict

    problem = ""
    try:
        report = set_peft_model_state_dict(model, load_file(folder / WEIGHTS))
    except Exception as error:  # other shapes, a damaged file
        problem = " ".join(str(error).split())
    else:
        missing = [name for name in report.missing_keys if MARK in name]
        unexpected = sorted(report.unexpected_keys)
        if unexpected:
            problem = f"it has {unexpected[0]}, which this model lacks"
        elif missing:
            problem = f"it lacks {missing[0]}"
    if problem:
        raise UserError(
            FIELD,
            f"{folder} does not fit {type(model).__name__}: {problem}",
            fix="start from the model that the adapters were trained on (model.name_or_path)",
        )


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the name and the layer of every adapter."""
    if not any(MARK in name for name, _ in model.named_parameters()):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer))


@torch.no_grad()
def save_adapters(
    model: nn.Module, folder: Path, dtype: torch.dtype | None = None, base: tuple[str | None, str | None] = (None, None)
) -> int:
    """Save the adapters alone in PEFT's format; return the bytes of their weights.

    Args:
        model: has adapters.
        folder: is created.
        dtype: of the weights in the file; None keeps their own.
        base: name and revision of the model that they belong to, for readers of the folder.
    """
    weights: dict[str, torch.Tensor] = {}
    layers = dict(adapted_layers(model))
    for name, layer in layers.items():
        for part, factors in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B)):
            (factor,) = factors.values()
            weights[f"{_PREFIX}{name}.{part}.weight"] = factor.weight.detach().to("cpu", dtype).contiguous()
    injected: Any = model
    (given,) = injected.peft_config.values()
    config = copy.copy(given)
    config.task_type = "CAUSAL_LM"
    config.inference_mode = True
    config.exclude_modules = None
    config.target_modules = _targets(model, layers)
    config.layers_to_transform = None
    config.layers_pattern = None
    config.base_model_name_or_path, config.revision = base
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    share(folder, folder / CONFIG)
    return sum(weight.numel() * weight.element_size() for weight in weights.values())


def base_of(name: str, revision: str | None) -> tuple[str | None, str | None]:
    """Return name and revision of a base model for readers of an adapter; None for one that no other machine has."""
    return (None, None) if Path(name).exists() or name in TINY_MODELS else (name, revision)


def uniform(model: nn.Module) -> bool:
    """True if all adapters have one rank and one scale, which is all that inference engines read from a config."""
    return len({(*layer.r.values(), *layer.scaling.values()) for _, layer in adapted_layers(model)}) == 1


def _targets(model: nn.Module, layers: dict[str, Any]) -> list[str]:
    """Return short names (``q_proj``) if they name exactly the adapted layers, else full names."""
    short = {name.rpartition(".")[2] for name in layers}
    inside = {f"{name}." for name in layers}
    named = {
        name
        for name, _ in model.named_modules()
        if name.rpartition(".")[2] in short and not any(name.startswith(prefix) for prefix in inside)
    }
    return sorted(short if named == set(layers) else layers)
