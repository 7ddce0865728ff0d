"""Kernels that PyTorch's compiler makes of the pieces of a decode step: its schedule, without code.

The schedule is the compiler's for a CPU. A GPU is expected to get as many kernels; no GPU was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gspo_lightning.policy.attention.spans import joined
from gspo_lightning.rollouts.sampler.fast_decoder import pieces

__all__ = ["kernels_of_pieces"]

ROWS, HIDDEN, INNER, HEADS, SHARED, SIZE = 16, 64, 128, 4, 2, 32


def kernels_of_pieces(*, norms: bool = True) -> dict[str, int]:
    """Return the kernels of each piece in bf16-mixed; ``norms``: queries and keys are normed, as in Qwen3."""
    half, full = torch.bfloat16, torch.float32
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def empty(*shape: int, dtype: torch.dtype = full) -> Tensor:
            return torch.empty(*shape, dtype=dtype)

        heads, count = (SHARED + 2) * HEADS, (SHARED + 1) * HEADS
        scale = empty(heads, SIZE) if norms else None
        out, lse = empty(ROWS, SHARED, HEADS, SIZE, dtype=half), empty(ROWS, SHARED, HEADS)
        cases: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
            "normed": (lambda x, w: pieces.normed(x, w, 1e-6, half), [empty(ROWS, HIDDEN), empty(HIDDEN)]),
            "added": (
                lambda x, m, w: pieces.added(x, m, w, 1e-6, half),
                [empty(ROWS, HIDDEN), empty(ROWS, HIDDEN, dtype=half), empty(HIDDEN)],
            ),
            "turned": (
                lambda q, c, s: pieces.turned_apart(q, count, c, s, scale, 1e-6),
                [empty(ROWS, heads, SIZE, dtype=half), empty(ROWS, 1, SIZE), empty(ROWS, 1, SIZE)],
            ),
            "gated": (lambda x: pieces.gated(x, nn.functional.silu), [empty(ROWS, 2 * INNER, dtype=half)]),
            "joined": (joined, [out, lse, out.clone(), lse.clone()]),
        }
        return {name: _kernels(mode, function, inputs) for name, (function, inputs) in cases.items()}


def _kernels(mode: FakeTensorMode, function: Callable[..., Any], inputs: list[Tensor]) -> int:
    """Return the groups of operations in the compiler's schedule of a function."""
    traced = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs)
    graph = GraphLowering(traced, example_inputs=inputs)
    with V.set_graph_handler(graph), V.set_fake_mode(mode), DebugContext():
        graph.run(*inputs)
        graph._update_scheduler()
        return sum(not isinstance(node, NopKernelSchedulerNode) for node in graph.scheduler.nodes)
