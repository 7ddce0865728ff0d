"""Short names of classes: PyTorch's class is meant where another package has one of the same name.

bitsandbytes and transformers have optimizers and schedules with PyTorch's names. jsonargparse (4.53) refuses such a
name as ambiguous once their package is imported: by another config, by 4-bit weights, or by an earlier run in the same
process. What ``AdamW`` means must not depend on that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from typing import Any

from jsonargparse import _typehints


def without_namesakes(paths: Iterable[str]) -> list[str]:
    """Return paths of classes without those that share the name of one of PyTorch's.

    >>> without_namesakes(["torch.optim.adamw.AdamW", "bitsandbytes.optim.AdamW", "bitsandbytes.optim.Lion"])
    ['torch.optim.adamw.AdamW', 'bitsandbytes.optim.Lion']
    """
    listed = list(paths)
    names = {path.rpartition(".")[2] for path in listed if path.startswith("torch.")}
    return [path for path in listed if path.startswith("torch.") or path.rpartition(".")[2] not in names]


def prefer_torch() -> None:
    """Let the parser find PyTorch's classes first, from now on; there is no setting for it."""
    search = _typehints.get_all_subclass_paths
    if getattr(search, "prefers_torch", False):
        return

    @wraps(search)
    def preferring(*args: Any, **kwargs: Any) -> list[str]:
        return without_namesakes(search(*args, **kwargs))

    preferring.prefers_torch = True  # type: ignore[attr-defined]
    _typehints.get_all_subclass_paths = preferring
