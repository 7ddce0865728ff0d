"""How far rounding may move a log-probability of a model: measured on the model itself, in its own dtype.

A fixed tolerance is too wide for one model and too narrow for another: in bfloat16 one model moves by tenths of a nat
where another one moves by thousandths. What a model makes of one unit in the last place of its own embeddings is the
measure here; every operation after them rounds as much.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

__all__ = ["FLOOR", "OPERATIONS", "few_tokens", "nudged", "response_gap"]

OPERATIONS = 4.0
"""Two ways to compute the same may differ by so many times what one rounding of the embeddings does: 2.6 times at most
in models of 2 and of 48 layers; what is wrong differs by 126 times in float32, 7 in bfloat16 (docs/model_checks.md)."""
FLOOR = {torch.float64: 1e-9}
"""Mean difference (nats) that is rounding wherever it comes from, if not 1e-5: log-probabilities are float32."""


def few_tokens(model: PreTrainedModel, count: int) -> Tensor:
    """[1, count] token ids on the model's device, none twice where the vocabulary is large enough."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    device = next(model.parameters()).device
    return (torch.arange(count, device=device) * 7 + 3).remainder(vocabulary).unsqueeze(0)


@contextlib.contextmanager
def nudged(model: PreTrainedModel) -> Iterator[None]:
    """Every element of the input embeddings moves by one unit in its last place, up or down, while this lasts."""

    def nudge(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        signs = 1.0 - 2.0 * (torch.arange(output.shape[-1], device=output.device) * 5 % 7 % 2)
        return (output * (1.0 + torch.finfo(output.dtype).eps * signs)).to(output.dtype)

    handle = model.get_input_embeddings().register_forward_hook(nudge)
    try:
        yield
    finally:
        handle.remove()


def response_gap(ours: Tensor, theirs: Tensor, mask: Tensor) -> float:
    """Mean absolute difference of log-probabilities [N, T] over the tokens of a mask; nats, infinite if one is NaN."""
    gap = float((ours.double() - theirs.double()).abs()[mask].mean())
    return gap if gap == gap else float("inf")
