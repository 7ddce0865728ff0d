"""GPUs of servers started here: cards that no rank trains on, or a share of the first rank's card."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.vllm.local import Defaults, LocalVLLM, parallelism

SHARE = 0.4
"""Share of a card that servers get beside a rank, together; vLLM's own default, 0.92, cannot start there."""

Card = tuple[str, str]
"""Name of a machine, and of one of its GPUs in ``CUDA_VISIBLE_DEVICES``."""


def card_of(policy: Policy, environment: Mapping[str, str] = os.environ) -> Card | None:
    """Return the card that this rank trains on; None on a CPU."""
    index = policy.device.index or 0
    if policy.device.type == "meta" and torch.cuda.is_initialized():  # another rank has the gathered weights
        index = torch.cuda.current_device()
    elif policy.device.type != "cuda":
        return None
    visible = _visible(environment)
    return socket.gethostname(), visible[index] if index < len(visible) else ""


@dataclass(frozen=True)
class Placement:
    """GPUs of the first rank and of the servers that it starts; all empty on a CPU."""

    own: str = ""
    """GPU of the first rank."""
    servers: Sequence[Sequence[str]] = ()
    """GPUs of each server."""
    trained_on: frozenset[str] = frozenset()
    """GPUs of all ranks on the first rank's machine."""
    dealt: bool = False
    """True if the user has named no GPUs."""

    def defaults(self, number: int) -> Defaults:
        """Return options and environment variables of a server, by its number."""
        options: dict[str, Any] = {}
        shared = set(self.servers[number]) & self.trained_on if self.servers else set()
        if shared:
            servers = max(sum(card in server for server in self.servers) for card in shared)
            options["gpu_memory_utilization"] = round(SHARE / servers, 3)
        return options, {"CUDA_VISIBLE_DEVICES": ",".join(self.servers[number])} if self.dealt else {}


def placed(
    cards: Sequence[Card | None], local: LocalVLLM, count: int, environment: Mapping[str, str] = os.environ
) -> Placement:
    """Deal cards to the servers that are started here: those that no rank uses, else one server beside the first rank.

    Args:
        cards: card of each rank, the first rank's machine being this one.
        local: how servers are started, perhaps with their ``gpus``.
        count: number of servers.
        environment: environment of this process.

    Raises:
        UserError: there are too few cards.
    """
    if not cards or cards[0] is None:
        return Placement()
    host, first_card = cards[0]
    trained_on = frozenset(card[1] for card in cards if card is not None and card[0] == host)
    size = parallelism(local.options)
    if local.gpus is not None:
        return Placement(first_card, [listed(names)[:size] for names in local.gpus], trained_on)
    visible = _visible(environment)
    free = [name for name in visible if name not in trained_on]
    if count == 1 and len(free) < size:
        free = [first_card, *free]
    if len(free) < count * size:
        raise UserError(
            "data.rollouts.start",
            f"is {count}, for servers of {_cards(size)} each, but ranks train on {len(trained_on)} of "
            f"{_cards(len(visible))} here",
            fix="start: 1, which shares the first rank's card; fewer trainer.devices; or name data.rollouts.gpus",
        )
    dealt = [free[number * size : (number + 1) * size] for number in range(count)]
    return Placement(first_card, dealt, trained_on, dealt=True)


def merged(*defaults: Defaults) -> Defaults:
    """Return the options and the environment variables of all of them; the last ones take precedence."""
    options: dict[str, Any] = {}
    environment: dict[str, str] = {}
    for more_options, more_variables in defaults:
        options |= more_options
        environment |= more_variables
    return options, environment


def _visible(environment: Mapping[str, str]) -> list[str]:
    names = environment.get("CUDA_VISIBLE_DEVICES")
    return listed(names) if names else [str(i) for i in range(torch.cuda.device_count())]


def listed(text: str) -> list[str]:
    """Return the GPUs that a value of ``CUDA_VISIBLE_DEVICES`` names."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _cards(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"
