"""Frozen 4-bit weights under adapters (NF4; QLoRA, arXiv 2305.14314), by bitsandbytes, on GPUs and CPUs.

A layer keeps its name and place: training and sampling see a linear layer that unpacks its weight during computation,
in the weight's original dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gspo_lightning.policy.adapters.freezing import vision_layers
from gspo_lightning.policy.adapters.mixture_parts import MixtureParts
from gspo_lightning.policy.kernels.linear import PLAIN_LINEAR

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def quantise(model: PreTrainedModel) -> None:
    """Pack the weight of every linear layer but the output head and routers, in place: 0.53 bytes per weight.

    Fused experts of a mixture and embeddings are not linear layers and stay unchanged. So do routers, which are small
    and would choose other experts, and a vision tower: it has few weights, and its rounding errors would be in every
    token of a picture.
    """
    from bitsandbytes.nn import Linear4bit, Params4bit

    head = model.get_output_embeddings()
    kept = {*vision_layers(model), *MixtureParts.of(model).routers}
    for name, layer in list(model.named_modules()):
        if type(layer) not in PLAIN_LINEAR or layer is head or name in kept:
            continue
        weight = layer.weight
        packed = Linear4bit(1, 1, bias=False, compute_dtype=weight.dtype, quant_type="nf4")
        packed.support_avx512bf16_for_cpu = False  # it would repack the weight in sampling, to other values
        packed.in_features = layer.in_features
        packed.out_features = layer.out_features
        packed.bias = layer.bias
        packed.weight = Params4bit(weight.data, requires_grad=False, quant_type="nf4", module=packed)
        _put(model, name, packed.to(weight.device))


@torch.no_grad()
def dequantise(model: nn.Module) -> None:
    """Turn packed layers into ordinary linear layers, in place; what rounding lost in :func:`quantise` stays lost."""
    packed = [(name, layer) for name, layer in model.named_modules() if type(layer).__name__ == "Linear4bit"]
    if not packed:
        return
    from bitsandbytes.functional import dequantize_4bit

    for name, layer in packed:
        plain = nn.Linear(1, 1, bias=False, device=layer.weight.device)
        plain.in_features = layer.in_features
        plain.out_features = layer.out_features
        plain.bias = layer.bias
        whole = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        plain.weight = nn.Parameter(whole.reshape(layer.out_features, layer.in_features), requires_grad=False)
        _put(model, name, plain)


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)
