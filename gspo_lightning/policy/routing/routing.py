"""Facts about a model's routers, and the mode of Routing Replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gspo_lightning.core.errors import UserError

Replay = Literal["off", "R2", "R3"]
"""``R2``: follow the experts of the old policy's forward pass. ``R3``: those of the rollout."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Hooked routers of a model: L layers that send each token to ``top_k`` of ``experts`` experts."""

    layers: int
    experts: int
    top_k: int
    replay: Replay = "off"


def replay_word(value: str | bool) -> Replay:
    """Parse ``off``, ``R2`` or ``R3``; YAML reads a bare ``off`` as false.

    Raises:
        UserError: another word.
    """
    word = "off" if value is False else str(value)
    for mode in get_args(Replay):
        if word.lower() == mode.lower():
            return mode
    raise UserError("model.routing_replay", f"is {value!r}, but must be off, R2 or R3")
