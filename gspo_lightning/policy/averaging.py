"""Running average of the trained weights, and its place in checkpoints.

Rollouts, old policy and optimizer use the current weights. Evaluations, ``gspo validate`` and ``gspo export`` use their
average, which therefore stands under ``state_dict`` in checkpoints, as in Lightning.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.policy import Policy

CURRENT = "current_model_state"
"""Key of the current weights in a checkpoint, as in Lightning's."""
COUNT = "averaging_state"
"""Key of the number of averaged weights in a checkpoint, as in Lightning's."""


class Average:
    """Running average of a policy's trained weights; others are never averaged.

    Args:
        policy: the current weights, which :meth:`update` reads.
        device: where the average is kept; None: the policy's device.
        how: arguments of ``torch.optim.swa_utils.AveragedModel``: ``avg_fn`` or ``multi_avg_fn``.
    """

    def __init__(self, policy: Policy, device: torch.device | int | None = None, **how: Any) -> None:
        named = [(name, p) for name, p in policy.named_parameters(remove_duplicate=False) if p.requires_grad]
        distinct = {id(parameter): parameter for _, parameter in named}
        place_of = {identity: place for place, identity in enumerate(distinct)}
        self._live = nn.ParameterList(distinct.values())
        self._places = {name: place_of[id(parameter)] for name, parameter in named}  # tied weights have several names
        self._model = AveragedModel(self._live, device=device or policy.device, use_buffers=False, **how)

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average; the first ones start it."""
        self._model.update_parameters(self._live)

    def policy(self, live: Policy) -> Policy:
        """Return a policy with the averaged weights, in eval mode; shares their memory if they are on its device."""
        memo: dict[int, Any] = {}  # of copy.deepcopy: the copy takes these instead of the current weights
        for place, parameter in enumerate(self._live):
            averaged = self._at(place).to(live.device)
            memo[id(parameter)] = nn.Parameter(averaged, requires_grad=False)
        return live.frozen_copy(memo).eval()

    def put_into(self, checkpoint: dict[str, Any]) -> None:
        """Put the average under ``state_dict``, and the weights that training resumes from beside it."""
        state = dict(checkpoint["state_dict"])
        names = {f"policy.{name}": i for name, i in self._places.items() if f"policy.{name}" in state}
        checkpoint[CURRENT] = {name: state[name] for name in names}
        checkpoint[COUNT] = {"n_averaged": self._model.n_averaged.clone()}
        checkpoint["state_dict"] = state | {name: self._at(i) for name, i in names.items()}

    @torch.no_grad()
    def load(self, checkpoint: dict[str, Any]) -> None:
        """Load what :meth:`put_into` wrote."""
        for name, i in self._places.items():
            self._at(i).copy_(checkpoint["state_dict"][f"policy.{name}"])
        self._model.n_averaged.copy_(checkpoint[COUNT]["n_averaged"])

    def _at(self, place: int) -> Tensor:
        averaged = self._model.module
        assert isinstance(averaged, nn.ParameterList)
        return averaged[place].detach()


def holds_average(checkpoint: dict[str, Any]) -> bool:
    """True if ``state_dict`` holds an average of weights.

    Raises:
        UserError: it does, and a sharding strategy has taken it for the weights to train.
    """
    if CURRENT in checkpoint and "state_dict" not in checkpoint:
        raise UserError(
            "trainer.strategy",
            "spreads weights over ranks, but the checkpoint is one of a run that averages its weights",
            fix="continue with trainer.strategy: ddp or on a single device, or start a new run from its export",
        )
    return CURRENT in checkpoint


def training_weights(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the ``state_dict`` that training resumes from: the current weights, even if it holds their average."""
    state: dict[str, Any] = checkpoint["state_dict"] | checkpoint.get(CURRENT, {})
    return state
