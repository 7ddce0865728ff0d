"""How many attention kernels a run compiles, and which calls go without: ``torch.compile`` with a backend that counts.

The package's own sequence of calls, on CPU tensors: the check of the kernel, the check of ratios, sampling, old
log-probabilities, updates. What is compiled computes as PyTorch does without a compiler.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.nn.attention import flex_attention as upstream

from benchmarks.clock import Phases
from benchmarks.models import Shape, build_model, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.workloads import Workload, reward
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.old_policy.noise import check_ratio_noise
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.attention import flex, interface, plans
from gspo_lightning.policy.model_checks.checks import why_no_kernel
from gspo_lightning.policy.model_checks.row_isolation import probe
from gspo_lightning.rollouts import GroupedSampler

__all__ = ["Kernels", "counted_kernels", "kernels_of_a_run"]

SHAPE = Shape(64, 32, 2, 4, 2, 16, 48)
SHORT, LONG = Workload(4, 4, (20, 40), 20, 60), Workload(6, 4, (120, 300), 60, 250)


@dataclass
class Kernels:
    """Graphs that were compiled, and calls of attention that went without one where one was wanted."""

    compiled: int = 0
    eager: int = 0
    dtypes: set[torch.dtype] = field(default_factory=set)
    """Dtypes of queries, keys and values that a graph was compiled for."""


def _nothing(*_: Tensor) -> None:
    """A mock is more than ``torch.compile`` can look into."""


@contextlib.contextmanager
def counted_kernels() -> Iterator[Kernels]:
    """The CPU attends as CUDA does, by compiled FlexAttention; yields what is counted."""
    found = Kernels()

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.compiled += 1
        found.dtypes |= {x.dtype for x in inputs if isinstance(x, Tensor) and x.ndim == 4 and x.is_floating_point()}
        return graph.forward

    real = upstream._warn_once

    def warn(warning_id: str, *rest: Any, **options: Any) -> None:
        if warning_id == "flex_attention_performance":
            found.eager += not flex._uncompiled.get()  # on purpose, and for few tokens
        else:
            real(warning_id, *rest, **options)

    torch._dynamo.reset()
    kernel = flex.compiled(backend=backend)
    try:
        with (
            mock.patch.object(upstream, "_warn_once", warn),
            mock.patch.object(upstream, "_validate_device", _nothing),  # which refuses gradients on a CPU
            mock.patch.object(flex, "kernel", return_value=kernel),
            mock.patch.object(plans, "has_flex", return_value=True),
            mock.patch.object(interface, "FLOAT32_ON", ()),
        ):
            yield found
    finally:
        torch._dynamo.reset()


def _autocast() -> AbstractContextManager[Any]:
    return MixedPrecision("bf16-mixed", "cpu").forward_context()


def kernels_of_a_run(*, longer: bool = False) -> Kernels:
    """Of the shortest run, or of one with an evaluation and longer rows after it."""
    with counted_kernels() as found:
        ours = Ours(build_model(SHAPE), word_tokenizer(SHAPE.vocabulary), SHORT, max_tokens=300, context=_autocast)
        _start(ours)
        _iteration(ours)
        if longer:
            ours.generate()  # an evaluation: the same path, no gradients
            again = Ours(ours.policy.model, ours.policy.tokenizer, LONG, max_tokens=1200, context=_autocast)
            _iteration(again)
    return found


def _start(ours: Ours) -> None:
    """What ``gspo fit`` does before the first rollout."""
    if (reason := why_no_kernel(ours.policy, torch.device("cpu"), torch.bfloat16)) is not None:
        raise RuntimeError(f"packed attention does not work: {reason}")
    check_ratio_noise(ours.policy, probe(ours.policy, 75), GSPO(0.5, 0.5), _autocast)


def _iteration(ours: Ours) -> None:
    """A rollout in which prompts join, old log-probabilities, and updates."""
    ours.sampler, ours.old_logprobs.choice = GroupedSampler(max_rows=8, decode="model"), "recompute"
    groups = ours.generate()
    for rollout in (r for g in groups for r in g):
        rollout.reward = reward(rollout.token_ids.tolist())
    for batch in ours.prepare(ours.pack(groups, 2)):
        ours.accumulate(batch, Phases(), MetricSums(), on_policy=batch.index == 0)
