"""Random draws: one uniform number per (row, position), from a counter-based hash, turned into a token."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gspo_lightning.core.randomness import Purpose, stream, uniforms
from gspo_lightning.core.types import SamplingParams

BLOCK = 64
"""Vocabulary tokens per block in the two-level search for a drawn token."""
FIRST = 1024
"""Most likely tokens that are looked at first for ``top_p``; sorting a vocabulary of 150,000 takes 20 ms a row."""
BELOW_ONE = 1 - 2.0**-40
"""Largest factor below 1: in float64 a product with it is smaller than the other factor, whatever the rounding."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers of one rollout: a uniform per (prompt id, sample k, token position), whatever the batching."""

    base: int
    iteration: int = field(default=0, kw_only=True)
    """Iteration of the run; ``base`` already depends on it."""

    @classmethod
    def of(cls, seed: int, purpose: Purpose, iteration: int) -> Draws:
        """Return the draws of one iteration."""
        return cls(stream(seed, purpose, iteration), iteration=iteration)

    def uniform(self, prompt_ids: Tensor, samples: Tensor, positions: Tensor | int) -> Tensor:
        """Return float64 in [0, 1) for each element; ``positions`` count the tokens of a response from 0."""
        return uniforms(self.base, prompt_ids, samples, positions)


def sample_tokens(logits: Tensor, uniform: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution, and return its log-probability.

    Args:
        logits: [rows, V], any float dtype.
        uniform: [rows] float64 in [0, 1); unused when greedy.
        sampling: temperature, ``top_p``, ``top_k``.

    Returns:
        ``tokens`` [rows] int64 and ``logprobs`` [rows] float32 under the policy at the sampling temperature (at
        temperature 1 when greedy). With top-p or top-k they are still the policy's own, not the truncated ones.
    """
    scores = logits.float()
    if sampling.temperature not in (0.0, 1.0):
        scores = scores / sampling.temperature
    probabilities = torch.softmax(scores, dim=-1)
    blocks, ends = _blocks(probabilities)
    if sampling.temperature == 0:
        tokens = scores.argmax(dim=-1)
    elif sampling.neutral:
        tokens = _invert(blocks, ends, uniform.to(logits.device))
    else:
        tokens = _invert(*_blocks(_truncate(probabilities, sampling)), uniform.to(logits.device))
    tokens = tokens.clamp(max=logits.shape[-1] - 1)  # NaN is reported by the loss
    chosen = probabilities.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).double()
    return tokens, (chosen / ends[:, -1]).log().float()  # float32 probabilities add up to 1 only within 1e-5


def _blocks(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights as [rows, blocks, BLOCK], and their cumulative block sums [rows, blocks] in float64."""
    missing = -weights.shape[1] % BLOCK
    blocks = (nn.functional.pad(weights, (0, missing)) if missing else weights).view(len(weights), -1, BLOCK)
    return blocks, blocks.sum(-1).double().cumsum(-1)


def _invert(blocks: Tensor, ends: Tensor, uniform: Tensor) -> Tensor:
    """Return the first token whose cumulative weight exceeds ``uniform`` times the total, by block, then by token.

    Two levels read the vocabulary once. Running sums are float64: at V = 150,000 the error of a float32 sum exceeds the
    weight of rare tokens. A token of weight 0 is never drawn.
    """
    target = (uniform.clamp(max=BELOW_ONE) * ends[:, -1]).unsqueeze(-1)
    block = torch.searchsorted(ends, target, right=True).clamp(max=ends.shape[1] - 1)  # beyond the end only for NaN
    end = ends.gather(1, block)
    start = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block.squeeze(-1)].double().cumsum(-1)
    share = ((target - start) / (end - start)).clamp(max=BELOW_ONE)  # the block's own sum may differ in the last digits
    place = torch.searchsorted(inside, share * inside[:, -1:], right=True).clamp(max=BLOCK - 1)
    return (block * BLOCK + place).squeeze(-1)


def _truncate(probabilities: Tensor, sampling: SamplingParams) -> Tensor:
    if sampling.top_k > 0:
        kept = probabilities.topk(min(sampling.top_k, probabilities.shape[-1]), dim=-1).values[:, -1:]
        probabilities = torch.where(probabilities >= kept, probabilities, 0.0)
    if sampling.top_p == 1.0:
        return probabilities
    wanted = sampling.top_p * probabilities.sum(dim=-1, keepdim=True)
    if probabilities.device.type != "cpu" or probabilities.shape[-1] <= FIRST:  # a choice by row would stall a GPU
        return _nucleus(probabilities, probabilities.sort(dim=-1, descending=True), wanted)[0]
    found, whole = _nucleus(probabilities, probabilities.topk(FIRST, dim=-1), wanted)
    rest = (~whole).nonzero().squeeze(-1)
    if len(rest):
        flat = probabilities[rest]
        found[rest] = _nucleus(flat, flat.sort(dim=-1, descending=True), wanted[rest])[0]
    return found


def _nucleus(probabilities: Tensor, largest: tuple[Tensor, Tensor], wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the largest probabilities that together reach ``wanted`` [rows, 1]; also return the rows that reach it.

    Args:
        probabilities: [rows, V].
        largest: the largest of each row in falling order, with their tokens, [rows, K] each.
        wanted: probability to keep.
    """
    ordered, index = largest
    running = ordered.cumsum(dim=-1)
    kept = ordered.masked_fill(running - ordered > wanted, 0.0)
    return torch.zeros_like(probabilities).scatter(-1, index, kept), running[:, -1] > wanted.squeeze(-1)
