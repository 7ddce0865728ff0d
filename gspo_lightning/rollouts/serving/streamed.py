"""Weights of a sharded policy in the format of checkpoints, converted as they are gathered."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from gspo_lightning.core.temp_files import share
from gspo_lightning.policy.adapters.adapter_files import adapted_layers
from gspo_lightning.policy.adapters.lora import merge_adapters, remove_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.serving.untied import HEAD, needs_own_head, retie

BUCKET = 2**30
"""Bytes of weights that are sent at a time; more only where one tensor is larger."""
_LAYER = re.compile(r".*?\.\d+\.")


class StreamedWeights:
    """Weights by the names and in the shapes that ``save_pretrained`` writes; each iteration gathers them once.

    Only what belongs together is converted together: a parameter alone where that gives what the whole model gives (the
    experts of a layer are one), else a layer.

    Args:
        policy: has a :attr:`Policy.stream` that leads.
        adapters: merged into the weights; False leaves them out.
    """

    def __init__(self, policy: Policy, *, adapters: bool = True) -> None:
        self.policy = policy
        self.adapters = adapters
        self._model = policy.model
        self._layers: dict[str, Any] = dict(adapted_layers(self._model))
        parameters = [(name, self._model.get_parameter(name).detach()) for name in policy.stream.names]
        plain = list(self._plain(parameters))
        expected = _shapes(_reverted(self._model, dict(plain) | self._buffers()).items())
        self._group_of: Callable[[str], str]
        # the smallest groups that convert to what the whole model converts to, tried on the meta device
        for self._group_of in (_itself, _layer_of, _nothing):
            converted = list(self._converted(plain))
            if len(converted) == len(expected) and _shapes(converted) == expected:
                break
        self.meta: dict[str, Tensor] = dict(converted)
        """Names, shapes and dtypes, in the order in which the weights come; tensors on the meta device."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self._converted(self._plain(self.policy.stream.weights()))

    def _converted(self, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters, and the buffers that checkpoints have, as they are in files."""
        group: dict[str, Tensor] = {}
        key = ""
        for name, value in named:
            if group and self._group_of(name) != key:
                yield from _flushed(self._model, group)
            key = self._group_of(name)
            group[name] = value
            del value  # the group alone keeps it, and lets it go when it is yielded
        yield from _flushed(self._model, group)
        for name, value in self._buffers().items():
            yield from _reverted(self._model, {name: value}).items()

    def _buffers(self) -> dict[str, Tensor]:
        parameters = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        kept = {name: value for name, value in self._model.state_dict().items() if name not in parameters}
        place = self.policy.stream.device
        return {name.replace(".base_layer.", "."): value.detach().to(place) for name, value in kept.items()}

    def _plain(self, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Merge the adapters of a layer into its weights, or leave them out, once all of them have come."""
        layer = ""
        weights: dict[str, Tensor] = {}
        for name, value in named:
            owner = self._owner(name)
            if owner != layer and weights:
                yield from self._merged(layer, weights)
            layer = owner
            if owner:
                weights[name] = value
            else:
                yield name, value
            del value
        if weights:
            yield from self._merged(layer, weights)

    def _owner(self, name: str) -> str:
        """Return the adapted layer of a parameter; '' if it is in none."""
        return next((layer for layer in self._layers if name.startswith(f"{layer}.")), "")

    def _merged(self, layer: str, weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Empty the weights of a layer and yield them with its adapters merged, or without them."""
        has_values = not next(iter(weights.values())).is_meta
        # deepcopy takes what its memo holds for a parameter in place of a copy: the gathered weights
        memo = {id(self._model.get_parameter(name)): nn.Parameter(value, False) for name, value in weights.items()}
        weights.clear()
        holder = nn.Module()
        holder.add_module("layer", copy.deepcopy(self._layers[layer], memo))
        del memo
        if self.adapters and has_values:
            merge_adapters(holder)
        else:
            remove_adapters(holder)
        for name, value in list(holder.get_submodule("layer").named_parameters()):
            yield f"{layer}.{name}", value.detach()


def _reverted(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = revert_weight_conversion(model, state)
    return weights


def _flushed(model: nn.Module, group: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Empty a group of parameters and yield what they are in files; nothing keeps what has been yielded."""
    weights = dict(_reverted(model, dict(group)))
    group.clear()
    while weights:
        name = next(iter(weights))
        yield name, weights.pop(name)


def _itself(name: str) -> str:
    return name


def _nothing(_: str) -> str:
    return ""


def _layer_of(name: str) -> str:
    match = _LAYER.match(name)
    return match[0] if match else ""


def _shapes(named: Iterable[tuple[str, Tensor]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in named}


def _name_of_embedding(model: Any) -> str:
    weight = model.get_input_embeddings().weight
    name = next(name for name, parameter in model.named_parameters() if parameter is weight)
    return next(iter(_reverted(model, {name: weight.detach()})))


def buckets(sizes: Iterable[int], limit: int) -> list[int]:
    """Return how many tensors each bucket takes, in order.

    >>> buckets([3, 3, 3, 9, 1], 6), buckets([], 6)
    ([2, 1, 1, 1], [])
    """
    counts: list[int] = []
    held = 0
    for size in sizes:
        if not counts or held + size > limit:
            counts.append(0)
            held = 0
        counts[-1] += 1
        held += size
    return counts


def write_streamed(policy: Policy, folder: Path, dtype: torch.dtype | None, *, adapters: bool) -> None:
    """Write the weights of a streamed policy beside its config, one bucket after the other.

    Raises:
        OSError: there is no room.
    """
    weights = StreamedWeights(policy, adapters=adapters)
    dtype = None if dtype in (None, policy.model.dtype) else dtype

    def kept(value: Tensor) -> torch.dtype:
        return dtype if dtype is not None and value.is_floating_point() else value.dtype

    head = needs_own_head(policy)
    source = _name_of_embedding(policy.model) if head else ""
    counts = buckets((value.numel() * kept(value).itemsize for value in weights.meta.values()), BUCKET)
    whole = len(counts) == 1 and not head
    names = [f"model-{i + 1:05}-of-{len(counts):05}.safetensors" for i in range(len(counts))]
    names = ["model.safetensors"] if whole else names
    places: dict[str, str] = {}
    coming = iter(weights)
    total = 0
    for file, count in zip(names, counts, strict=True):
        bucket: dict[str, Tensor] = {}
        for _ in range(count):
            name, value = next(coming)
            bucket[name] = value.to("cpu", kept(value)).contiguous()
            if bucket[name].untyped_storage().nbytes() > bucket[name].nbytes:  # a view keeps all of what it is of
                bucket[name] = bucket[name].clone()
            del value
        if source in bucket:
            save_file({HEAD: bucket[source]}, folder / "lm_head.safetensors", metadata={"format": "pt"})
            places[HEAD] = "lm_head.safetensors"
        save_file(bucket, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(bucket, file)
        total += sum(value.nbytes for value in bucket.values())
    if next(coming, None) is not None:
        raise RuntimeError("more weights came than were announced")
    if not whole:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    if head:
        retie(folder)
    share(folder, folder / "config.json")
