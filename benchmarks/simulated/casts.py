"""Casts of weights: how often a weight in float32 is read to make one in another dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.models import MODELS, build_model, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.simulated.counts import package_line
from benchmarks.workloads import Workload
from gspo_lightning.policy.policy import Policy

__all__ = ["Casts", "casts_per_step", "weight_casts"]

COPY = "policy/numerics/autocast_weights.py"
"""Where a rollout's copies are made."""


class Casts(TorchDispatchMode):
    """Counts them for one policy.

    Args:
        policy: whose weights.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.own = {p.data_ptr() for p in policy.model.parameters() if p.is_floating_point()}
        self.weights: set[int] = set()
        """Those that were cast, by address."""
        self.total = self.outside_copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("_to_copy", "to") and isinstance(args[0], Tensor):  # "to": inference mode
            address = args[0].data_ptr()
            if out.dtype != args[0].dtype and address in self.own:
                self.total += 1
                self.weights.add(address)
                self.outside_copies += not package_line().startswith(COPY)
        return out


@contextlib.contextmanager
def weight_casts(policy: Policy) -> Iterator[Casts]:
    """Yields what is counted inside."""
    with Casts(policy) as casts:
        yield casts


def casts_per_step() -> float:
    """Of a decode step under Lightning's bf16-mixed, four layers: between two rollouts of different lengths."""
    shape, found = MODELS["1m"], []
    for tokens in (8, 24):
        context = lambda: MixedPrecision("bf16-mixed", "cpu").forward_context()  # noqa: E731
        work = Workload(2, 4, (4, 12), tokens, tokens, sigma=0.0)
        ours = Ours(build_model(shape), word_tokenizer(shape.vocabulary), work, layout="packed", context=context)
        with weight_casts(ours.policy) as casts:
            ours.generate()
        found.append(casts.total)
    return (found[1] - found[0]) / 16
