"""Restore the train or eval mode of every module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

__all__ = ["modes_kept"]


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore every module's train or eval mode on exit."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
