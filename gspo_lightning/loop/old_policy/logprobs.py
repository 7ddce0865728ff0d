"""Old log-probabilities: take the sampler's if they are precise enough, or recompute them.

A sampler already knows the log-probability of every token it sampled; recomputing costs a forward pass over all of
them. But the sampler's numbers come from other code, and their error looks like a ratio. The first update of every
iteration measures that error at no cost: the policy is still the old policy, so its own log-probabilities are
the old ones, and the difference from the sampler's is noise alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MiniBatch
from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.objectives import Objective
from gspo_lightning.policy.policy import Policy

log = logging.getLogger(__name__)

OldLogProbsChoice = Literal["auto", "source", "recompute"]
SHARE = 0.1
"""Share of the clip range: noise below it hardly moves anything across a clip boundary."""
UNCLIPPED = 0.01
"""Clip range assumed for an objective without one."""


class OldLogProbs:
    """Source of a run's old log-probabilities, and the noise measurement behind it.

    Args:
        choice: ``auto``: the sampler's if their measured noise is at most a tenth of the clip range, else recomputed;
            ``source``: the sampler's; ``recompute``: never the sampler's.
        objective: supplies the clip range and the level of its ratio, sequence or token.
        exact: any noise is an error (``model.batch_invariant``).
    """

    def __init__(self, choice: OldLogProbsChoice, objective: Objective, *, exact: bool = False) -> None:
        self.choice = choice
        self.level = objective.level
        self.exact = exact
        ranges = [side for side in (objective.clip_low, objective.clip_high) if side is not None and side > 0]
        self.tolerance = SHARE * (min(ranges) if ranges else UNCLIPPED)
        self.noise: float | None = None
        """Root mean square gap to the sampler, nats: of a sequence's mean log-ratio or a token's; None at first."""
        self._logged: bool | None = None
        """The last judgement of :meth:`from_source` that was logged; each change of it is logged once."""
        self.ahead = False
        """True if rollouts come from older weights (asynchronous).

        The old policy is then the one at the start of training on them, and the source's log-probabilities belong to
        the objective's correction.
        """

    def note(self, sums: Mapping[str, tuple[float, float]]) -> None:
        """Set :attr:`noise` from the sums over all ranks of an update on rollouts of the very same weights.

        Raises:
            UserError: there is noise, but :attr:`exact` says that there is none.
        """
        if self.ahead:
            return
        name = "sampler_sequence_gap_squared" if self.level == "sequence" else "sampler_logprob_gap_squared"
        total, count = sums.get(name, (0.0, 0.0))
        if count:
            self.noise = math.sqrt(total / count)
        if self.exact and self.noise:
            raise UserError(
                "model.batch_invariant",
                f"is true, but the sampler's log-probabilities differ from training's by {self.noise:.1e} nats per "
                f"{self.level}, and must equal them to the last bit",
                fix="use batch_invariant: false, and report this with the model, the processor and number of threads",
            )

    def fill(
        self,
        old_policy: OldPolicy,
        policy: Policy,
        batches: Sequence[MiniBatch],
        temperature: float,
        *,
        first_is_free: bool,
    ) -> list[MiniBatch]:
        """Return the mini-batches of a rollout with old log-probabilities, or marked to take the source's.

        Args:
            old_policy: can evaluate its snapshot.
            policy: the live policy.
            batches: in the order of their updates.
            temperature: of the rollouts.
            first_is_free: the first mini-batch is trained on once, while the policy is the snapshot, and needs nothing.

        Raises:
            UserError: the choice is ``source``, but the rollouts have no log-probabilities; or experts are to be
                replayed (R3), but some rollouts have none.
        """
        _check_routes(policy, batches)
        replayed = policy.routing is not None and policy.routing.replay != "off" and self.choice != "source"
        free_count = 1 if first_is_free and not self.as_behaviour and not replayed else 0
        free = list(batches[:free_count])
        rest = list(batches[free_count:])
        if replayed or not self.from_source(batches):  # under Routing Replay both sides follow the same experts
            return free + old_policy.prepare(policy, rest, temperature)
        old_policy.prepare(policy, [], temperature)  # lets a snapshot leave the device
        return free + [_marked(batch) for batch in rest]

    @property
    def as_behaviour(self) -> bool:
        """True if ratios, by choice, divide by older weights than those at the start of training."""
        return self.ahead and self.choice == "source"

    def from_source(self, batches: Sequence[MiniBatch]) -> bool:
        """True if the updates on these mini-batches take the source's log-probabilities.

        Raises:
            UserError: the choice is ``source``, but the rollouts have no log-probabilities.
        """
        parts = chain.from_iterable(batch.micro_batches for batch in batches)
        complete = all(part.behaviour_logprobs is not None for part in parts)
        if self.choice == "source" and not complete:
            raise UserError(
                "model.old_logprobs", "is 'source', but these rollouts have no log-probabilities", fix="use recompute"
            )
        if self.ahead:
            return self.choice == "source"
        if self.choice == "recompute" or not complete:
            return False
        if self.choice == "auto" and self.noise is None:  # not measured yet
            return False
        precise = self.noise is None or self.noise <= self.tolerance
        if precise is not self._logged:
            self._logged = precise
            self._log(precise)
        return precise or self.choice == "source"

    @rank_zero_only  # the noise is that of all ranks
    def _log(self, precise: bool) -> None:
        noise = "" if self.noise is None else f"{self.noise:.1e} nats per {self.level}"
        limit = f"{self.tolerance:.1e}, a tenth of the clip range"
        if self.choice == "source" and not precise:
            log.warning(
                "old log-probabilities are the rollout source's, whose noise of %s is above %s: it moves samples "
                "across the edge of the clip range before any update; use model.old_logprobs: auto",
                noise, limit,
            )  # fmt: skip
        elif self.choice == "auto":
            choice = "are the rollout source's" if precise else "are recomputed: the rollout source's are too noisy"
            log.info("old log-probabilities %s: %s against %s", choice, noise, limit)


def _marked(batch: MiniBatch) -> MiniBatch:
    """Return the mini-batch with micro-batches whose old log-probabilities are the sampler's."""
    return replace(batch, micro_batches=[replace(part, old_from_source=True) for part in batch.micro_batches])


def _check_routes(policy: Policy, batches: Sequence[MiniBatch]) -> None:
    """Refuse an R3 run whose rollouts lack experts: those micro-batches would be routed freely."""
    if policy.routing is None or policy.routing.replay != "R3":
        return
    parts = chain.from_iterable(batch.micro_batches for batch in batches)
    if any(part.routes is None for part in parts):
        raise UserError(
            "model.routing_replay",
            "is R3, but some responses came without the experts that they were sampled with (transformers' generate, "
            "which takes over where the sampler cannot decode a model, does not report them)",
            fix="use model.routing_replay: R2",
        )
