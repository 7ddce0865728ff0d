"""Rollouts through transformers' own ``generate``: slower, for models that the grouped sampler does not support."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from typing_extensions import override

from gspo_lightning.core.signatures import called_with
from gspo_lightning.core.types import FinishReason, Rollout, SamplingParams
from gspo_lightning.policy.attention.rope import never_switching
from gspo_lightning.policy.numerics.autocast_weights import in_compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.image_processor import Features
from gspo_lightning.rollouts.drawing import Draws, sample_tokens
from gspo_lightning.rollouts.ending import cut, finish, has_ended
from gspo_lightning.rollouts.source import ContinuationRequest, GenerationRequest, ResponsePrefix, RolloutSource


class TransformersGenerate(RolloutSource):
    """Responses from ``model.generate`` with this package's draws: in float32 the same tokens as the grouped sampler.

    Args:
        batch_size: responses generated at the same time.
    """

    reads_pictures = True

    def __init__(self, batch_size: int = 256) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size

    @override
    @called_with(GenerationRequest)
    @torch.no_grad()
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        rows = request.prefixes
        done: list[Rollout] = []
        with in_compute_dtype(request.policy) as cast:
            for start in range(0, len(rows), self.batch_size):
                done += self._batch(cast, request.begin(rows[start : start + self.batch_size]))
                if request.progress is not None:
                    request.progress(len(done), len(rows))
        return [done[i * request.group_size : (i + 1) * request.group_size] for i in range(len(request.prompts))]

    @called_with(ContinuationRequest)
    @torch.no_grad()
    def extend(self, request: ContinuationRequest) -> list[Rollout]:
        """Continue responses; ``enough`` is checked between batches."""
        rows = request.beginnings
        done: list[Rollout] = []
        with in_compute_dtype(request.policy) as cast:
            for start in range(0, len(rows), self.batch_size):
                if request.enough is not None and request.enough(range(len(done))):
                    break
                done += self._batch(cast, replace(request, beginnings=rows[start : start + self.batch_size]))
        return done + [cut(row, request.version) for row in rows[len(done) :]]

    @override
    def local(self) -> TransformersGenerate:
        return self

    @staticmethod
    def _batch(policy: Policy, request: ContinuationRequest) -> list[Rollout]:
        """Complete all responses of a request with a policy in the compute dtype."""
        rows = request.beginnings
        width = max(len(row.context) for row in rows)
        ids = torch.tensor([[0] * (width - len(row.context)) + list(row.context) for row in rows])
        mask = torch.tensor([[0] * (width - len(row.context)) + [1] * len(row.context) for row in rows])
        chooser = _Choose(policy, rows, request.sampling, request.draws, width)
        stopper = _Stop(policy, request.sampling, width, rows)
        config = GenerationConfig(
            max_new_tokens=max(row.token_budget for row in rows),
            do_sample=False,
            pad_token_id=policy.tokenizer.pad_token_id,
        )
        with _no_generation_config(policy.model), never_switching(policy.model):
            out = policy.model.generate(
                input_ids=ids.to(policy.device),
                attention_mask=mask.to(policy.device),
                generation_config=config,
                logits_processor=LogitsProcessorList([chooser]),
                stopping_criteria=StoppingCriteriaList([stopper]),
                **_pictures(policy, rows, ids),
            )[:, width:].cpu()
        logprobs = torch.stack(chooser.logprobs, dim=1)
        counts = stopper.counts.tolist()
        reasons = [FinishReason.STOP if stopped else FinishReason.LENGTH for stopped in stopper.stopped.tolist()]
        return [
            finish(
                row.prompt, row.sample, out[i, : counts[i]], logprobs[i, : counts[i]],
                reason=reasons[i], version=request.version, policy=policy,
            )
            for i, row in enumerate(rows)
        ]  # fmt: skip


def _pictures(policy: Policy, rows: Sequence[ResponsePrefix], ids: Tensor) -> dict[str, Any]:
    """Return the picture arguments of ``generate``; features are computed once per distinct picture."""
    if policy.image_processor is None or not any(row.prompt.media for row in rows):
        return {}
    every = [picture for row in rows for picture in row.prompt.media]
    distinct = {picture.key: picture for picture in every}
    found = policy.image_processor.features(policy.model.base_model, list(distinct.values()))
    sizes = [picture.tokens for picture in distinct.values()]
    parts = zip(found.embeddings.split(sizes), *(layer.split(sizes) for layer in found.layers), strict=True)
    features = {key: Features(own, tuple(layers)) for key, (own, *layers) in zip(distinct, parts, strict=True)}
    given = policy.image_processor.generated(every, [features[picture.key] for picture in every], ids)
    return {name: x.to(policy.device) if isinstance(x, Tensor) else x for name, x in given.items()}


@contextlib.contextmanager
def _no_generation_config(model: PreTrainedModel) -> Iterator[None]:
    """Hide the model's own generation config.

    ``generate`` fills every unset field from it, and its penalties, beams or end tokens would change the policy.
    """
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


class _Choose(LogitsProcessor):
    """Logits processor that draws the token itself and forces it on ``generate``: all other tokens get -inf."""

    def __init__(
        self, policy: Policy, rows: Sequence[ResponsePrefix], sampling: SamplingParams, draws: Draws, width: int
    ) -> None:
        self.policy = policy
        self.prompt_ids = torch.tensor([row.prompt.id for row in rows])
        self.samples = torch.tensor([row.sample for row in rows])
        self.drawn = torch.tensor([row.drawn for row in rows])
        self.sampling, self.draws, self.width = sampling, draws, width
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        uniform = self.draws.uniform(self.prompt_ids, self.samples, self.drawn + input_ids.shape[1] - self.width)
        tokens, logprobs = sample_tokens(self.policy.sayable(scores), uniform, self.sampling)
        self.logprobs.append(logprobs.cpu())
        return torch.full_like(scores, -torch.inf).scatter_(-1, tokens.unsqueeze(-1), 0.0)


class _Stop(StoppingCriteria):
    """Stopping criterion by the rule that every source shares.

    ``counts`` [rows] are the lengths of finished rows, 0 for the others; ``stopped`` [rows] is True where the policy
    ended the row.
    """

    def __init__(self, policy: Policy, sampling: SamplingParams, width: int, rows: Sequence[ResponsePrefix]) -> None:
        self.policy, self.sampling, self.width, self.rows = policy, sampling, width, rows
        self.token_budget = torch.tensor([row.token_budget for row in rows])
        self.counts = torch.zeros(len(rows), dtype=torch.int64)
        self.stopped = torch.zeros(len(rows), dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        responses = input_ids[:, self.width :]  # end conditions ignore the prompt

        def newest(which: Sequence[int], count: int | None) -> list[list[int]]:
            start = 0 if count is None else max(0, responses.shape[1] - count)
            found = ([*self.rows[i].written, *responses[i, start:].tolist()] for i in which)
            return [ids if count is None else ids[-count:] for ids in found]

        going = self.counts == 0
        ended = has_ended(self.policy, responses[:, -1], self.sampling, newest, going.to(responses.device)).cpu()
        self.stopped |= going & ended
        self.counts = torch.where(
            going & (ended | (self.token_budget <= responses.shape[1])), responses.shape[1], self.counts
        )
        return (self.counts > 0).to(input_ids.device)
