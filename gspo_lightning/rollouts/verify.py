"""Startup check of decoding: compare log-probabilities of sampled tokens with those of the training forward.

The check does not depend on a model's name. An ignored cache, a state polluted by padding or a window off by
one gives the drawn tokens other log-probabilities than a forward pass over the whole row.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.policy.kernels.rounding import OPERATIONS as ROUNDINGS
from gspo_lightning.policy.kernels.rounding import nudged
from gspo_lightning.policy.model_checks.row_isolation import context_thresholds
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.packing.memory import is_out_of_memory
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.unsaid import sayable_tokens
from gspo_lightning.rollouts.drawing import Draws
from gspo_lightning.rollouts.sampler.decoding import unit_in_last_place
from gspo_lightning.rollouts.sampler.sampler import GroupedSampler
from gspo_lightning.rollouts.source import ResponsePrefix, RolloutSource

log = logging.getLogger(__name__)

PROMPTS = (3, 8)
"""Prompt lengths in tokens, below and above the width of most convolutions."""
ROOM = (3, 8)
"""Response lengths in tokens: some rows leave the batch while others continue."""
LARGEST = 1e-3
"""Limit in nats per token in float32 at temperatures from 1 on; the largest difference in 60 families is 5e-5.

Below 1 it grows as differences do, by 1/temperature, and at any temperature by what rounding does to the model itself.
"""
BEFORE = 24
"""Tokens at the end of a prompt on which the training forward is compared, too."""
MEAN = 0.1
"""The same limit averaged over tokens, in half precision, where single tokens say little."""
OPERATIONS = {True: 1e12, False: 1e15}
"""Multiply-adds allowed for rows beyond a context threshold, on a CPU and elsewhere; about seconds."""
SQUARE = 8192
"""Limit of the row length in tokens: some families keep a quadratic matrix in memory."""

Way = Literal["shared", "padded", "generate"]
SAID: dict[Way | None, str] = {
    "shared": "prompts shared",
    "padded": "rows padded",
    "generate": "transformers' generate",
    None: "its decoder",
}


@dataclass(frozen=True, slots=True)
class _Gap:
    """Difference between two sets of log-probabilities of the same tokens, in nats."""

    largest: float
    mean: float

    @classmethod
    def between(cls, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> _Gap:
        off = (torch.cat(list(ours)) - torch.cat(list(theirs))).abs()
        return cls(float(off.max()), float(off.mean()))

    def size(self, exact: bool) -> float:
        """Return the difference to compare with a limit: of a token, or on average in half precision."""
        return self.largest if exact else self.mean

    def within(self, limit: float, exact: bool) -> bool:
        """Return True if rounding explains the difference; NaN gives False."""
        return self.size(exact) <= limit

    def said(self, exact: bool) -> str:
        return f"{self.largest:.2g} nats" if exact else f"{self.mean:.2g} nats on average"


def verify_decoding(
    policy: Policy,
    source: RolloutSource,
    *,
    temperature: float,
    longest: int,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Decode a few tokens with a source, and compare their log-probabilities with those of whole rows.

    Runs once per kind of source and policy. Sets ``policy.decoding.way`` to the first decoder with equal results, and
    warns if that is not the fast one. Every rank runs the same number of forward passes, and no collectives.

    Args:
        policy: the weights, gathered on this rank.
        source: rollout source; one that decodes elsewhere is skipped (:meth:`RolloutSource.local`).
        temperature: temperature of training rollouts.
        longest: tokens of the longest row, prompt and response, that the run may see; lengths beyond the model's
            windows are checked if rows reach them.
        context: context manager of rollouts. If it rounds (autocast), decoding is checked once more under it.

    Raises:
        UserError: rows of several lengths, or decoding, give other log-probabilities than single whole rows.
    """
    local = source.local()
    if local is None or (kind := type(local).__name__) in policy.decoding.verified:
        return
    with _quiet(policy):
        rows = _rows(policy, longest)
        short = rows[: len(PROMPTS) * len(ROOM)]
        enough = True
        for part in (rows, short)[len(rows) == len(short) :]:
            try:
                _choose(policy, local, part, temperature, nullcontext)
                enough = True
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                policy.decoding.way, enough = None, False
                log.warning("out of memory: decoding of rows of %s tokens is not verified", _lengths(part))
        with context():
            rounds = torch.is_autocast_enabled(policy.device.type)
        if rounds and enough:
            _choose(policy, local, short, temperature, context)
    policy.decoding.verified.add(kind)


