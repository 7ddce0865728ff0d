"""Sample a policy's answers to a suite's problems, with random draws fixed by problem and answer number."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.thinking import unfinished_thought
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams, SystemPrompt
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws
from gspo_lightning.rollouts.recording.records import of_conversation
from gspo_lightning.rollouts.source import ResponsePrefix, RolloutSource
from gspo_lightning.rollouts.verify import verify_decoding
from gspo_lightning.rollouts.wrapping import WrappingSource
from gspo_lightning.training.suites.problems import Problem
from gspo_lightning.training.suites.suite import Suite
from gspo_lightning.training.suites.verdicts import Answer

log = logging.getLogger(__name__)

ROWS = 256
"""Answers sampled per batch: the most that an interruption loses."""
SampleRequests = Sequence[tuple[Problem, Sequence[int]]]
"""Every problem of the suite, with the numbers of the answers to sample; may be empty for some."""


def answers_of(
    policy: Policy,
    source: RolloutSource,
    suite: Suite,
    wanted: SampleRequests,
    *,
    system_prompt: SystemPrompt | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    version: int = 0,
) -> Iterator[Answer]:
    """Yield answers one after another.

    Random draws depend on the suite's seed, the problem's place and the answer's number: not on which others are
    sampled, nor on how many ranks share the problems. An agent or environment has its conversation about each problem;
    those that fail have no answer.

    Args:
        policy: the weights, in eval mode, gathered on this rank.
        source: rollout source that supports :meth:`RolloutSource.extend`, or has conversations.
        suite: sampling settings and system prompt.
        wanted: answers to sample.
        system_prompt: for a suite without one.
        chat_template_kwargs: for every prompt.
        context: entered around each piece of sampling (autocast).
        version: of the weights, for sources that keep their own copy.

    Raises:
        UserError: a prompt that the model cannot read or has no room to answer, or a source that cannot extend;
            a system prompt of the suite, for a source that has conversations.
    """
    if suite.system_prompt and isinstance(source, WrappingSource):
        reason = f"is not seen by {type(source).__name__}, which writes messages itself"
        raise UserError(f"suite {suite.name}: system_prompt", reason, fix="leave it out, or let the agent send it")
    prompts = encode_prompts(
        [{"prompt": problem.prompt} for problem, _ in wanted],
        policy.tokenizer,
        max_prompt_tokens=1 << 40,
        system_prompt=suite.system_prompt or system_prompt,
        chat_template_kwargs=chat_template_kwargs or {},
        field=f"suite {suite.name}",
    )
    longest = max(len(prompt.token_ids) for prompt in prompts)
    sampling = _sampling(policy, suite, longest)
    source.open(longest + sampling.max_response_tokens)
    verify_decoding(
        policy,
        source,
        temperature=sampling.temperature or 1.0,
        longest=longest + sampling.max_response_tokens,
        context=context,
    )
    draws = Draws.of(suite.sampling.seed, Purpose.EVAL_SAMPLING, 0)
    with torch.no_grad(), context():
        source.sync_weights(policy, version)
    if isinstance(source, WrappingSource):
        yield from _conversations(policy, source, suite, prompts, wanted, sampling, draws, context, version)
        return
    rows = _rows(prompts, wanted, sampling.max_response_tokens)
    for first in range(0, len(rows), ROWS):
        with torch.no_grad(), context():
            batch = rows[first : first + ROWS]
            rollouts = source.extend(policy, batch, sampling=sampling, draws=draws, version=version)
        for rollout in rollouts:
            problem, _ = wanted[rollout.prompt.id]
            yield _answer(problem.id, rollout, policy)


def _conversations(
    policy: Policy,
    source: WrappingSource,
    suite: Suite,
    prompts: Sequence[Prompt],
    wanted: SampleRequests,
    sampling: SamplingParams,
    draws: Draws,
    context: Callable[[], AbstractContextManager[Any]],
    version: int,
) -> Iterator[Answer]:
    """Yield the wanted answers of whole groups of conversations: a source has them by group only."""
    requests = []
    for place, (prompt, (problem, samples)) in enumerate(zip(prompts, wanted, strict=True)):
        if samples:
            requests.append((Prompt(place, problem.prompt, prompt.token_ids, problem.told), {*samples}))
    batch_size = max(1, ROWS // suite.samples)
    for first in range(0, len(requests), batch_size):
        batch = requests[first : first + batch_size]
        with torch.no_grad(), context():
            groups = source.generate(
                policy,
                [prompt for prompt, _ in batch],
                group_size=suite.samples,
                sampling=sampling,
                draws=draws,
                version=version,
            )
        for group, (prompt, numbers) in zip(groups, batch, strict=True):
            problem, _ = wanted[prompt.id]
            rollouts = [rollout for rollout in group if rollout.sample in numbers]
            reasons = [rollout.lost for rollout in rollouts if rollout.lost]
            if reasons:
                log.warning("%s: %d answers are missing; the first: %s", suite.name, len(reasons), reasons[0])
            for rollout in rollouts:
                if not rollout.lost:
                    yield _answer(problem.id, rollout, policy)


def _rows(prompts: Sequence[Prompt], wanted: SampleRequests, token_budget: int) -> list[ResponsePrefix]:
    """Return one row for each missing answer; a prompt's id is its place in the suite."""
    rows = []
    for place, (prompt, (_, samples)) in enumerate(zip(prompts, wanted, strict=True)):
        of_suite = Prompt(place, prompt.text, prompt.token_ids)
        rows += [ResponsePrefix(of_suite, sample, prompt.token_ids, 0, token_budget) for sample in sorted(samples)]
    return rows


def _sampling(policy: Policy, suite: Suite, longest: int) -> SamplingParams:
    """Return the suite's sampling settings, with the length limited by the model's positions."""
    settings = suite.sampling
    positions = int(getattr(policy.model.config.get_text_config(), "max_position_embeddings", 0) or 1 << 40)
    token_budget = positions - longest
    if token_budget < 1:
        raise UserError(f"suite {suite.name}", f"its longest prompt has {longest} tokens, more than the model takes")
    if token_budget < settings.max_response_tokens:
        log.warning(
            "%s: answers end at %d tokens, not at %d: the model has no more positions behind the longest prompt",
            suite.name, token_budget, settings.max_response_tokens,
        )  # fmt: skip
    return SamplingParams(
        min(token_budget, settings.max_response_tokens),
        settings.temperature,
        settings.top_p,
        settings.top_k,
        stop_token_ids=policy.eos_token_ids,
    )


def _answer(identifier: str, rollout: Rollout, policy: Policy) -> Answer:
    return Answer(
        identifier,
        rollout.sample,
        rollout.text,
        rollout.length,
        rollout.truncated,
        of_conversation(rollout),
        unfinished_thought(policy.tokenizer, rollout),
    )
