"""Partial rollouts: an iteration trains on complete groups only and does not wait for the longest responses.

More prompts are sampled than an iteration needs. As soon as enough groups are complete, all other responses are cut
where they are. They continue first in the next iteration, with its weights; each token keeps the log-probability of the
weights that sampled it (Kimi k1.5, arXiv 2501.12599, section 2.6.2). Old log-probabilities that are recomputed are of
the same versions: without them, an engine's errors and staleness cannot be told apart (arXiv 2605.12070).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.core.signatures import called_with
from gspo_lightning.core.thinking import decode_response
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, WeightsOn
from gspo_lightning.loop.experience.retrying import RetryingSource
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.ending import cut
from gspo_lightning.rollouts.source import GenerationRequest, OnGroup, ResponsePrefix, RolloutSource


@dataclass(slots=True)
class _Group:
    """A prompt, its G responses so far, and the number of rollouts it has been carried through."""

    prompt: Prompt
    responses: list[Rollout]
    carried: int = 0

    @property
    def open(self) -> list[Rollout]:
        return [r for r in self.responses if r.finish_reason is FinishReason.CUT]


class PartialRollouts:
    """Wrapper of a source that keeps the responses that were cut and continues them in the next call.

    Args:
        source: samples.
        order: place in the training order -> prompt.
        in_flight: prompts that are sampled at the same time.
        groups: complete groups that a call returns.
        max_carry: calls through which a group may be carried; the next call waits for it. Bounds the age of a token.
    """

    on_group: OnGroup | None = None
    """Never called: which complete groups are returned is known only at the end."""

    def __init__(
        self,
        source: RolloutSource | RetryingSource,
        order: Callable[[int], Prompt],
        *,
        in_flight: int,
        groups: int,
        max_carry: int,
    ) -> None:
        self.source = source
        self.order = order
        self.wanted = in_flight
        self.groups = groups
        self.max_carry = max_carry
        self.in_flight: list[_Group] = []
        self.place = 0
        """Prompts of the training order that have joined, or were skipped because they were in flight."""

    @called_with(GenerationRequest)
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        """Return ``groups`` complete groups, the longest-waiting first; state is unchanged if it raises.

        ``prompts`` are not used: they come from the training order.
        """
        fresh, place = self._fresh()
        pool = list(self.in_flight)
        for prompt in fresh:
            responses = [_nothing(prompt, sample, request.version) for sample in range(request.group_size)]
            pool.append(_Group(prompt, responses))
        open_responses = [response for group in pool for response in group.open]
        group_of = [number for number, group in enumerate(pool) for _ in group.open]
        total = sum(len(group.responses) for group in pool)

        def enough(ended: Collection[int]) -> bool:
            running = set(range(len(open_responses))) - set(ended)
            unfinished = {group_of[index] for index in running}
            if request.progress is not None:
                request.progress(total - len(running), total)
            waited_for = any(pool[number].carried >= self.max_carry for number in unfinished)
            return not waited_for and len(pool) - len(unfinished) >= self.groups

        if not enough(()):
            limit = request.sampling.max_response_tokens
            pieces = self.source.extend(
                request.policy,
                [_prefix(response, response.prompt.token_budget(limit)) for response in open_responses],
                sampling=request.sampling,
                draws=request.draws,
                version=request.version,
                enough=enough,
            )
            grown = {}
            for response, piece in zip(open_responses, pieces, strict=True):
                grown[id(response)] = _grown(response, piece, request.policy)
            pool = [_Group(group.prompt, _one_prompt(group, grown), group.carried) for group in pool]
        complete = [number for number, group in enumerate(pool) if not group.open]
        taken = complete[: self.groups]
        self.in_flight = [
            _Group(group.prompt, group.responses, group.carried + 1)
            for number, group in enumerate(pool)
            if number not in taken
        ]
        self.place = place
        return [pool[number].responses for number in taken]

    def _fresh(self) -> tuple[list[Prompt], int]:
        """Return the next prompts, as many as are missing in flight, and the place after them."""
        busy = {group.prompt.id for group in self.in_flight}
        place = self.place
        fresh: list[Prompt] = []
        while len(busy) < self.wanted:
            prompt = self.order(place)
            place += 1
            if prompt.id not in busy:
                busy.add(prompt.id)
                fresh.append(prompt)
        return fresh, place

    @torch.no_grad()
    def recompute(self, policy: Policy, temperature: float, version: int, max_tokens: int) -> None:
        """Replace the sampler's log-probabilities by the trainer's own, for tokens of this version.

        Responses carried over will be trained on later, and the weights that sampled them are only sure to exist now. A
        response continued under other weights has several such pieces, each with its own log-probabilities.

        Args:
            policy: the weights that sampled in this iteration, not necessarily those being trained.
            temperature: sampling temperature of the rollouts.
            version: version of the tokens of this iteration.
            max_tokens: tokens per forward pass, padding included.
        """
        responses = [
            response
            for group in self.in_flight
            for response in group.responses
            if response.policy_version == version and len(response.token_ids)
        ]
        responses.sort(key=_row_length, reverse=True)  # so the first of a batch sets its width
        while responses:
            count = max(1, max_tokens // _row_length(responses[0]))
            batch = responses[:count]
            responses = responses[count:]
            logprobs_NT = policy(make_micro_batch(batch).to(policy.device), temperature)[0].to("cpu", torch.float32)
            for response, logprobs in zip(batch, logprobs_NT, strict=True):
                assert response.versions is not None
                assert response.logprobs is not None
                of_version = response.versions == version
                response.logprobs = torch.where(of_version, logprobs[: len(of_version)], response.logprobs)

    @property
    def weights_on(self) -> WeightsOn:
        """Ranks that hold the weights: those of the source."""
        return self.source.weights_on

    def sync_weights(self, policy: Policy, version: int) -> None:
        """Send new weights to the source."""
        self.source.sync_weights(policy, version)

    @property
    def updates_in_flight(self) -> bool:
        """False: a source that cuts responses takes no weights in flight."""
        return False

    def update_weights_in_flight(self, policy: Policy, version: int) -> None:
        """Do nothing: responses are cut, and an iteration samples with its own weights only."""

    def sleep(self) -> None:
        """Release the source's memory for training."""
        self.source.sleep()

    def measured(self) -> dict[str, float]:
        """Return the source's measurements since the last call."""
        return self.source.measured()

    @property
    def open_responses(self) -> int:
        """Number of responses that were cut and will continue."""
        return sum(len(group.open) for group in self.in_flight)

    def state_dict(self) -> dict[str, Any]:
        """Return the carried groups as tensors and primitives only."""
        groups = [
            {"prompt": g.prompt.id, "carried": g.carried, "responses": [_state(r) for r in g.responses]}
            for g in self.in_flight
        ]
        return {"place": self.place, "groups": groups}

    def load_state_dict(self, state: Mapping[str, Any], prompt_of: Callable[[int], Prompt]) -> None:
        """Restore :meth:`state_dict`; ``prompt_of`` finds a prompt by its id."""
        self.place = int(state["place"])
        self.in_flight = []
        for group in state["groups"]:
            prompt = prompt_of(group["prompt"])
            responses = []
            for fields in group["responses"]:
                finish_reason = FinishReason(fields["finish_reason"])
                responses.append(Rollout(prompt=prompt, **(fields | {"finish_reason": finish_reason})))
            self.in_flight.append(_Group(prompt, responses, int(group["carried"])))


