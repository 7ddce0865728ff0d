"""State of a run beside its weights and its buffer, in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.metrics.update_metrics import UpdateMetrics
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs
from gspo_lightning.loop.update.nonfinite import NonFiniteGuard
from gspo_lightning.resume import Provenance
from gspo_lightning.training.evaluation.evaluator import Evaluator

PRECISION = "gspo_precision"
"""Key under which a checkpoint names its precision."""


@dataclass(slots=True)
class RunRecord:
    """Counts and measurements from which a resumed run continues; tensors and primitives only.

    Args:
        guard: provides the number of skipped mini-batches.
        update_metrics: provides the history of gradient norms.
        old_logprobs: provides the measured noise of the sampler's log-probabilities.
        evaluator: provides the history of evaluations.
        critic: the value model, if there is one.
        provenance: config, versions and data of the run.
    """

    guard: NonFiniteGuard
    update_metrics: UpdateMetrics
    old_logprobs: OldLogProbs
    evaluator: Evaluator
    critic: ValueModel | None = None
    provenance: Provenance = field(default_factory=dict)
    may_change: bool = False
    """True if the meaning of the run may change (``allow_changed_config``)."""
    _of_critic: dict[str, Any] | None = None
    _resumed: bool = False

    def put_into(self, checkpoint: dict[str, Any], precision: str) -> None:
        """Add the state to a checkpoint, and the precision (Lightning's name of it) in which it was computed."""
        checkpoint["gspo_run"] = self.provenance
        checkpoint[PRECISION] = precision
        checkpoint["gspo_skipped"] = self.guard.skipped
        checkpoint["gspo_meter"] = self.update_metrics.state_dict()
        checkpoint["gspo_noise"] = self.old_logprobs.noise
        checkpoint["gspo_evaluations"] = [[step, dict(values)] for step, values in self.evaluator.history]
        if self.critic is not None and self.critic.backbone is not None:
            checkpoint["gspo_critic"] = self.critic.state_dict()

    def take_from(self, checkpoint: dict[str, Any]) -> None:
        """Read the state from a checkpoint."""
        self.evaluator.history = [(int(s), dict(values)) for s, values in checkpoint.get("gspo_evaluations", [])]
        self.guard.skipped = int(checkpoint.get("gspo_skipped", 0))
        self.update_metrics.load_state_dict(checkpoint.get("gspo_meter", {}))
        self.old_logprobs.noise = checkpoint.get("gspo_noise")
        self._of_critic = checkpoint.pop("gspo_critic", None)
        self._resumed = True

    def check_precision(self, checkpoint: Mapping[str, Any], precision: str) -> None:
        """Refuse to train on in another precision: its log-probabilities differ by more than a clip range.

        The command line compares whole configs; a trainer of Lightning's own has none. A checkpoint that names no
        precision is older than the record.

        Args:
            checkpoint: to resume from.
            precision: of the trainer.

        Raises:
            UserError: the checkpoint was written in another one, and nothing allows a changed meaning.
        """
        before = checkpoint.get(PRECISION, precision)
        if before != precision and not self.may_change:
            raise UserError(
                "trainer.precision",
                f"is {precision!r}, but the checkpoint was trained in {before!r}: ratios would be those of other "
                "log-probabilities",
                fix=f"resume with precision {before!r}, or start a new run from an export of that policy",
            )

    def restore_critic(self) -> None:
        """Load the critic's state from the checkpoint, once the critic is built and on its device.

        Raises:
            UserError: the checkpoint has no critic, so this one would differ from the run's.
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
