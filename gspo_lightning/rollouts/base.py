"""Where responses come from: one interface for the in-process sampler, transformers ``generate`` and servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gspo_lightning.errors import UserError
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.families import FAMILIES
from gspo_lightning.rollouts.drawing import Draws
from gspo_lightning.types import Prompt, Rollout, SamplingParams, WeightsOn

__all__ = ["Beginning", "Enough", "Generator", "OnGroup", "Progress", "RolloutSource"]

Progress = Callable[[int, int], None]
"""Called with (finished responses, all responses) while a source works."""
OnGroup = Callable[[Sequence[Rollout]], None]
Enough = Callable[[Collection[int]], bool]
"""Called with the indices of the responses that have ended, now and then; True cuts all others where they are."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A response that has begun, or is about to: what the policy reads, and the position of its random numbers.

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
        return [cls(p, k, p.token_ids, 0, p.room(room)) for p in prompts for k in range(group_size)]


class Generator(Protocol):
    """What the loop asks for groups: a source, or something in front of one."""

    on_group: OnGroup | None

    @property
    def weights_on(self) -> WeightsOn:
        """See :attr:`RolloutSource.weights_on`."""

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

    @property
    def renews(self) -> bool:
        """See :attr:`RolloutSource.renews`."""

    def sync_weights(self, policy: Policy, version: int) -> None:
        """See :meth:`RolloutSource.sync_weights`."""

    def renew(self, policy: Policy, version: int) -> None:
        """See :meth:`RolloutSource.renew`."""

    def rest(self) -> None:
        """See :meth:`RolloutSource.rest`."""

    def measured(self) -> dict[str, float]:
        """See :meth:`RolloutSource.measured`."""


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

    extends_routes: bool = False
    """Whether the pieces of :meth:`extend` bring them, too, from the first token of the context on, also those that
    were cut."""

    reads_pictures: bool = False
    """Whether it shows the pictures of a prompt to the policy, and never samples their placeholders."""

    picture_families: Collection[str] = tuple(FAMILIES)
    """Kinds of policies (``model_type``) that it shows pictures to."""

    renews: bool = False
    """Whether it takes new weights while it answers, by :meth:`renew`."""

    @property
    def weights_on(self) -> WeightsOn:
        """Which ranks read the weights of the policies that this source is called with.

        The others get a policy without weights (on the meta device): its config, tokenizer and shapes only.
        """
        return WeightsOn.EVERY_RANK

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
            progress: receives the progress.
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
        """Continue responses that have begun.

        What is drawn for a token depends on the prompt, the sample and ``drawn`` only: a response in two pieces equals
        the response in one.

        Args:
            policy: the weights to sample from, in eval mode, gathered on this rank.
            beginnings: N responses; ``sampling.max_response_tokens`` does not count, their ``room`` does.
            sampling: temperature and stops.
            draws: the randomness of this call.
            version: recorded as ``policy_version``.
            enough: may end the call before all responses have ended.

        Returns:
            One rollout per beginning, in order, with the *new* tokens only. One that ``enough`` has cut has the finish
            reason ``CUT``, and perhaps no token at all. ``routes`` [context + T - 1, L, k], where there are any.

        Raises:
            UserError: this source cannot do it.
        """
        raise UserError(
            "data.rollouts",
            f"is {type(self).__name__}, which cannot continue a partial response",
            fix="use GroupedSampler or TransformersGenerate, or write extend() for this source",
        )

    def local(self) -> RolloutSource | None:
        """The decoder in this process, to be compared with the training forward before the first rollout; it can
        :meth:`extend`. None: nothing does."""
        return None

    def open(self, longest: int) -> None:  # noqa: B027 (most sources have nothing to open)
        """Called before the model is built: a missing file or server is reported now. May be called again.

        Args:
            longest: tokens of the longest sequence, prompt and response, that will be asked for; 0: unknown.
        """

    def use_less_memory(self) -> int:
        """Called when memory ran out: work on fewer responses at a time from now on.

        Returns:
            how many; 0 where that is not possible.
        """
        return 0

    def for_evaluation(self) -> RolloutSource:
        """The source that answers held-out prompts."""
        return self

    def sync_weights(self, policy: Policy, version: int) -> None:  # noqa: B027 (in-process sources read the live weights)
        """Hand new weights to a source that keeps its own copy; called before every :meth:`generate`.

        Args:
            policy: the weights, gathered on this rank if :attr:`weights_on` says so.
            version: the ``version`` of the calls that follow.
        """

    def renew(self, policy: Policy, version: int) -> None:  # noqa: B027 (only where renews is true)
        """Take newer weights in the middle of a :meth:`generate` of another thread; all ranks together.

        Its rollouts say token by token which weights sampled them (``Rollout.versions``). Where it fails, what is going
        on goes on with what there was.

        Args:
            policy: the weights, which nobody changes any more.
            version: optimizer steps.

        Raises:
            InfrastructureError: what is going on cannot be used.
        """

    def rest(self) -> None:  # noqa: B027 (in-process sources hold nothing of their own)
        """Give back memory that training needs: nothing is sampled before the next :meth:`sync_weights`.

        Not called where sampling and training overlap.
        """

    def measured(self) -> dict[str, float]:
        """What it has measured since the last call, under tags of docs/metrics.md; the same tags on every rank.

        The smallest of the ranks' values is logged.
        """
        return {}

    def close(self) -> None:  # noqa: B027
        """Release servers and processes."""
