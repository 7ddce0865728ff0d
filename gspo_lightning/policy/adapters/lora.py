"""Low-rank adapters (LoRA, arXiv 2106.09685) in an unmodified transformers model, by peft.

Adapters are injected into the model in place, so its class does not change: training, sampling and packed attention see
no difference. Everything but the adapters is frozen. A checkpoint holds the adapters alone, the reference policy is the
model with its adapters off (with ``start_from``, a copy of the adapters it began with), and an export has them merged
into the weights or alone (:mod:`gspo_lightning.policy.adapters.adapter_files`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.extras import install_command
from gspo_lightning.core.randomness import initial_weights
from gspo_lightning.policy.adapters.adapter_files import FIELD as START
from gspo_lightning.policy.adapters.adapter_files import (
    MARK,
    MERGE,
    adapted_layers,
    adapter_config,
    adapter_folder,
    load_adapters,
)
from gspo_lightning.policy.adapters.four_bit import dequantise, quantise
from gspo_lightning.policy.adapters.freezing import layers_left_out
from gspo_lightning.policy.adapters.mixture_parts import MixtureParts, linear_layers, matched_modules, names_experts
from gspo_lightning.policy.kernels.linear import PLAIN_LINEAR
from gspo_lightning.policy.kernels.thread_state import without_autocast

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

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
    ``model.freeze`` names get no adapter: by default the vision tower of a model that reads pictures. Nor do experts
    and routers of a mixture; a shared expert has adapters if PEFT can tell it from the others."""
    base: Literal["as_loaded", "4bit"] = "as_loaded"
    """``4bit`` stores the frozen weights in NF4 (QLoRA, arXiv 2305.14314): about 0.53 bytes per weight. A vision tower
    keeps its precision."""
    start_from: str | None = None
    """Adapters in PEFT's format to start from: a folder, or a hub id with an optional ``@REVISION``. They bring their
    own ``r``, ``alpha`` and ``target_modules``, and a KL term is measured to them. None: new adapters."""

    def __post_init__(self) -> None:
        if self.r < 1:
            raise UserError("model.lora.r", f"is {self.r}; it must be at least 1")
        if self.dropout != 0:
            raise UserError(
                "model.lora.dropout",
                f"is {self.dropout}, but dropout moves sequence ratios by more than the clip range",
                fix="leave it at 0; a smaller r or weight decay regularises, too",
            )

    def agreed(self, config: LoraConfig) -> LoraConfig:
        """Return the config of :attr:`start_from`, if nothing that is set here contradicts it.

        Raises:
            UserError: rank, scale or layers are set to other values than its own.
        """
        adapters = {"r": config.r, "alpha": config.lora_alpha, "target_modules": config.target_modules}
        for name, value in adapters.items():
            given = getattr(self, name)
            if isinstance(given, list) and not isinstance(value, str):
                same = set(given) == set(value)
            else:
                same = given == value
            if not same and given != getattr(LoRA, name):
                shown_value = sorted(value) if isinstance(value, set) else value
                raise UserError(
                    f"model.lora.{name}",
                    f"is {given}, but that of {self.start_from} is {shown_value}",
                    fix="leave it out: the adapters bring their own",
                )
        return config


def add_adapters(model: PreTrainedModel, lora: LoRA, seed: int, frozen: Sequence[str] | None = None) -> None:
    """Inject adapters into a model and freeze the rest of it; the same seed gives the same adapters.

    Args:
        model: changed in place.
        lora: layers and size.
        seed: of the adapters.
        frozen: ``model.freeze``: modules that get no adapters.

    Raises:
        UserError: peft is missing, no layer has such a name, only frozen ones do, or experts or routers do.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError("model.lora", "needs peft", fix=install_command("lora")) from error
    start = None if lora.start_from is None else adapter_folder(lora.start_from)
    model.requires_grad_(False)
    outside = layers_left_out(model, frozen)
    if lora.base == "4bit":
        quantise(model)
    if start is None:
        config = LoraConfig(
            r=lora.r, lora_alpha=lora.alpha, target_modules=lora.target_modules, exclude_modules=outside or None
        )
    else:
        config = lora.agreed(adapter_config(start))
    parts = MixtureParts.of(model)
    if parts:
        _leave_experts_out(model, parts, config, lora)
    with initial_weights(seed):  # peft moves them to the layers that they adapt
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:
            linear = [
                name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in outside
            ]
            layers = sorted({name.split(".")[-1] for name in linear})
            problem = f"{lora.target_modules!r} names no layer of {type(model).__name__}"
            if outside:
                problem += " that model.freeze leaves to train"
            raise UserError(
                "model.lora.target_modules", problem, fix=f"use all-linear, or a list of: {', '.join(layers)}"
            ) from error
    _check_layers(model)
    for name, weight in model.named_parameters():
        if MARK in name:  # peft gives them the dtype of their layer, but what is trained is float32 or wider
            weight.data = weight.data.to(torch.promote_types(weight.dtype, torch.float32))
    if start is not None and not any(p.is_meta for p in model.parameters()):  # on the meta device only sizes count
        load_adapters(model, start)
    if model.is_gradient_checkpointing:
        model.enable_input_require_grads()


def _leave_experts_out(model: PreTrainedModel, parts: MixtureParts, config: LoraConfig, lora: LoRA) -> None:
    """Name the layers of a mixture that get adapters one by one, without experts and routers, and say so.

    Raises:
        UserError: experts or routers are named.
    """
    none = f"experts and routers of {type(model).__name__} get no adapters"
    names: Any = config.target_modules
    if names == "all-linear":
        config.target_modules = set(linear_layers(model, parts))
    elif names_experts(model, parts, names):
        layers = sorted({name.rpartition(".")[2] for name in linear_layers(model, parts)})
        written = sorted(names) if isinstance(names, set) else names
        if lora.start_from is None:
            fix = f"use all-linear, or a list of: {', '.join(layers)}"
            raise UserError("model.lora.target_modules", f"is {written!r}, but {none}", fix=fix)
        raise UserError(START, f"{lora.start_from} adapts {written!r}, but {none}", fix=MERGE)
    elif isinstance(names, str):
        config.target_modules = set(matched_modules(model, names))
    if not any(p.is_meta for p in model.parameters()):  # a plan says what it counts
        log.info("model.lora: %s (%s)", none, parts.short)


def _check_layers(model: PreTrainedModel) -> None:
    """Refuse adapters of a head that is tied to the embedding, and those of other layers than linear ones."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for name, layer in adapted_layers(model):
        base = layer.get_base_layer()
        if not layer.lora_A:
            raise UserError(
                "model.lora.target_modules",
                f"{name} is a {type(base).__name__}, but only linear layers get adapters",
                fix="leave it out",
            )
        if layer is head and base.weight is model.get_input_embeddings().weight:
            raise UserError(
                "model.lora.target_modules",
                f"{name} is tied to the embedding, which a merged export would change, too",
                fix="leave it out, or untie them (model.config_overrides: {tie_word_embeddings: false})",
            )