def _choose(
    policy: Policy,
    source: RolloutSource,
    rows: Sequence[ResponsePrefix],
    temperature: float,
    context: Callable[[], AbstractContextManager[Any]],
) -> None:
    ways: tuple[Way | None, ...] = (None,)
    if isinstance(source, GroupedSampler):
        ways = ("shared", "padded", "generate") if policy.packed else ("padded", "generate")
        ways = ("shared",) if policy.batch_invariant else ways
        if policy.decoding.way in ways:  # the earlier ones are ruled out
            ways = ways[ways.index(policy.decoding.way) :]
    failed: list[str] = []
    for way in ways:
        policy.decoding.way = way
        with context():
            reason = _why_not(policy, source, rows, temperature)
        if reason is None:
            if failed:
                log.warning("responses of %s are decoded by %s: %s", _name(policy), SAID[way], "; ".join(failed))
            return
        failed.append(f"{SAID[way]}: {reason}")
    raise UserError(
        "model.name_or_path",
        f"tokens of {_name(policy)} cannot be sampled one by one as they are trained: {'; '.join(failed)}",
        fix="use another model family, or a rollout source that decodes by other code (VLLMServer)",
    )


def _why_not(policy: Policy, source: RolloutSource, rows: Sequence[ResponsePrefix], temperature: float) -> str | None:
    """Return the difference or error of the source's samples, or None if they are correct.

    Raises:
        UserError: the training forward itself is wrong.
    """
    exact = _is_exact(policy)
    try:
        found = source.extend(
            policy,
            rows,
            sampling=SamplingParams(max(ROOM), temperature),
            draws=Draws.of(0, Purpose.TRAIN_SAMPLING, 0),
        )
    except Exception as error:  # any kind: a model's own code, on a path that may be untested
        if isinstance(error, UserError) or is_out_of_memory(error):
            raise
        return f"{type(error).__name__}: {first_line(error)}"
    rows_of = [_with_prompt(rollout) for rollout in found]
    alone = [_alone(policy, rollout, temperature) for rollout in rows_of]
    together = _together(policy, rows_of, temperature)
    limit = (LARGEST if exact else MEAN) / min(1.0, temperature or 1.0)
    limit += ROUNDINGS * _rounding(policy, rows_of, alone, temperature).size(exact)
    if not (gap := _Gap.between(together, alone)).within(limit, exact):
        raise UserError(
            "model.name_or_path",
            f"{_name(policy)} gives different log-probabilities to rows computed together than to each row alone: "
            f"{gap.said(exact)} in rows of {_lengths(found)} tokens",
            fix="use another model family, or shorter rows where that is beyond a window or an index of this one",
        )
    sampled = [r.logprobs for r in found if r.logprobs is not None]
    if policy.batch_invariant:
        _check_bits(found, sampled, together)
    ends = [row[-r.length :] for row, r in zip(alone, found, strict=True)]
    if (off := _Gap.between(sampled, ends)).within(limit, exact):
        return None
    return (
        f"off by {off.said(exact)} from whole rows of {_lengths(found)} tokens, where training is by {gap.said(exact)}"
    )


def _check_bits(found: Sequence[Rollout], sampled: Sequence[Tensor], whole: Sequence[Tensor]) -> None:
    """Refuse samples of a batch-invariant policy that differ from the training forward in any bit."""
    ends = torch.cat([row[-r.length :] for row, r in zip(whole, found, strict=True)])
    if count := int((torch.cat(list(sampled)) != ends).sum()):
        raise UserError(
            "model.batch_invariant",
            f"is true, but {count} of {len(ends)} sampled tokens have other log-probabilities than in training, in the "
            "last bits: kernels of this machine depend on the batch in an unknown way",
            fix="use batch_invariant: false, and report this with the machine's processor and number of threads",
        )


def _with_prompt(rollout: Rollout) -> Rollout:
    """Return the same row with the last tokens of the prompt counted as response."""
    ids = rollout.prompt.token_ids
    cut = max(1, len(ids) - BEFORE)
    tokens = torch.cat([torch.tensor(ids[cut:], dtype=torch.int64), rollout.token_ids])
    mask = torch.ones(len(tokens), dtype=torch.bool)
    prompt = dataclasses.replace(rollout.prompt, token_ids=ids[:cut])
    return dataclasses.replace(
        rollout, prompt=prompt, token_ids=tokens, logprobs=torch.zeros(len(tokens)), response_mask=mask, reward=0.0
    )


