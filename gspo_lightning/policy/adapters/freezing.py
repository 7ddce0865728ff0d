"""Freeze parts of a model: the vision tower, or modules by name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.vision.families import tower_of, unread_of

VISION = "vision"
"""Special pattern for the vision tower and the projector that maps its features to the text model."""


def freeze(model: nn.Module, patterns: Sequence[str] | None) -> int:
    """Freeze parts of a model, and vision parts that its pictures never use; return the number of frozen weights.

    Args:
        model: to be trained.
        patterns: names of modules with ``*`` for anything (``model.layers.0``, ``*.embed_tokens``), or ``vision``. None
            means ``vision`` if the model has a vision tower.

    Raises:
        UserError: a pattern names no module, or nothing is left to train.
    """
    frozen = _chosen(model, patterns)
    for module in frozen.values():
        module.requires_grad_(False)
    if frozen and not any(p.requires_grad for p in model.parameters()):
        raise UserError("model.freeze", "freezes every weight of the model", fix="leave something to train")
    return sum(p.numel() for p in model.parameters() if not p.requires_grad)


def layers_left_out(model: nn.Module, patterns: Sequence[str] | None) -> list[str]:
    """Return names of the linear layers that :func:`freeze` would freeze: they get no adapter.

    Raises:
        UserError: a pattern names no module.
    """
    return sorted({name for path, module in _chosen(model, patterns).items() for name in _linear(path, module)})


def vision_layers(model: nn.Module) -> list[str]:
    """Return names of the linear layers of a vision tower."""
    return [name for path, module in tower_of(model).items() for name in _linear(path, module)]


def trains_vision(model: nn.Module) -> bool:
    """True if weights of a vision tower are trained."""
    return any(p.requires_grad for tower in tower_of(model).values() for p in tower.parameters())


def _chosen(model: nn.Module, patterns: Sequence[str] | None) -> dict[str, nn.Module]:
    towers = tower_of(model)
    modules = dict(model.named_modules())
    chosen = unread_of(model)  # gets no gradient, and other ranks would wait for it
    if patterns is None:
        patterns = [VISION] if towers else []
    for pattern in patterns:
        if pattern == VISION:
            matched = towers
            problem = f"names {VISION!r}, but {type(model).__name__} has no vision tower"
        else:
            matched = {name: module for name, module in modules.items() if name and fnmatchcase(name, pattern)}
            problem = f"{pattern!r} names no module of {type(model).__name__}"
        if not matched:
            examples = ", ".join([name for name in modules if name.count(".") <= 1 and name][:8])
            raise UserError("model.freeze", problem, fix=f"use names with * for anything; the model has {examples} ...")
        chosen |= matched
    return chosen


def _linear(path: str, module: nn.Module) -> list[str]:
    return [name for name, layer in module.named_modules(prefix=path) if isinstance(layer, nn.Linear)]
