"""Train and eval mode of every module, kept over what changes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

__all__ = ["modes_kept"]


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Every module leaves in the mode, train or eval, in which it came."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