@torch.no_grad()
def _alone(policy: Policy, rollout: Rollout, temperature: float) -> Tensor:
    """Return log-probabilities [n] of the response tokens, from one forward pass over the whole row alone."""
    prompt = len(rollout.prompt.token_ids)
    ids = torch.cat([torch.tensor(rollout.prompt.token_ids), rollout.token_ids]).to(policy.device)
    hidden = policy.backbone(input_ids=ids[:-1].unsqueeze(0), use_cache=False).last_hidden_state[0, prompt - 1 :]
    scores = (policy.head(hidden).float() / temperature).log_softmax(-1)
    return scores.gather(1, ids[prompt:].unsqueeze(1)).squeeze(1).cpu()


def _rounding(policy: Policy, rollouts: Sequence[Rollout], alone: Sequence[Tensor], temperature: float) -> _Gap:
    """Return how far one rounding of the embeddings moves the log-probabilities of the shortest rows."""
    few = min(len(rollouts), len(PROMPTS) * len(ROOM))
    with nudged(policy.model, unit_in_last_place(policy)):
        moved = [_alone(policy, rollout, temperature) for rollout in rollouts[:few]]
    return _Gap.between(moved, alone[:few])


@torch.no_grad()
def _together(policy: Policy, rollouts: Sequence[Rollout], temperature: float) -> list[Tensor]:
    """Return the same log-probabilities from the forward used in training, short rows beside long ones."""
    logprobs, _ = policy(make_micro_batch(rollouts).to(policy.device), temperature)
    return [row[: r.length].float().cpu() for row, r in zip(logprobs, rollouts, strict=True)]


def _rows(policy: Policy, longest: int) -> list[ResponsePrefix]:
    """Return two prompts of different lengths with two responses each, and more around every reachable threshold."""
    config = policy.model.config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "n_ctx")
    limits = [limit for name in names if isinstance(limit := getattr(config, name, None), int) and limit > 0]
    top = min([longest, *limits]) - max(ROOM)
    widths = list(PROMPTS)
    for threshold in context_thresholds(policy):
        if threshold >= top:
            continue
        beyond = min(top, 2 * threshold)  # far enough that most earlier tokens are outside the window
        if _affordable(policy, beyond):
            widths += [max(1, threshold - 2), beyond]  # crosses it during decoding, and in the prompt
        else:
            log.info("%s: decoding beyond its %d tokens is not verified, it would take long", _name(policy), threshold)
    vocabulary = config.vocab_size
    prompts = []
    for i, width in enumerate(widths):
        numbers = 7 * torch.arange(max(1, min(width, top))) + 3 * i + 1
        prompts.append(Prompt(i, "", tuple(sayable_tokens(numbers, vocabulary, policy.unsaid).tolist())))
    return [ResponsePrefix(p, k, p.token_ids, 0, token_budget) for p in prompts for k, token_budget in enumerate(ROOM)]


def _affordable(policy: Policy, width: int) -> bool:
    size = sum(p.numel() for p in policy.parameters())
    passes = 16  # prefills, rows alone and rows together; short rows are padded to long ones
    return width <= SQUARE and 2.0 * size * width * passes <= OPERATIONS[policy.device.type == "cpu"]


@contextmanager
def _quiet(policy: Policy) -> Iterator[None]:
    """Switch to eval mode without route recording, and restore both afterwards."""
    training, routing = policy.training, policy.routing
    policy.eval()
    policy.routing = None
    try:
        yield
    finally:
        policy.routing = routing
        policy.train(training)


def _is_exact(policy: Policy) -> bool:
    device = policy.device.type
    if torch.is_autocast_enabled(device) or (device == "cuda" and torch.get_float32_matmul_precision() != "highest"):
        return False
    return next(policy.parameters()).dtype in (torch.float32, torch.float64)


def _lengths(rows: Sequence[Rollout] | Sequence[ResponsePrefix]) -> str:
    lengths = [len(r.prompt.token_ids) + (r.token_budget if isinstance(r, ResponsePrefix) else r.length) for r in rows]
    return f"{min(lengths)} to {max(lengths)}"


def _name(policy: Policy) -> str:
    return type(policy.model).__name__
