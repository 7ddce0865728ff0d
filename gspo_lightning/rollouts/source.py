"""Interface of rollout sources: the in-process sampler, transformers ``generate`` and inference servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.signatures import accept_fields, called_with
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams, WeightsOn
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.families import FAMILIES
from gspo_lightning.rollouts.drawing import Draws

Progress = Callable[[int, int], None]
"""Progress callback: called with (finished responses, all responses)."""
OnGroup = Callable[[Sequence[Rollout]], None]
Enough = Callable[[Collection[int]], bool]
"""Stop condition: called now and then with the indices of finished responses; True cuts all others where they are."""
LARGEST_LOGPROB = 1e-3
"""Nats: how far above 0 rounding may put a log-probability from a server or a file."""


@dataclass(frozen=True, slots=True)
class ResponsePrefix:
    """A partial or new response to continue: its context and the position of its random numbers.

    ``context`` is everything the policy reads, the prompt and all tokens after it; ``drawn`` counts the tokens drawn
    for this response before, and is the position of the next draw; ``token_budget`` is the number of tokens it may
    still take (at least 1); ``written`` are the policy's last tokens of the same message, in which a stop string
    may have begun.
    """

    prompt: Prompt
    sample: int
    context: tuple[int, ...]
    drawn: int
    token_budget: int
    written: tuple[int, ...] = ()

    @classmethod
    def groups(cls, prompts: Sequence[Prompt], group_size: int, token_budget: int) -> list[ResponsePrefix]:
        """Return ``group_size`` new responses to each prompt, prompt by prompt."""
        return [cls(p, k, p.token_ids, 0, p.token_budget(token_budget)) for p in prompts for k in range(group_size)]


@dataclass(frozen=True, slots=True)
class ContinuationRequest:
    """Request for the rest of partial responses."""

    policy: Policy
    """Weights to sample from, in eval mode, gathered on this rank."""
    beginnings: Sequence[ResponsePrefix]
    """N responses; their ``token_budget`` limits them, not ``sampling.max_response_tokens``."""
    _: KW_ONLY
    sampling: SamplingParams
    """Temperature and stops."""
    draws: Draws
    """Randomness of this call."""
    version: int = 0
    """Optimizer steps behind the weights, recorded as ``policy_version``."""
    enough: Enough | None = None
    """May end the call before all responses are complete."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Request for a group of responses to each prompt."""

    policy: Policy
    """Weights to sample from, in eval mode, gathered on this rank."""
    prompts: Sequence[Prompt] = ()
    """P prompts."""
    _: KW_ONLY
    group_size: int
    """Responses per prompt, G."""
    sampling: SamplingParams
    """Temperature, limits and stops."""
    draws: Draws
    """Randomness of this call."""
    version: int = 0
    """Optimizer steps behind the weights, recorded as ``policy_version``."""
    progress: Progress | None = None
    """Called with (finished responses, all responses)."""

    @property
    def size(self) -> int:
        """Responses to all prompts, P * G."""
        return len(self.prompts) * self.group_size

    @property
    def prefixes(self) -> list[ResponsePrefix]:
        """Responses to begin, prompt by prompt."""
        return ResponsePrefix.groups(self.prompts, self.group_size, self.sampling.max_response_tokens)

    def begin(self, beginnings: Sequence[ResponsePrefix]) -> ContinuationRequest:
        """Return a request for these responses with the weights, sampling and draws of this one."""
        return ContinuationRequest(
            self.policy, beginnings, sampling=self.sampling, draws=self.draws, version=self.version
        )


class Generator(Protocol):
    """Interface through which the training loop asks for groups: a source, or a wrapper of one."""

    on_group: OnGroup | None

    @property
    def weights_on(self) -> WeightsOn:
        """Ranks that hold the weights."""

    @called_with(GenerationRequest)
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        """Generate a group of responses to each prompt."""

    @property
    def updates_in_flight(self) -> bool:
        """True if the source takes new weights in the middle of a call."""

    def sync_weights(self, policy: Policy, version: int) -> None:
        """Make the weights those that are sampled from."""

    def update_weights_in_flight(self, policy: Policy, version: int) -> None:
        """Send new weights in the middle of a call."""

    def sleep(self) -> None:
        """Release memory for training."""

    def measured(self) -> dict[str, float]:
        """Return measurements since the last call."""


