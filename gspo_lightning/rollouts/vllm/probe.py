"""End-to-end check of weight sync: compare log-probabilities of a few sampled tokens with the trainer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.qwen import QwenImageProcessor
from gspo_lightning.rollouts.serving.answers import Answer
from gspo_lightning.rollouts.serving.pool import Server
from gspo_lightning.rollouts.source import ResponsePrefix
from gspo_lightning.rollouts.vllm.pictures import completed, shown_to
from gspo_lightning.rollouts.vllm.protocol import parse, request_body

TOKENS = 8
LENGTH = 2 * TOKENS
"""Tokens of prompt and response, without pictures."""
TEMPERATURE = 1.5
"""Temperature other than 1, to detect a server that leaves it out of its log-probabilities."""


class WeightProbe:
    """Fixed prompt whose responses are compared with the policy's log-probabilities.

    Args:
        policy: with the weights that servers should have, or a stream of them.
        tolerance: nats, mean absolute difference; None: 1e-3 in float32, else 0.1.
        dtype: dtype of the servers' weights, if another one than the policy's.
    """

    def __init__(self, policy: Policy, tolerance: float | None, dtype: str | None) -> None:
        self.policy = policy
        self._vocabulary = int(policy.model.config.get_text_config().vocab_size)
        prompt = _prompt(self._vocabulary, shown_to(policy), policy.unsaid)
        self.row = ResponsePrefix(prompt, 0, prompt.token_ids, drawn=0, token_budget=TOKENS)
        """Beginning that is sent."""
        self.sampling = SamplingParams(TOKENS, temperature=TEMPERATURE)
        exact = compute_dtype(policy) == torch.float32 and dtype in (None, "float32")
        self.tolerance = tolerance if tolerance is not None else 1e-3 if exact else 0.1

    @property
    def length(self) -> int:
        """Number of tokens of prompt and response."""
        return len(self.row.context) + TOKENS

    @property
    def request(self) -> dict[str, Any]:
        """Request for one response, without the model's name."""
        return request_body("", self.row, 1, self.sampling, seed=1, unsaid=self.policy.unsaid)

    async def ask(self, server: Server, run: str | None = None) -> Answer:
        """Return a server's response to the probe.

        Raises:
            BadReplyError: it cannot answer by token ids with log-probabilities.
            UserError: it reads pictures in another way than the trainer.
        """
        body = self.request | {"model": server.model}
        media, image_processor = self.row.prompt.media, shown_to(self.policy)
        reply = await completed(server.client, body, media, image_processor, versions=run is not None)
        return parse(reply, body, self._vocabulary, run=run)[0]

    @torch.no_grad()
    def check(self, urls: Sequence[str], answers: Sequence[Answer]) -> float:
        """Return the largest of the mean absolute differences, in nats; ``urls`` name the sources of the answers.

        Raises:
            UserError: it is above the tolerance.
        """
        rows = [self._rollout(i, answer) for i, answer in enumerate(answers)]
        batch = make_micro_batch(rows)
        if self.policy.stream is not None:  # no rank has whole weights: all of them compute
            mine = self.policy.stream.logprobs(batch, TEMPERATURE).float().cpu()
        else:
            mine = self.policy(batch.to(self.policy.device), TEMPERATURE)[0].float().cpu()
        gaps = [float((row.logprobs - m).abs().mean()) for row, m in zip(rows, mine, strict=True)]
        worst = max(gaps)
        if not worst <= self.tolerance:
            raise UserError(
                "data.rollouts",
                f"{urls[gaps.index(worst)]} gives log-probabilities that differ from the trainer's by {worst:.2g} nats "
                f"on average (at most {self.tolerance:g}): another model, or log-probabilities without the temperature"
                + (", or an image processor with other settings" if shown_to(self.policy) is not None else ""),
                fix="serve the trainer's model with --logprobs-mode processed_logprobs; in another dtype than the "
                "trainer's, raise data.rollouts.tolerance",
            )
        return worst

    def _rollout(self, sample: int, answer: Answer) -> Rollout:
        ids = torch.tensor(answer.token_ids)
        mask = torch.ones_like(ids, dtype=torch.bool)
        logprobs = torch.tensor(answer.logprobs, dtype=torch.float32)
        return Rollout(self.row.prompt, sample, ids, logprobs, mask, FinishReason.LENGTH, 0, reward=0.0)


def _prompt(vocabulary: int, image_processor: QwenImageProcessor | None, unsaid: Sequence[int]) -> Prompt:
    """Return a prompt of tokens from the whole vocabulary, preceded by a picture if the policy reads them."""
    step = max(1, vocabulary // TOKENS)
    ids = tuple(i % vocabulary for i in range(step // 2, step * TOKENS, step))
    if image_processor is None:
        return Prompt(0, "", tuple(token for token in ids if token not in unsaid))
    text = [token for token in ids if token not in (*unsaid, image_processor.start, image_processor.end)]
    picture = image_processor.noise(1)
    return Prompt(
        0,
        "",
        (image_processor.start, *[image_processor.image] * picture.tokens, image_processor.end, *text),
        media=(picture,),
    )
