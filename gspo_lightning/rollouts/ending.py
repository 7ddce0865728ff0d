"""End conditions of a response: end tokens, stop strings, the token limit."""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.base import Beginning
from gspo_lightning.rollouts.stops import Newest, texts_ended
from gspo_lightning.types import FinishReason, Prompt, Rollout, SamplingParams

__all__ = ["cut", "finish", "has_ended"]


def has_ended(policy: Policy, last: Tensor, sampling: SamplingParams, newest: Newest, going: Tensor) -> Tensor:
    """[rows] bool: the last token is a stop token, or the text so far contains a stop string.

    Args:
        policy: provides the tokenizer.
        last: [rows] the newest tokens.
        sampling: the stops.
        newest: returns the tokens of some rows; called only if they are needed.
        going: [rows] bool, the rows whose texts are checked; finished rows are skipped.
    """
    ended = torch.zeros_like(last, dtype=torch.bool)
    for stop in sampling.stop_token_ids:
        ended = ended | (last == stop)
    if sampling.stop_strings:
        (rows,) = (going & ~ended).nonzero(as_tuple=True)
        numbers = rows.tolist()
        found = texts_ended(
            policy.tokenizer,
            sampling.stop_strings,
            last[rows].tolist(),
            lambda which, count: newest([numbers[i] for i in which], count),
        )
        ended[rows] = torch.tensor(found, dtype=torch.bool, device=last.device)
    return ended


def finish(
    prompt: Prompt, sample: int, tokens: Tensor, logprobs: Tensor, *, reason: FinishReason, version: int, policy: Policy
) -> Rollout:
    """Build a :class:`Rollout` on the CPU from sampled tokens, all of them the policy's own."""
    ids = tokens.to("cpu", torch.int64).clone()
    return Rollout(
        prompt=prompt,
        sample=sample,
        token_ids=ids,
        logprobs=logprobs.to("cpu", torch.float32).clone(),
        response_mask=torch.ones(ids.shape[0], dtype=torch.bool),
        finish_reason=reason,
        policy_version=version,
        text=policy.tokenizer.decode(ids.tolist(), skip_special_tokens=True),
    )


def cut(row: Beginning, version: int) -> Rollout:
    """Return an empty piece for a response that never got its turn."""
    none = torch.zeros(0)
    return Rollout(row.prompt, row.sample, none.long(), none, none.bool(), FinishReason.CUT, version)
