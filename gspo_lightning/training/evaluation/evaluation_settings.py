"""Settings for answering held-out prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.types import SamplingParams


@dataclass(frozen=True)
class Evaluation:
    """Settings for answering held-out prompts; independent of training."""

    temperature: float = 0.0
    """Sampling temperature, >= 0; 0 is greedy."""
    samples: int = 1
    """Responses per prompt (the k of avg@k), >= 1. More than one needs a temperature above 0."""
    max_response_tokens: int | None = None
    """Most tokens of a response; None takes data.max_response_tokens."""
    top_p: float = 1.0
    """Nucleus sampling (top-p); only evaluation may set a value other than 1."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 keeps all. Only evaluation may set a value other than 0."""
    pass_at: tuple[int, ...] = ()
    """Values of k for pass@k, each at most ``samples``."""
    limit: int | None = None
    """Number of prompts to use, from the first on; None uses all."""
    batch_size: int = 256
    """Number of prompts answered at a time."""
    accuracy_reward: str | None = None
    """Reward that decides correctness (a value of at least 1); None takes the first one, and shows its mean instead of
    an accuracy if its values leave [0, 1]."""

    def check(self, rewards: Iterable[str]) -> None:
        """Check that values are in range and that the accuracy reward is one of ``rewards``.

        Raises:
            UserError: a value or the reward is wrong.
        """
        if self.samples < 1:
            raise UserError("data.evaluation.samples", f"is {self.samples}; it must be at least 1")
        if self.temperature < 0:
            raise UserError("data.evaluation.temperature", f"is {self.temperature}; it must be 0 (greedy) or above")
        if self.samples > 1 and self.temperature == 0:
            raise UserError(
                "data.evaluation.samples",
                f"is {self.samples}, but greedy decoding gives the same response every time",
                fix="set data.evaluation.temperature above 0, or samples: 1",
            )
        for k in self.pass_at:
            if not 1 <= k <= self.samples:
                raise UserError("data.evaluation.pass_at", f"pass@{k} needs between 1 and samples = {self.samples}")
        name = self.accuracy_reward
        if name is not None and name not in rewards:
            raise UserError(
                "data.evaluation.accuracy_reward", f"{name!r} is not a reward; {did_you_mean(name, rewards)}"
            )

    def sampling(self, training: SamplingParams) -> SamplingParams:
        """Return the sampling parameters for held-out prompts, with the stops of training rollouts."""
        return replace(
            training,
            max_response_tokens=self.max_response_tokens or training.max_response_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )
