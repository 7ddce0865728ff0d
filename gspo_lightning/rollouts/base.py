"""Where responses come from: one interface for the in-process sampler, transformers ``generate`` and servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from gspo_lightning.errors import UserError
from gspo_lightning.policy.policy import Policy
from gspo_lightning.randomness import Purpose, stream, uniforms
from gspo_lightning.rollouts.stops import Newest, texts_ended
from gspo_lightning.types import FinishReason, Prompt, Rollout, SamplingParams

__all__ = [
    "Beginning",
    "Draws",
    "Enough",
    "Generator",
    "OnGroup",
    "RolloutSource",
    "cut",
    "finish",
    "has_ended",
    "sample_tokens",
]

BLOCK = 64
"""Tokens of the vocabulary that are looked at together when a token is drawn."""
BELOW_ONE = 1 - 2.0**-40
"""A product with it is smaller than the other factor in float64, whatever the rounding."""

Progress = Callable[[int, int], None]
"""Called with (finished responses, all responses) while a source works."""
OnGroup = Callable[[Sequence[Rollout]], None]
Enough = Callable[[Collection[int]], bool]
"""Called with the indices of the responses that have ended, now and then; True cuts all others where they are."""


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of one rollout: a uniform per (prompt id, sample k, token position), whatever the batching."""

    base: int
    iteration: int = field(default=0, kw_only=True)
    """Of the run; part of ``base`` already."""

    @classmethod
    def of(cls, seed: int, purpose: Purpose, iteration: int) -> Draws:
        """The draws of one iteration."""
        return cls(stream(seed, purpose, iteration), iteration=iteration)

    def uniform(self, prompt_ids: Tensor, samples: Tensor, positions: Tensor | int) -> Tensor:
        """Float64 in [0, 1) for each element; ``positions`` count the tokens of a response from 0."""
        return uniforms(self.base, prompt_ids, samples, positions)


@dataclass(frozen=True, slots=True)
class Beginning:
    """A response that has begun, or is about to: what the policy reads, and where its random numbers stand.

    ``context`` is everything the policy sees, the prompt and all after it; ``drawn`` counts the tokens that were drawn
    for this response before, so that it is the position of the next draw; ``room`` is how many tokens it may still
    take (at least 1); ``written`` are the tokens of the same message that the policy wrote last, in which a stop string
    may have begun.
    """

    prompt: Prompt
    sample: int
    context: tuple[int, ...]
    drawn: int
    room: int
    written: tuple[int, ...] = ()

    @classmethod
    def groups(cls, prompts: Sequence[Prompt], group_size: int, room: int) -> list[Beginning]:
        """``group_size`` responses to each prompt, one prompt after another, of which nothing is there yet."""
        return [cls(p, k, p.token_ids, 0, room) for p in prompts for k in range(group_size)]


class Generator(Protocol):
    """What the loop asks for groups: a source, or something in front of one."""

    on_group: OnGroup | None

    def generate(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        sampling: SamplingParams,
        draws: Draws,
        version: int = 0,
        progress: Progress | None = None,
    ) -> list[list[Rollout]]:
        """See :meth:`RolloutSource.generate`."""

    def sync_weights(self, policy: Policy, version: int) -> None:
        """See :meth:`RolloutSource.sync_weights`."""


class RolloutSource(ABC):
    """Turns prompts into groups of responses, token ids in, token ids out.

    Every source keeps one contract (``tests/rollouts/test_contract.py``): groups come back in the order of the prompts,
    each with exactly ``group_size`` rollouts; ids are never re-tokenised; the end token is part of the response; a
    response that is cut at the limit says so.
    """

    on_group: OnGroup | None = None
    """Called with the G responses to a prompt as soon as all are there, in any order, so that their scoring can begin;
    a source that does not know before the end need not call it."""

    records_routes: bool = False
    """Whether rollouts bring the experts that they were sampled with (``Rollout.routes``), for Routing Replay."""

    @abstractmethod
    def generate(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        sampling: SamplingParams,
        draws: Draws,
        version: int = 0,
        progress: Progress | None = None,
    ) -> list[list[Rollout]]:
        """Sample ``group_size`` responses for each prompt.

        Args:
            policy: the weights to sample from, in eval mode, gathered on this rank.
            prompts: P prompts.
            group_size: G.
            sampling: temperature, limits and stops.
            draws: the randomness of this call.
            version: recorded as ``policy_version``.
            progress: told how far it is.
        """

    def extend(
        self,
        policy: Policy,
        beginnings: Sequence[Beginning],
        *,
        sampling: SamplingParams,
        draws: Draws,
        version: int = 0,
        enough: Enough | None = None,
    ) -> list[Rollout]:
        """Go on with responses that have begun.

        What is drawn for a token depends on the prompt, the sample and ``drawn`` only: a response in two pieces is the
        response in one.

        Args:
            policy: the weights to sample from, in eval mode, gathered on this rank.
            beginnings: N responses; ``sampling.max_response_tokens`` does not count, their ``room`` does.
            sampling: temperature and stops.
            draws: the randomness of this call.
            version: recorded as ``policy_version``.
            enough: may end the call before all responses have ended.

        Returns:
            One rollout per beginning, in order, with the *new* tokens only. One that ``enough`` has cut has the finish
            reason ``CUT``, and perhaps no token at all.

        Raises:
            UserError: this source cannot do it.
        """
        raise UserError(
            "data.rollouts",
            f"is {type(self).__name__}, which cannot go on with a response that has begun",
            fix="use GroupedSampler or TransformersGenerate, or write extend() for this source",
        )

    def local(self) -> RolloutSource | None:
        """What decodes in this process, to be compared with the training forward before the first rollout; it can
        :meth:`extend`. None: nothing does."""
        return None

    def open(self, longest: int) -> None:  # noqa: B027 (most sources have nothing to open)
        """Called before the model is built: a file or a server that is not there says so now. May be called again.

        Args:
            longest: tokens of the longest sequence, prompt and response, that will be asked for; 0: nobody knows.
        """

    def use_less_memory(self) -> int:
        """Called when memory ran out: work on fewer responses at a time from now on.

        Returns:
            how many; 0 where that is not possible.
        """
        return 0

    def for_evaluation(self) -> RolloutSource:
        """What answers held-out prompts."""
        return self

    def sync_weights(self, policy: Policy, version: int) -> None:  # noqa: B027 (in-process sources read the live weights)
        """Hand new weights to a source that keeps its own copy; called before every :meth:`generate`.

        Args:
            policy: the weights, gathered on this rank.
            version: the ``version`` of the calls that follow.
        """

    def close(self) -> None:  # noqa: B027
        """Release servers and processes."""


def sample_tokens(logits: Tensor, uniform: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution, and its log-probability.

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
    tokens = tokens.clamp(max=logits.shape[-1] - 1)  # NaN is found where it matters, in the loss
    chosen = probabilities.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).double()
    return tokens, (chosen / ends[:, -1]).log().float()  # float32 probabilities add up to 1 only within 1e-5


def _blocks(weights: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, blocks, BLOCK] weights, and the running sums [rows, blocks] of whole blocks in float64."""
    missing = -weights.shape[1] % BLOCK
    blocks = (nn.functional.pad(weights, (0, missing)) if missing else weights).view(len(weights), -1, BLOCK)
    return blocks, blocks.sum(-1).double().cumsum(-1)


def _invert(blocks: Tensor, ends: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulative weight exceeds ``uniform`` times the total: first its block, then the token.

    Two levels read the vocabulary once. Running sums are float64: at V = 150,000 one in float32 is off by more than
    rare tokens weigh. A token of weight 0 is never drawn.
    """
    target = (uniform.clamp(max=BELOW_ONE) * ends[:, -1]).unsqueeze(-1)
    block = torch.searchsorted(ends, target, right=True).clamp(max=ends.shape[1] - 1)  # beyond the end only by NaN
    end = ends.gather(1, block)
    start = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block.squeeze(-1)].double().cumsum(-1)
    share = ((target - start) / (end - start)).clamp(max=BELOW_ONE)  # its own sum may differ in the last digits
    place = torch.searchsorted(inside, share * inside[:, -1:], right=True).clamp(max=BLOCK - 1)
    return (block * BLOCK + place).squeeze(-1)


def _truncate(probabilities: Tensor, sampling: SamplingParams) -> Tensor:
    if sampling.top_k > 0:
        kept = probabilities.topk(min(sampling.top_k, probabilities.shape[-1]), dim=-1).values[:, -1:]
        probabilities = torch.where(probabilities >= kept, probabilities, 0.0)
    if sampling.top_p < 1.0:
        ordered, index = probabilities.sort(dim=-1, descending=True)
        outside = ordered.cumsum(dim=-1) - ordered > sampling.top_p * ordered.sum(dim=-1, keepdim=True)
        probabilities = torch.zeros_like(probabilities).scatter(-1, index, ordered.masked_fill(outside, 0.0))
    return probabilities


def has_ended(policy: Policy, last: Tensor, sampling: SamplingParams, newest: Newest, going: Tensor) -> Tensor:
    """[rows] bool: the last token is a stop token, or the text so far contains a stop string.

    Args:
        policy: knows the tokenizer.
        last: [rows] the newest tokens.
        sampling: the stops.
        newest: the tokens of some rows; only called where they are needed.
        going: [rows] bool, the rows whose texts are looked at: one that has ended stays as it is.
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
    """A :class:`Rollout` on the CPU from what was sampled; every token of it was the policy's choice."""
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
    """What there is of a response that never had its turn: no token."""
    none = torch.zeros(0)
    return Rollout(row.prompt, row.sample, none.long(), none, none.bool(), FinishReason.CUT, version)
