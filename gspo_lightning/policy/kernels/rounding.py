"""Measure how far rounding moves a model's log-probabilities, on the model itself and in its own dtype.

A fixed tolerance is too wide for one model and too narrow for another: in bfloat16 one model moves by tenths of a nat
and another by thousandths. The yardstick here is the effect of one unit in the last place of the model's own
embeddings; every later operation rounds as much.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_lightning.policy.unsaid import UNSAID

OPERATIONS = 4.0
"""Largest difference of two computations of the same, in multiples of one rounding of the embeddings.

Correct models of 2 and of 48 layers reach 2.6; wrong ones 126 in float32 and 7 in bfloat16 (docs/models.md).
"""
FLOOR = {torch.float64: 1e-9}
"""Mean difference (nats) that always counts as rounding; 1e-5 by default, since log-probabilities are float32."""


def few_tokens(model: PreTrainedModel, count: int) -> Tensor:
    """Return token ids [1, count] on the model's device, all distinct if the vocabulary is large enough."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    device = next(model.parameters()).device
    return (torch.arange(count, device=device) * 7 + 3).remainder(vocabulary).unsqueeze(0)


@contextlib.contextmanager
def nudged(model: PreTrainedModel, eps: float | None = None) -> Iterator[None]:
    """Move every element of the input embeddings by one unit in its last place, up or down, inside the context.

    Args:
        model: its input embeddings are moved.
        eps: the unit, relative to 1; that of the embeddings' dtype by default. Under autocast products round more.
    """

    def nudge(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        signs = 1.0 - 2.0 * (torch.arange(output.shape[-1], device=output.device) * 5 % 7 % 2)
        unit = torch.finfo(output.dtype).eps if eps is None else eps
        return (output * (1.0 + unit * signs)).to(output.dtype)

    handle = model.get_input_embeddings().register_forward_hook(nudge)
    try:
        yield
    finally:
        handle.remove()


def response_gap(ours: Tensor, theirs: Tensor, mask: Tensor) -> float:
    """Return the mean absolute difference of log-probabilities [N, T] over a mask; nats, infinite if one is NaN."""
    gap = float((ours.double() - theirs.double()).abs()[mask].mean())
    return gap if gap == gap else float("inf")


def distribution_gap(ours: Tensor, theirs: Tensor) -> float:
    """Return the mean absolute difference of log-probabilities [..., V]; nats, infinite if one is NaN.

    Tokens that are never said count as equal: numbers of their size have steps of a thousandth.
    """
    off = (ours.double() - theirs.double()).abs()
    gap = float(off.masked_fill((ours < UNSAID / 2) & (theirs < UNSAID / 2), 0.0).mean())
    return gap if gap == gap else float("inf")
