"""How held-out prompts are answered."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Evaluation"]


@dataclass(frozen=True)
class Evaluation:
    """How held-out prompts are answered; independent of training."""

    temperature: float = 0.0
    """0 is greedy."""
    samples: int = 1
    """Responses per prompt (the k of avg@k). More than one needs a temperature above 0."""
    max_response_tokens: int | None = None
    """Tokens; None takes data.max_response_tokens."""
    top_p: float = 1.0
    """Nucleus sampling; only evaluation may leave 1."""
    top_k: int = 0
    """0 keeps all tokens; only evaluation may leave 0."""
    pass_at: tuple[int, ...] = ()
    """Values of k for pass@k, each at most ``samples``."""
    limit: int | None = None
    """Use only the first so many prompts; None uses all."""
    batch_size: int = 256
    """Prompts answered at a time."""
    accuracy_reward: str | None = None
    """Name of the reward that decides what is correct (a value of at least 1); None takes the first one."""