def has_adapters(model: nn.Module) -> bool:
    """True if the model has adapters."""
    return next(adapted_layers(model), None) is not None


def adapts_from_base(model: nn.Module) -> bool:
    """True if the model with its adapters off is the start of its training.

    That is so if only adapters are trained and they do nothing yet: their second factors are 0. Adapters trained
    earlier are part of the start.
    """
    if not has_adapters(model) or any(MARK not in name for name, p in model.named_parameters() if p.requires_grad):
        return False
    second = [p for name, p in model.named_parameters() if _SECOND.search(name)]
    return not any(bool(p.any()) for p in second)


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Turn adapters off inside the context."""
    layers = [layer for _, layer in adapted_layers(model)]
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
    for _, layer in adapted_layers(model):
        with without_autocast(layer.weight.device):
            layer.merge()
    _unwrap(model)


@torch.no_grad()
def remove_adapters(model: nn.Module) -> None:
    """Remove the adapters without merging them: the model as before injection, nothing in 4 bits."""
    dequantise(model)
    _unwrap(model)


def is_plain_linear(module: nn.Module) -> bool:
    """True if a module is a linear layer, or one with low-rank adapters that are no more than a product added to it."""
    if type(module) in PLAIN_LINEAR or not hasattr(module, "lora_A"):
        return type(module) in PLAIN_LINEAR
    from peft.tuners.lora import Linear

    if type(module) is not Linear:
        return False
    adapted: Any = module
    if adapted.merged or adapted.lora_variant or any(adapted.lora_bias.values()):
        return False
    has_dropout = any(type(dropout) is not nn.Identity for dropout in adapted.lora_dropout.values())
    return type(adapted.base_layer) in PLAIN_LINEAR and not has_dropout


def merged_weight(module: Any) -> torch.Tensor:
    """Return the weight of a plain linear layer; if it has adapters that are on, a new tensor with them added."""
    weight: torch.Tensor = module.weight
    if type(module) in PLAIN_LINEAR or module.disable_adapters:
        return weight
    merged = weight
    for name in module.active_adapters:
        merged = merged + module.get_delta_weight(name)
    return merged.to(weight.dtype)


def adapter_rank(model: nn.Module) -> int:
    """Return the largest rank of the adapters of a model."""
    return max(max(layer.r.values()) for _, layer in adapted_layers(model))


def _unwrap(model: nn.Module) -> None:
    for name, layer in list(adapted_layers(model)):
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
    saved_norm = checkpoint.get(BASE_NORM)
    if saved_norm is None:
        problem = "trains adapters (model.lora), but this checkpoint holds all weights"
    elif abs(saved_norm - norm) > 1e-6 * max(saved_norm, norm):
        problem = "holds other weights than those the adapters of this checkpoint were trained on"
    else:
        return
    raise UserError(
        "model.name_or_path", problem, fix="resume with the model and the model.lora of the run that wrote it"
    )


def check_names(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse adapters of other layers than the trained ones: missing ones would silently start from scratch.

    Raises:
        UserError: the adapters in ``found`` are not those in ``wanted``.
    """
    differing = sorted(only_adapters(found).keys() ^ only_adapters(wanted).keys())
    if differing:
        raise UserError(
            "model.lora.target_modules",
            f"names other layers than this checkpoint has adapters for, such as {differing[0]}",
            fix="resume with the model.lora of the run that wrote it",
        )


@torch.no_grad()
def frozen_norm(policy: nn.Module) -> float:
    """Return the norm of all frozen weights together, which identifies the adapters' base; call before sharding."""
    parts = [p.data.double().norm() ** 2 for name, p in policy.named_parameters() if MARK not in name]
    return float(torch.stack(parts).sum().sqrt())