class RolloutSource(ABC):
    """Generator of response groups for prompts, token ids in, token ids out.

    Every source keeps one contract (``tests/rollouts/test_contract.py``): groups come back in the order of the prompts,
    each with exactly ``group_size`` rollouts; ids are never re-tokenized; the end token is part of the response; a
    response that is cut at the limit has the finish reason for it.
    """

    on_group: OnGroup | None = None
    """Callback for the G responses to a prompt, called as soon as a group is complete, in any order, for early scoring.

    A source that learns of complete groups only at the end need not call it.
    """

    records_routes: bool = False
    """True if rollouts carry the experts they were sampled with (``Rollout.routes``), for Routing Replay."""

    extends_routes: bool = False
    """True if the pieces of :meth:`extend`, cut ones included, carry them from the first token of the context on."""

    reads_pictures: bool = False
    """True if the source shows the pictures of a prompt to the policy and never samples their placeholders."""

    picture_families: Collection[str] = tuple(FAMILIES)
    """Model types (``model_type``) for which the source supports pictures."""

    keeps_weights: bool = False
    """True if :meth:`generate` samples from what :meth:`sync_weights` sent, and never reads the policy's own weights.

    It can then run in another thread while sharded weights are trained.
    """

    updates_in_flight: bool = False
    """True if the source takes new weights in the middle of a call (:meth:`update_weights_in_flight`)."""

    @property
    def weights_on(self) -> WeightsOn:
        """Ranks that hold the weights of the policies passed to this source.

        The others get a policy without weights (on the meta device): its config, tokenizer and shapes only.
        """
        return WeightsOn.EVERY_RANK

    @abstractmethod
    @called_with(GenerationRequest)
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        """Sample ``group_size`` responses for each prompt.

        It is called with the fields of :class:`GenerationRequest`: ``source.generate(policy, prompts, group_size=8,
        sampling=sampling, draws=draws)``. A source of your own may take the fields as arguments, too.
        """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let ``generate(self, request)`` and ``extend(self, request)`` be called with the fields of the request."""
        super().__init_subclass__(**kwargs)
        accept_fields(cls, "generate", GenerationRequest)
        accept_fields(cls, "extend", ContinuationRequest)

    @called_with(ContinuationRequest)
    def extend(self, request: ContinuationRequest) -> list[Rollout]:
        """Continue partial responses.

        It is called with the fields of :class:`ContinuationRequest`: ``source.extend(policy, beginnings,
        sampling=sampling, draws=draws)``. A source of your own may take the fields as arguments, too.

        The draw of a token depends on the prompt, the sample and ``drawn`` only: a response sampled in two pieces
        equals the response sampled in one.

        Returns:
            One rollout per beginning, in order, with the *new* tokens only. A response cut by ``enough`` has the finish
            reason ``CUT``, and perhaps no token at all. ``routes`` [context + T - 1, L, k], if recorded.

        Raises:
            UserError: this source cannot continue responses.
        """
        raise UserError(
            "data.rollouts",
            f"is {type(self).__name__}, which cannot continue a partial response",
            fix="use GroupedSampler or TransformersGenerate, or write extend() for this source",
        )

    def local(self) -> RolloutSource | None:
        """Return the in-process decoder, or None if the source has none.

        It is compared with the training forward before the first rollout, and can :meth:`extend`.
        """
        return None

    def open(self, longest: int) -> None:  # noqa: B027 (most sources have nothing to open)
        """Prepare the source before the model is built: report a missing file or server now. May be called again.

        Args:
            longest: tokens of the longest sequence, prompt and response, that will be requested; 0: unknown.
        """

    def reduce_batch(self) -> int:
        """Reduce the number of responses in flight after an out-of-memory error.

        Returns:
            The new number; 0 if it cannot be reduced.
        """
        return 0

    def for_evaluation(self) -> RolloutSource:
        """Return the source for held-out prompts."""
        return self

    def sync_weights(self, policy: Policy, version: int) -> None:  # noqa: B027 (in-process sources read the live weights)
        """Send new weights to a source with its own copy; called before every :meth:`generate`.

        Args:
            policy: the weights, gathered on this rank if :attr:`weights_on` says so.
            version: the ``version`` of the calls that follow.
        """

    def update_weights_in_flight(self, policy: Policy, version: int) -> None:  # noqa: B027 (only with updates_in_flight)
        """Take newer weights during a :meth:`generate` in another thread; called on all ranks together.

        Rollouts then record the weights of each token (``Rollout.versions``). If the update fails, requests in flight
        continue with the previous weights.

        Args:
            policy: the weights, which are no longer modified.
            version: optimizer steps.

        Raises:
            InfrastructureError: the responses in flight cannot be used.
        """

    def sleep(self) -> None:  # noqa: B027 (in-process sources hold nothing of their own)
        """Release memory for training: nothing is sampled before the next :meth:`sync_weights`.

        Not called if sampling and training overlap.
        """

    def measured(self) -> dict[str, float]:
        """Return measurements since the last call, under tags of docs/metrics.md; the same tags on every rank.

        The smallest of the ranks' values is logged.
        """
        return {}

    def close(self) -> None:  # noqa: B027
        """Release servers and processes."""
