"""What a run knows beside its weights and its buffer, on its way into a checkpoint and out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gspo_lightning.critic import ValueModel
from gspo_lightning.errors import UserError
from gspo_lightning.evaluation.evaluator import Evaluator
from gspo_lightning.metrics.meter import UpdateMeter
from gspo_lightning.old_policy.logprobs import OldLogProbs
from gspo_lightning.resume import Provenance
from gspo_lightning.update.nonfinite import NonFiniteGuard

__all__ = ["RunRecord"]


@dataclass(slots=True)
class RunRecord:
    """Counts and measurements that a resumed run goes on from; tensors and primitives only.

    Args:
        guard: counts skipped mini-batches.
        meter: knows which gradient norms are usual.
        old_logprobs: has measured the noise of the sampler's log-probabilities.
        evaluator: has evaluated.
        critic: learns values, where there is one.
        provenance: config, versions and data of the run.
    """

    guard: NonFiniteGuard
    meter: UpdateMeter
    old_logprobs: OldLogProbs
    evaluator: Evaluator
    critic: ValueModel | None = None
    provenance: Provenance = field(default_factory=dict)
    _of_critic: dict[str, Any] | None = None
    _resumed: bool = False

    def put_into(self, checkpoint: dict[str, Any]) -> None:
        """Add what is known."""
        checkpoint["gspo_run"] = self.provenance
        checkpoint["gspo_skipped"] = self.guard.skipped
        checkpoint["gspo_meter"] = self.meter.state_dict()
        checkpoint["gspo_noise"] = self.old_logprobs.noise
        checkpoint["gspo_evaluations"] = [[step, dict(values)] for step, values in self.evaluator.history]
        if self.critic is not None and self.critic.trunk is not None:
            checkpoint["gspo_critic"] = self.critic.state_dict()

    def take_from(self, checkpoint: dict[str, Any]) -> None:
        """The inverse; what an older checkpoint lacks stays as it is in a new run."""
        self.evaluator.history = [(int(s), dict(values)) for s, values in checkpoint.get("gspo_evaluations", [])]
        self.guard.skipped = int(checkpoint.get("gspo_skipped", 0))
        self.meter.load_state_dict(checkpoint.get("gspo_meter", {}))
        self.old_logprobs.noise = checkpoint.get("gspo_noise")
        self._of_critic, self._resumed = checkpoint.pop("gspo_critic", None), True

    def restore_critic(self) -> None:
        """Give the critic what the checkpoint knows of it: once it is built, and on its device.

        Raises:
            UserError: the checkpoint has none, so that the critic would be another one than the run's.
        """
        if self.critic is None or not self._resumed:
            return
        if self._of_critic is None:
            raise UserError(
                "model.critic",
                "is set, but the checkpoint was written by a run without a critic",
                fix="leave it out, or start a new run from an export of that policy",
            )
        self.critic.load_state_dict(self._of_critic)
        self._of_critic = None
