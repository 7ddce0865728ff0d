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
from typing import Literal

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
        self.choice, self.level, self.exact = choice, objective.level, exact
        ranges = [r for r in (objective.clip_low, objective.clip_high) if r is not None and r > 0]
        self.tolerance = SHARE * (min(ranges) if ranges else UNCLIPPED)
        self.noise: float | None = None
        """Root mean square gap to the sampler, nats: of a sequence's mean log-ratio or a token's; None at first."""
        self._said: bool | None = None
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
        first_is_free = first_is_free and not self.as_behaviour and not replayed
        free, rest = (list(batches[:1]), list(batches[1:])) if first_is_free else ([], list(batches))
        if replayed or not self.from_source(batches):  # under Routing Replay both sides follow the same experts
            return free + old_policy.prepare(policy, rest, temperature)
        old_policy.prepare(policy, [], temperature)  # lets a snapshot leave the device
        return free + [
            replace(b, micro_batches=[replace(m, old_from_source=True) for m in b.micro_batches]) for b in rest
        ]

    @property
    def as_behaviour(self) -> bool:
        """True if ratios, by choice, divide by older weights than those at the start of training."""
        return self.ahead and self.choice == "source"

    def from_source(self, batches: Sequence[MiniBatch]) -> bool:
        """True if the updates on these mini-batches take the source's log-probabilities.

        Raises:
            UserError: the choice is ``source``, but the rollouts have no log-probabilities.
        """
        known = all(m.behaviour_logprobs is not None for b in batches for m in b.micro_batches)
        if self.choice == "source" and not known:
            raise UserError(
                "model.old_logprobs", "is 'source', but these rollouts have no log-probabilities", fix="use recompute"
            )
        if self.ahead:
            return self.choice == "source"
        if self.choice == "recompute" or not known or (self.choice == "auto" and self.noise is None):
            return False
        good = self.noise is None or self.noise <= self.tolerance
        if good is not self._said:
            self._said = good
            self._say(good)
        return good or self.choice == "source"

    def _say(self, good: bool) -> None:
        noise = "" if self.noise is None else f"{self.noise:.1e} nats per {self.level}"
        limit = f"{self.tolerance:.1e}, a tenth of the clip range"
        if self.choice == "source" and not good:
            log.warning(
                "old log-probabilities are the rollout source's, whose noise of %s is above %s: it moves samples "
                "across the edge of the clip range before any update; use model.old_logprobs: auto",
                noise, limit,
            )  # fmt: skip
        elif self.choice == "auto":
            chosen = "are the rollout source's" if good else "are recomputed: the rollout source's are too noisy"
            log.info("old log-probabilities %s: %s against %s", chosen, noise, limit)


def _check_routes(policy: Policy, batches: Sequence[MiniBatch]) -> None:
    """Refuse an R3 run whose rollouts lack experts: those micro-batches would be routed freely."""
    if policy.routing is None or policy.routing.replay != "R3":
        return
    if any(part.routes is None for batch in batches for part in batch.micro_batches):
        raise UserError(
            "model.routing_replay",
            "is R3, but some responses came without the experts that they were sampled with (transformers' generate, "
            "which takes over where the sampler cannot decode a model, does not report them)",
            fix="use model.routing_replay: R2",
        )
