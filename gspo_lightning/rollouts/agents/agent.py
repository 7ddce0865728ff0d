"""Agent interface: do the task of one record by talking to the gateway."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from gspo_lightning.rollouts.gateway.address import Address

Outcome = float | Mapping[str, Any] | None
"""Result of an agent: a reward, or None where the run's rewards judge; or an object with some of ``reward``, ``parts``
(numbers to log, by name) and ``turns`` (rewards of the first turns, which add to the reward)."""


class Agent(ABC):
    """Base class of agents. A subclass is registered under its name.

    One object serves all rollouts of a run, many at the same time, on the event loop of the gateway. An exception of
    :meth:`run` costs its own rollout: an :class:`~gspo_lightning.core.errors.InfrastructureError` is counted as a
    failure of the agent's environment, a ``UserError`` stops the run, and any other one is the agent's own.
    """

    @property
    def where(self) -> str:
        """Name of what does the task, for messages."""
        return f"{type(self).__name__}.run"

    async def open(self) -> None:  # noqa: B027 (most agents have nothing to start)
        """Start what all rollouts share (a process, a client); called before the first rollout, and again after close.

        Raises:
            UserError: the agent cannot be started.
        """

    @abstractmethod
    async def run(self, record: Mapping[str, Any], address: Address) -> Outcome:
        """Do the task of one record; cancelled at the deadline.

        Args:
            record: the prompt's record: ``prompt``, its other columns, ``messages`` if the prompt is a list of
                messages, and ``rollout`` (``<prompt>/<sample>``).
            address: where this rollout's requests go.

        Returns:
            The reward of the rollout; None if the run's rewards judge what the policy said.
        """

    async def close(self) -> None:  # noqa: B027
        """End what :meth:`open` started."""
