"""Compare objectives on the same mini-batches at the same weights: losses, gradients and their cosines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MiniBatch
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.metrics.update import update_scalars
from gspo_lightning.loop.update.loss import micro_batch_loss, mini_batch_count
from gspo_lightning.objectives import Objective
from gspo_lightning.policy.routing import Replay, replay_word
from gspo_lightning.resume.files import write_text
from gspo_lightning.training.callbacks.folder import gspo_module, run_folder
from gspo_lightning.training.module import GSPOModule

SIDE_BY_SIDE = "side_by_side.jsonl"


class SideBySide(Callback):
    """Gradients of several objectives on each mini-batch, computed at the current weights before every update.

    The run is not changed: its own objective moves the weights. Writes :data:`SIDE_BY_SIDE` to the run folder, one line
    per update: ``update``, ``iteration``, ``mini_batch``; ``settings``: name -> the objective in full; ``objectives``:
    name -> metrics under the tags of docs/metrics.md, including ``optim/gradient_norm`` (before clipping); ``cosines``:
    between the gradients, in the order of the names (null if one is 0); ``sampler_logprob_gap``: mean absolute
    difference in nats per token between the log-probabilities of these weights and those that came with the rollouts,
    on the first mini-batch.

    The cost is one forward and backward pass per objective and update, and one copy of the gradient each in host
    memory.

    Args:
        objectives: name -> objective.
        routing_replay: name -> ``R2`` for objectives that follow the experts of the old policy's forward pass. The
            run needs ``model.routing_replay: R2``, too; its own updates then follow the setting of the first objective.
    """

    def __init__(self, objectives: dict[str, Objective], routing_replay: dict[str, str] | None = None) -> None:
        unknown = set(routing_replay or {}) - set(objectives)
        if not objectives or unknown:
            raise UserError(
                "trainer.callbacks.objectives", f"is empty, or lacks {', '.join(sorted(unknown)) or 'everything'}"
            )
        self.objectives = objectives
        self.replay: dict[str, Replay] = {n: replay_word((routing_replay or {}).get(n, "off")) for n in objectives}
        self._path = Path()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create the file, or cut it after the last update before a resume.

        Raises:
            UserError: the run has several ranks, or does not record the experts that Routing Replay needs.
        """
        if rank_and_world()[1] > 1:
            raise UserError("trainer.devices", "SideBySide compares gradients in one process", fix="use one device")
        routing = gspo_module(pl_module).policy.routing
        if "R2" in self.replay.values() and (routing is None or routing.replay != "R2"):
            raise UserError("model.routing_replay", "is off, but an objective is to replay experts", fix="use R2")
        self._path = run_folder(trainer) / SIDE_BY_SIDE
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else []
        kept = [line for line in lines if json.loads(line)["update"] <= trainer.global_step]
        write_text(self._path, "".join(f"{line}\n" for line in kept))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: MiniBatch, batch_idx: int
    ) -> None:
        """Measure all objectives, clear the gradients, and set the routing of the first objective for the update."""
        module = gspo_module(pl_module)
        metrics: dict[str, dict[str, float]] = {}
        gradients = []
        for name, objective in self.objectives.items():
            self._route(module, self.replay[name])
            metrics[name], gradient = self._gradient(trainer, module, objective, batch)
            gradients.append(gradient)
        first = next(iter(self.objectives))
        self._route(module, self.replay[first])
        row = {
            "update": trainer.global_step + 1,
            "iteration": batch.iteration,
            "mini_batch": batch.index,
            "sampler_logprob_gap": metrics[first].get("noise/sampler_logprob_gap"),
            "settings": {name: repr(objective) for name, objective in self.objectives.items()},
            "objectives": metrics,
            "cosines": cosines(gradients),
        }
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Record experts for the next rollouts again, if some objective replays them."""
        if "R2" in self.replay.values():
            self._route(gspo_module(pl_module), "R2")

    def _route(self, module: GSPOModule, replay: Replay) -> None:
        routing = module.policy.routing
        if routing is not None and "R2" in self.replay.values():
            module.policy.routing = dataclasses.replace(routing, replay=replay)

    def _gradient(
        self, trainer: Trainer, module: GSPOModule, objective: Objective, batch: MiniBatch
    ) -> tuple[dict[str, float], list[Tensor]]:
        """Return the metrics of an objective on a mini-batch, and its gradient, one tensor per parameter."""
        sums = MetricSums("basic")
        on_policy = module.on_policy(batch)
        terms = dataclasses.replace(module.terms(), objective=objective)
        denominator = mini_batch_count(objective, batch.micro_batches)
        module.policy.zero_grad(set_to_none=True)
        for part in batch.micro_batches:
            with trainer.precision_plugin.forward_context():
                loss = micro_batch_loss(part, terms, denominator=denominator, sums=sums, on_policy=on_policy)
            loss.backward()
        gradient = [p.grad.detach().cpu() for p in module.policy.parameters() if p.grad is not None]
        module.policy.zero_grad(set_to_none=True)
        pairs, _, _ = sums.reduce()
        metrics = update_scalars(pairs)
        metrics["optim/gradient_norm"] = dot(gradient, gradient) ** 0.5
        return metrics, gradient


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Compute the inner product of two gradients, tensor by tensor, in float64."""
    return float(sum(torch.dot(x.double().flatten(), y.double().flatten()) for x, y in zip(a, b, strict=True)))


def cosines(gradients: Sequence[Sequence[Tensor]]) -> list[list[float | None]]:
    """Compute the cosines [K, K] between K gradients; None where one of them is 0.

    >>> cosines([[torch.tensor([3.0, 4.0])], [torch.tensor([4.0, 3.0])], [torch.zeros(2)]])
    [[1.0, 0.96, None], [0.96, 1.0, None], [None, None, None]]
    """
    count = len(gradients)
    products: dict[tuple[int, int], float] = {}  # symmetric: i <= j
    for i in range(count):
        for j in range(i, count):
            products[i, j] = dot(gradients[i], gradients[j])
    norms = [products[i, i] ** 0.5 for i in range(count)]

    def cosine(i: int, j: int) -> float | None:
        if not (norms[i] and norms[j]):
            return None
        return products[min(i, j), max(i, j)] / (norms[i] * norms[j])

    return [[cosine(i, j) for j in range(count)] for i in range(count)]
