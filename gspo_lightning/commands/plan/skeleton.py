"""Models without data: on the meta device to count parameters, or on fake tensors to run operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig, PreTrainedModel

from gspo_lightning.policy.freezing import freeze
from gspo_lightning.policy.lora import LoRA, add_adapters
from gspo_lightning.policy.vision.families import FAMILIES, reads_pictures, tower_of

__all__ = ["Counts", "count", "shadow", "skeleton"]


def skeleton(
    config: PretrainedConfig, lora: LoRA | None = None, frozen: Sequence[str] | None = None
) -> PreTrainedModel:
    """Build a model on the meta device, with adapters and frozen parameters (``frozen``: ``model.freeze``)."""
    kind = AutoModelForImageTextToText if reads_pictures(config) else AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = kind.from_config(config, trust_remote_code=False)
        if lora is not None:
            add_adapters(model, lora, seed=0, frozen=frozen)
        freeze(model, frozen)
    return model.train()


def shadow(model: PreTrainedModel, dtype: torch.dtype, mode: FakeTensorMode) -> PreTrainedModel:
    """Move a model to fake CPU tensors: operations check shapes and make no data. Adapters stay float32."""
    made: dict[int, nn.Parameter] = {}
    with mode:
        for path, module in model.named_modules():
            for name, weight in list(module._parameters.items()):
                if weight is None:
                    continue
                if id(weight) not in made:  # tied weights stay tied
                    kind = weight.dtype if ".lora_" in path else dtype
                    made[id(weight)] = nn.Parameter(torch.empty(weight.shape, dtype=kind), weight.requires_grad)
                module._parameters[name] = made[id(weight)]
            for name, buffer in list(module._buffers.items()):
                if buffer is not None:
                    module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
    return model


@dataclass(frozen=True)
class Counts:
    """Parameter counts of a model and of the parts that are gathered or quantised at a time."""

    total: int
    trainable: int
    small: int
    """Trainable parameters in tensors of fewer than 4,096 elements, whose 8-bit optimizer state is not 8-bit."""
    largest_layer: int
    outside: int
    """Parameters outside of decoder layers: embeddings, head and final norm."""
    quantisable: int
    """Frozen weights of linear layers other than the head, to which 4-bit storage applies."""
    active: int
    """Parameters applied to a token: without the input embedding, and only the experts a token is routed to."""
    largest: int
    """Parameters of the largest single trainable tensor."""
    vision: int = 0
    """Parameters of the vision tower, which processes only pictures."""


def count(model: PreTrainedModel) -> Counts:
    """Count the parameters of a model, which may be on the meta device."""
    config = model.config.get_text_config()
    weights = dict(model.named_parameters())  # tied weights once
    family = FAMILIES.get(model.config.model_type)
    layers = (getattr(model.base_model, family.text) if family else model.base_model).layers
    per_layer = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    total = sum(p.numel() for p in weights.values())
    trained = [p.numel() for p in weights.values() if p.requires_grad]
    inside = [m for layer in layers for m in layer.modules() if isinstance(m, nn.Linear)]
    frozen = sum(m.weight.numel() for m in inside if not m.weight.requires_grad)
    experts = sum(p.numel() for n, p in weights.items() if ".experts." in n)
    share = getattr(config, "num_experts_per_tok", 0) / max(getattr(config, "num_experts", 1) or 1, 1)
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    vision = sum(p.numel() for part in tower_of(model).values() for p in part.parameters())
    return Counts(
        total=total,
        trainable=sum(trained),
        small=sum(n for n in trained if n < 4096),
        largest_layer=max(per_layer),
        outside=total - sum(per_layer),
        quantisable=frozen,
        active=total - vision - (0 if head is embedding else embedding.numel()) - round(experts * (1 - share)),
        largest=max(trained, default=0),
        vision=vision,
    )