def _row_length(response: Rollout) -> int:
    return len(response.prompt.token_ids) + len(response.token_ids)


def _state(response: Rollout) -> dict[str, Any]:
    names = ("sample", "token_ids", "logprobs", "response_mask", "policy_version", "text", "versions", "routes")
    return {name: getattr(response, name) for name in names} | {"finish_reason": str(response.finish_reason)}


def _nothing(prompt: Prompt, sample: int, version: int) -> Rollout:
    whole = ResponsePrefix(prompt, sample, prompt.token_ids, drawn=0, token_budget=1)
    return replace(cut(whole, version), versions=torch.zeros(0, dtype=torch.int64))


def _prefix(response: Rollout, limit: int) -> ResponsePrefix:
    written = tuple(response.token_ids.tolist())
    prompt = response.prompt
    return ResponsePrefix(
        prompt, response.sample, (*prompt.token_ids, *written), len(written), limit - len(written), written
    )


def _grown(response: Rollout, piece: Rollout, policy: Policy) -> Rollout:
    """Append a piece to a response."""
    if not len(piece.token_ids):
        return response
    assert response.versions is not None
    assert response.logprobs is not None
    if piece.logprobs is None:
        raise ValueError("partial rollouts need a source that reports log-probabilities")
    ids = torch.cat([response.token_ids, piece.token_ids])
    ages: Tensor = torch.full_like(piece.token_ids, piece.policy_version)
    return Rollout(
        prompt=response.prompt,
        sample=response.sample,
        token_ids=ids,
        logprobs=torch.cat([response.logprobs, piece.logprobs]),
        response_mask=torch.ones(len(ids), dtype=torch.bool),
        finish_reason=piece.finish_reason,
        policy_version=piece.policy_version,
        text=decode_response(policy.tokenizer, ids.tolist()),
        versions=torch.cat([response.versions, ages]),
        routes=_routes(response, piece),
    )


def _routes(response: Rollout, piece: Rollout) -> Tensor | None:
    """Concatenate the experts of both pieces, each as its own weights chose them.

    The last token of the first piece was not forwarded then; its experts come with the second piece.
    """
    if piece.routes is None or not len(response.token_ids):
        return piece.routes
    return None if response.routes is None else torch.cat([response.routes, piece.routes[len(response.routes) :]])


def _one_prompt(group: _Group, grown: Mapping[int, Rollout]) -> list[Rollout]:
    """Return the responses after a call, all with the prompt experts of the first response that has any.

    One forward pass of the prompt serves all of them in training.
    """
    responses = [grown.get(id(response), response) for response in group.responses]
    prompt_tokens = len(group.prompt.token_ids)
    all_routes = [response.routes for response in (*group.responses, *responses) if response.routes is not None]
    for routes in all_routes:
        routes[:prompt_tokens] = all_routes[0][:prompt_tokens]
    return responses
