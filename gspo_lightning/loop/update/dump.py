"""Dump of an update: all of its inputs, to repeat it without the run (``gspo replay``)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MiniBatch
from gspo_lightning.loop.update.loss import LossTerms
from gspo_lightning.objectives import Objective
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import filler
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import full_weights, in_step, is_sharded
from gspo_lightning.resume import atomic_file, read_tensors

DUMPS = "give a file from the folder dumps/ of a run"


@dataclasses.dataclass
class Dump:
    """All inputs of one update, to repeat it without the run (``gspo replay``)."""

    update: int
    """Number of the update, from 1."""
    values: dict[str, float]
    """Measured values: loss, gradient norm, largest ratio."""
    mini_batch: MiniBatch
    """This rank's rows: token ids, old log-probabilities, advantages."""
    logprobs: list[Tensor]
    """Log-probabilities [N, T] of each micro-batch under the weights before the update."""
    segments: list[Tensor | None]
    """Segment numbers [N, T] of each micro-batch, for objectives over given segments."""
    rewards: dict[str, Any]
    """``{"<prompt>/<sample>": [hash of its token ids, reward or None]}`` of this rank's rollout batch."""
    rng: dict[str, int]
    """``seed`` and ``iteration``: every draw is a function of these."""
    model: ModelSettings
    objective: dict[str, Any]
    """Dotted class and settings."""
    temperature: float
    weights: dict[str, Tensor]
    """Weights of the policy before the update."""
    longest: int = 0
    """Longest possible row of the run, in tokens: some rotary embeddings depend on it. 0: not recorded."""
    router_aux_loss_coef: float = 0.0
    """Weight of the routers' load-balancing loss."""

    def write(self, folder: Path, rank: int) -> Path:
        """Write to ``folder``, readable by this user alone; tensors and primitives only.

        Raises:
            OSError: the file cannot be written, or the run folder is gone.
        """
        folder = folder.absolute()
        folder.mkdir(exist_ok=True)
        path = folder / f"update-{self.update:08d}{f'-rank{rank}' if rank else ''}.pt"
        content = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        content |= {"mini_batch": self.mini_batch.state_dict(), "model": dataclasses.asdict(self.model)}
        with atomic_file(path, private=True) as file:
            torch.save(content, cast(BinaryIO, file))
        return path

    @classmethod
    def read(cls, path: Path, trust_remote_code: bool = False) -> Dump:
        """Read the result of :meth:`write`, without running code from the file; it cannot enable a model's code either.

        Raises:
            UserError: the file is not a dump.
        """
        content = read_tensors(path, "DUMP", fix=DUMPS)
        try:
            content["mini_batch"] = MiniBatch.from_state_dict(content["mini_batch"])
            content["model"] = ModelSettings.of_file(content["model"], trust_remote_code)
            return cls(**content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError("DUMP", f"{path} cannot be read: it is no dump of an update", fix=DUMPS) from error


@torch.no_grad()
def make_dump(batch: MiniBatch, terms: LossTerms, *, on_policy: bool = False, **rest: Any) -> Dump:
    """Return a dump of an update that has not happened; ``rest`` are the fields that are known already."""
    policy = terms.policy
    replays_routes = policy.routing is not None and policy.routing.replay != "off"
    logprobs = []
    micro_batches = []
    for micro_batch, is_needed in in_step(policy, batch.micro_batches, policy.device):
        # sharded ranks must make equally many forward passes: those with fewer micro-batches pass fillers along
        inputs = micro_batch if is_needed else filler(micro_batch)
        current = policy(inputs, terms.temperature)[0]
        old = terms.old_policy.logprobs(inputs, terms.temperature, current if on_policy else None)
        if not is_needed:
            continue
        logprobs.append(current.cpu())
        routes = inputs.routes if replays_routes else None
        micro_batches.append(dataclasses.replace(inputs, old_logprobs=old, routes=routes).to("cpu"))
    return Dump(
        mini_batch=dataclasses.replace(batch, micro_batches=micro_batches),
        logprobs=logprobs,
        segments=[terms.segments(micro_batch) for micro_batch in batch.micro_batches],
        objective=_described(terms.objective),
        temperature=terms.temperature,
        weights=_weights(policy),
        router_aux_loss_coef=terms.router_aux_loss_coef,
        **rest,
    )


def _described(objective: Objective) -> dict[str, Any]:
    """Return the dotted class of an objective, and its settings."""
    kind = type(objective)
    settings = {field.name: getattr(objective, field.name) for field in dataclasses.fields(objective) if field.init}
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "settings": settings}


def _weights(policy: Policy) -> dict[str, Tensor]:
    """Return the whole weights of the transformers model on the CPU."""
    if is_sharded(policy):
        return {name: value.cpu() for name, value in full_weights(policy, policy.device)}
    return {name: value.detach().cpu().clone() for name, value in policy.model.state_dict().items()}
