"""Low-rank adapters (LoRA, arXiv 2106.09685) in an unmodified transformers model, by peft.

Adapters are injected into the model in place, so its class does not change: training, sampling and packed attention see
no difference. Everything but the adapters is frozen. A checkpoint holds the adapters alone, the reference policy is the
model with its adapters off, and an export has them merged into the weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import save_file
from torch import nn

from gspo_lightning.errors import UserError
from gspo_lightning.policy.four_bit import dequantise, quantise
from gspo_lightning.policy.freezing import layers_left_out
from gspo_lightning.policy.thread_state import without_autocast
from gspo_lightning.randomness import Purpose, stream
from gspo_lightning.temp_files import share

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MARK = ".lora_"
"""Substring of the names of adapter weights."""
_SECOND = re.compile(r"\.lora_(embedding_)?B\b")
BASE_NORM = "gspo_base_norm"
"""Checkpoint key for the norm of the frozen weights that its adapters belong to."""


@dataclass(frozen=True)
class LoRA:
    """Settings of the adapters: layers and size."""

    r: int = 16
    """Rank of an adapter, >= 1."""
    alpha: float = 32.0
    """Scale: the product of both factors is multiplied by ``alpha / r``."""
    dropout: float = 0.0
    """Only 0: dropout moves sequence ratios by more than the clip range, so no ratio would be 1 before an update."""
    target_modules: list[str] | str = "all-linear"
    """Names of linear layers such as ``[q_proj, v_proj]``; ``all-linear`` takes all but the output head. Modules that
    ``model.freeze`` names get no adapter: by default the vision tower of a model that reads pictures."""
    base: Literal["as_loaded", "4bit"] = "as_loaded"
    """``4bit`` stores the frozen weights in NF4 (QLoRA, arXiv 2305.14314): about 0.53 bytes per weight. A vision tower
    keeps its precision."""

    def __post_init__(self) -> None:
        if self.r < 1:
            raise UserError("model.lora.r", f"is {self.r}; it must be at least 1")
        if self.dropout != 0:
            raise UserError(
                "model.lora.dropout",
                f"is {self.dropout}, but dropout moves sequence ratios by more than the clip range",
                fix="leave it at 0; a smaller r or weight decay regularises, too",
            )


def add_adapters(model: PreTrainedModel, lora: LoRA, seed: int, frozen: Sequence[str] | None = None) -> None:
    """Inject adapters into a model and freeze the rest of it; the same seed gives the same adapters.

    Args:
        model: changed in place.
        lora: layers and size.
        seed: of the adapters.
        frozen: ``model.freeze``: modules that get no adapters.

    Raises:
        UserError: peft is missing, no layer has such a name, or only frozen ones do.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError("model.lora", "needs peft", fix="pip install 'gspo_lightning[lora]'") from error
    model.requires_grad_(False)
    outside = layers_left_out(model, frozen)
    if lora.base == "4bit":
        quantise(model)
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, target_modules=lora.target_modules, exclude_modules=outside or None
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(seed, Purpose.INITIALISATION) % (1 << 63))
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:
            linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n not in outside]
            layers = sorted({n.split(".")[-1] for n in linear})
            raise UserError(
                "model.lora.target_modules",
                f"{lora.target_modules!r} names no layer of {type(model).__name__}"
                + (" that model.freeze leaves to train" if outside else ""),
                fix=f"use all-linear, or a list of: {', '.join(layers)}",
            ) from error
    if model.is_gradient_checkpointing:
        model.enable_input_require_grads()


def has_adapters(model: nn.Module) -> bool:
    """True if the model has adapters."""
    return next(_adapted(model), None) is not None


