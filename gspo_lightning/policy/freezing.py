"""Parts of a model that training leaves as they are: the vision tower, or modules by name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from gspo_lightning.errors import UserError

__all__ = ["VISION", "freeze", "trains_vision"]

VISION = "vision"
"""In the place of a pattern: the tower that makes features of pictures, with what maps them to the text model."""


def freeze(model: nn.Module, patterns: Sequence[str] | None) -> int:
    """Freeze parts of a model; returns how many weights.

    Args:
        model: that will be trained.
        patterns: names of modules with ``*`` for anything (``model.layers.0``, ``*.embed_tokens``), or ``vision``. None
            is ``vision`` where the model has a vision tower.

    Raises:
        UserError: a pattern names no module, or nothing is left to train.
    """
    towers = _towers(model)
    wanted = ([VISION] if towers else []) if patterns is None else patterns
    for pattern in wanted:
        names = dict(model.named_modules())
        found = towers if pattern == VISION else [m for n, m in names.items() if n and fnmatchcase(n, pattern)]
        if not found:
            what = f"{pattern!r} names no module of {type(model).__name__}"
            if pattern == VISION:
                what = f"names {VISION!r}, but {type(model).__name__} has no vision tower"
            some = ", ".join([n for n in names if n.count(".") <= 1 and n][:8])
            raise UserError("model.freeze", what, fix=f"use names with * for anything; the model has {some} ...")
        for module in found:
            module.requires_grad_(False)
    if wanted and not any(p.requires_grad for p in model.parameters()):
        raise UserError("model.freeze", "freezes every weight of the model", fix="leave something to train")
    return sum(p.numel() for p in model.parameters() if not p.requires_grad)


def trains_vision(model: nn.Module) -> bool:
    """Whether weights of a vision tower are trained."""
    return any(p.requires_grad for tower in _towers(model) for p in tower.parameters())


def _towers(model: nn.Module) -> list[nn.Module]:
    base = getattr(model, "base_model", model)
    found = getattr(base, "visual", None)
    return [found] if isinstance(found, nn.Module) else []
