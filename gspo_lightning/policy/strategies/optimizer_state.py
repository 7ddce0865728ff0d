"""Optimizer state of sharded weights in checkpoints, read and written without a step of the optimizer.

Where an optimizer has no state, torch's functions make one by a step of learning rate 0, which counts: the first real
step is then the second. State is missing until the first step: during a critic's warm-up, or if updates were skipped.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor, distribute_tensor

from gspo_lightning.core.distributed import group
from gspo_lightning.policy.strategies.sharding import plain_name


def names_of(model: nn.Module) -> dict[nn.Parameter, str]:
    """Return the name of every parameter in a checkpoint."""
    return {parameter: plain_name(name) for name, parameter in model.named_parameters()}


def empty_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer that has none yet, as torch's ``get_optimizer_state_dict`` would name it."""
    names = names_of(model)
    groups = []
    for settings, parameters in _groups(optimizer):
        groups.append({**settings, "params": [names[parameter] for parameter in parameters]})
    return {"state": {}, "param_groups": groups}


def has_state(folder: Path, key: str) -> bool:
    """True if a checkpoint of shards has state of an optimizer, not only its settings.

    Args:
        folder: the checkpoint.
        key: name of the optimizer in it.
    """
    return any(path[:2] == (key, "state") for path in _paths(FileSystemReader(folder).read_metadata()).values())


def load_shards(folder: Path, key: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load state and settings of an optimizer from a checkpoint of shards; a collective.

    What has no state in the checkpoint has none afterwards.

    Args:
        folder: the checkpoint.
        key: name of the optimizer in it.
        model: sharded by FSDP2, or with FSDP1 only if the checkpoint has no state.
        optimizer: over its parameters.
    """
    metadata = FileSystemReader(folder).read_metadata()
    parameters = {name: parameter for parameter, name in names_of(model).items()}
    paths = _paths(metadata)
    targets: dict[str, Any] = {}
    for name, path in paths.items():
        if path[0] == key and (path[1] != "state" or path[2] in parameters):
            targets[name] = _target(metadata.state_dict_metadata[name], parameters.get(path[2]))
    load(targets, storage_reader=FileSystemReader(folder), process_group=group())
    state: dict[str, dict[str, Any]] = defaultdict(dict)
    settings: dict[int, dict[str, Any]] = defaultdict(dict)
    for name, value in targets.items():
        _, part, owner, *rest = paths[name]
        _put((state if part == "state" else settings)[owner], rest, value)
    _restore(optimizer, state, settings, names_of(model))


def load_whole(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Load the state that an optimizer had over whole tensors; each rank takes its shards of them.

    Args:
        saved: an optimizer's ``state_dict``, the same on every rank; its parameters may have names or numbers.
        optimizer: over parameters that FSDP2 has sharded, in the same order.
    """
    state: dict[str, dict[str, Any]] = {}
    names: dict[nn.Parameter, str] = {}
    for settings, (_, parameters) in zip(saved["param_groups"], _groups(optimizer), strict=True):
        for parameter, name in zip(parameters, settings["params"], strict=True):
            names[parameter] = name
            if name in saved["state"]:
                state[name] = {key: _sharded(value, parameter) for key, value in saved["state"][name].items()}
    _restore(optimizer, state, dict(enumerate(saved["param_groups"])), names)


def _restore(
    optimizer: torch.optim.Optimizer,
    state: Mapping[Any, Mapping[str, Any]],
    settings: Mapping[int, Mapping[str, Any]],
    names: Mapping[nn.Parameter, str],
) -> None:
    groups: list[dict[str, Any]] = []
    numbered: dict[int, dict[str, Any]] = {}
    number = itertools.count()
    for index, (present, parameters) in enumerate(_groups(optimizer)):
        numbers = {next(number): names[parameter] for parameter in parameters}
        numbered |= {n: dict(state[name]) for n, name in numbers.items() if name in state}
        groups.append({**present, **settings.get(index, {}), "params": list(numbers)})
    optimizer.load_state_dict({"state": numbered, "param_groups": groups})


def _groups(optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], list[nn.Parameter]]]:
    """Return settings and parameters of each group."""
    groups = []
    for param_group in optimizer.param_groups:
        settings = dict(param_group)
        parameters = settings.pop("params")
        groups.append((settings, parameters))
    return groups


def _paths(metadata: Metadata) -> dict[str, tuple[Any, ...]]:
    """Return where the values of a checkpoint belong: name of a value -> keys that lead to it."""
    return {name: tuple(path) for name, path in metadata.planner_data.items()}


def _target(stored: Any, parameter: nn.Parameter | None) -> Any:
    """Return what a value is read into: a state of a parameter's shape is sharded as the parameter is."""
    if not isinstance(stored, TensorStorageMetadata):
        return None
    dtype = stored.properties.dtype
    if parameter is not None and stored.size == parameter.shape:
        return torch.empty_like(parameter.detach(), dtype=dtype)
    return torch.empty(stored.size, dtype=dtype)


def _sharded(value: Any, parameter: nn.Parameter) -> Any:
    if not isinstance(value, Tensor) or not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def _put(nested: dict[str, Any], path: list[Any], value: Any) -> None:
    for key in path[:-1]:
        nested = nested.setdefault(key, {})
    nested[path[-1]] = value