def adapts_from_base(model: nn.Module) -> bool:
    """True if the model with its adapters off is the start of its training.

    That is so if only adapters are trained and they do nothing yet: their second factors are 0. Adapters trained
    earlier are part of the start. Weights on the meta device are those of adapters that were just made.
    """
    if not has_adapters(model) or any(MARK not in name for name, p in model.named_parameters() if p.requires_grad):
        return False
    second = [p for name, p in model.named_parameters() if _SECOND.search(name)]
    return all(p.is_meta or not bool(p.any()) for p in second)


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Turn adapters off inside the context."""
    layers = [layer for _, layer in _adapted(model)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


@torch.no_grad()
def merge_adapters(model: nn.Module) -> None:
    """Merge the adapters into the weights and remove them: an ordinary transformers model again, nothing in 4 bits.

    Products of factors have the factors' precision, even if weights are synchronized during a rollout.
    """
    dequantise(model)
    for _, layer in _adapted(model):
        with without_autocast(layer.weight.device):
            layer.merge()
    _unwrap(model)


@torch.no_grad()
def remove_adapters(model: nn.Module) -> None:
    """Remove the adapters without merging them: the model as before injection, nothing in 4 bits."""
    dequantise(model)
    _unwrap(model)


def adapter_rank(model: nn.Module) -> int:
    """Return the largest rank of the adapters of a model."""
    return max(max(layer.r.values()) for _, layer in _adapted(model))


@torch.no_grad()
def save_adapters(model: nn.Module, folder: Path, dtype: torch.dtype | None = None) -> int:
    """Save the adapters alone in PEFT's format; return the bytes of their weights.

    Args:
        model: has adapters.
        folder: is created.
        dtype: of the weights in the file; None keeps their own.
    """
    weights: dict[str, torch.Tensor] = {}
    for name, layer in _adapted(model):
        for part, factors in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B)):
            (factor,) = factors.values()
            weights[f"base_model.model.{name}.{part}.weight"] = factor.weight.detach().to("cpu", dtype).contiguous()
    layers = dict(_adapted(model))
    _, first = next(iter(layers.items()))
    ((key, rank),) = first.r.items()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": first.lora_alpha[key],
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(layers),
    }
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))
    save_file(weights, folder / "adapter_model.safetensors")
    share(folder, folder / "adapter_config.json")
    return sum(weight.numel() * weight.element_size() for weight in weights.values())


def _unwrap(model: nn.Module) -> None:
    for name, layer in list(_adapted(model)):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer.get_base_layer())


def only_adapters(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the adapter entries of a state dict, the only ones in a checkpoint."""
    return {name: weight for name, weight in state.items() if MARK in name}


def check_base(checkpoint: dict[str, Any], norm: float) -> None:
    """Refuse adapters of other frozen weights than those with norm ``norm`` (:func:`frozen_norm`).

    Raises:
        UserError: the norms differ, or the checkpoint holds no adapters.
    """
    before = checkpoint.get(BASE_NORM)
    if before is None or abs(before - norm) > 1e-6 * max(before, norm):
        raise UserError(
            "model.name_or_path",
            "holds other weights than those the adapters of this checkpoint were trained on"
            if before is not None
            else "trains adapters (model.lora), but this checkpoint holds all weights",
            fix="resume with the model and the model.lora of the run that wrote it",
        )


def check_names(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse adapters of other layers than the trained ones: missing ones would silently start from scratch.

    Raises:
        UserError: the adapters in ``found`` are not those in ``wanted``.
    """
    if odd := sorted(only_adapters(found).keys() ^ only_adapters(wanted).keys()):
        raise UserError(
            "model.lora.target_modules",
            f"names other layers than this checkpoint has adapters for, such as {odd[0]}",
            fix="resume with the model.lora of the run that wrote it",
        )


@torch.no_grad()
def frozen_norm(policy: nn.Module) -> float:
    """Return the norm of all frozen weights together, which identifies the adapters' base; call before sharding."""
    parts = [p.data.double().norm() ** 2 for name, p in policy.named_parameters() if MARK not in name]
    return float(torch.stack(parts).sum().sqrt())


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    if not any(MARK in name for name, _ in model.named_parameters()):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer))
