"""NaN and infinity: stopped before the optimizer, written down so that they can be looked at, skipped on request."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import torch
from torch import Tensor, nn

from gspo_lightning.distributed import largest, local
from gspo_lightning.errors import NonFiniteError, UserError, first_line
from gspo_lightning.objectives import Objective
from gspo_lightning.old_policy.snapshots import OldPolicy
from gspo_lightning.policy.policy import ModelSettings, Policy
from gspo_lightning.resume import atomic_file
from gspo_lightning.strategies.sharding import full_weights, in_step, is_sharded, total_norm
from gspo_lightning.types import MiniBatch

__all__ = ["Dump", "NonFiniteGuard", "OnNonFinite", "check_weights"]

OnNonFinite = Literal["stop", "skip"]

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Dump:
    """Everything that one update saw: it can be done again without the run (``gspo replay``)."""

    update: int
    """Number of the update, from 1."""
    values: dict[str, float]
    """What was measured: loss, gradient norm, largest ratio."""
    mini_batch: MiniBatch
    """This rank's rows: token ids, old log-probabilities, advantages."""
    logprobs: list[Tensor]
    """Log-probabilities [N, T] of each micro-batch under the weights before the update."""
    segments: list[Tensor | None]
    """[N, T] segment numbers of each micro-batch, for objectives over given segments."""
    rewards: dict[str, Any]
    """``{"<prompt>/<sample>": [hash of its token ids, reward or None]}`` of this rank's rollout batch."""
    rng: dict[str, int]
    """``seed`` and ``iteration``: every draw is a function of these."""
    model: ModelSettings
    objective: dict[str, Any]
    """Dotted class and settings."""
    temperature: float
    weights: dict[str, Tensor]
    longest: int = 0
    """Tokens that a row of the run could have: some rotary embeddings depend on it. 0: not written down."""
    """The policy before the update."""
    router_aux_loss_coef: float = 0.0
    """Weight of the routers' load-balancing loss."""

    def write(self, folder: Path, rank: int) -> Path:
        """Write to ``folder``; tensors and primitives only.

        Raises:
            OSError: it cannot be written.
        """
        path = folder / f"update-{self.update:08d}{f'-rank{rank}' if rank else ''}.pt"
        content = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        content |= {"mini_batch": self.mini_batch.state_dict(), "model": dataclasses.asdict(self.model)}
        with atomic_file(path) as file:
            torch.save(content, cast(BinaryIO, file))
        return path

    @classmethod
    def read(cls, path: Path, trust_remote_code: bool = False) -> Dump:
        """The inverse of :meth:`write`; runs no code from the file, nor does it decide whether a model's code is run.

        Raises:
            UserError: it is no dump.
        """
        try:
            content = torch.load(path, weights_only=True, map_location="cpu")
            content["mini_batch"] = MiniBatch.from_state_dict(content["mini_batch"])
            content["model"] = ModelSettings.of_file(content["model"], trust_remote_code)
            return cls(**content)
        except Exception as error:  # whatever a foreign or torn file makes torch raise
            cause = first_line(error)
            raise UserError("DUMP", f"{path} cannot be read: {cause}") from error


class NonFiniteGuard:
    """Decides what happens to an update with a NaN or infinity in it.

    Args:
        choice: ``stop`` the run, or ``skip`` the mini-batch.
        max_skips: so many mini-batches of a run are skipped; the next one stops it.
    """

    def __init__(self, choice: OnNonFinite, max_skips: int) -> None:
        if max_skips < 0:
            raise UserError("model.max_skips", f"is {max_skips}; it must be 0 or above")
        self.choice, self.max_skips, self.skipped = choice, max_skips, 0
        self._bad: list[Tensor] = []

    def watch(self, policy: nn.Module, arguments: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """A forward hook: objectives bound log-ratios, so an infinite log-probability need not show in the loss."""
        if torch.is_grad_enabled():
            batch, found = arguments[0], [output[0].detach()]
            old = batch.behaviour_logprobs if batch.old_from_source else batch.old_logprobs
            found += [old] if old is not None else []
            self._bad += [(~torch.isfinite(values) & batch.response_mask).sum() for values in found]

    def bad_logprobs(self) -> float:
        """Log-probabilities of this update, new and old, that were not finite."""
        count = float(torch.stack(self._bad).sum()) if self._bad else 0.0
        self._bad = []
        return count

    def skips(self, values: Mapping[str, float], update: int, device: torch.device, dump: Callable[[], Path]) -> bool:
        """Whether this update is left out; False if it is sound. The same answer on every rank.

        Args:
            values: loss, gradient norm ...
            update: its number, from 1.
            device: of the collective.
            dump: called with nothing, writes the mini-batch and returns its path.

        Raises:
            NonFiniteError: it is not sound, and must not or cannot be skipped any more.
        """
        bad = self.bad_logprobs()
        sound = bad == 0 and all(math.isfinite(value) for value in values.values())
        if not largest(int(not sound), device):
            return False
        path = dump()
        shown = ", ".join(f"{name} {value:g}" for name, value in values.items())
        shown += f", {bad:g} log-probabilities" if bad else ""
        what = f"update {update} is not finite ({shown}); the weights were not changed. Replay it: gspo replay {path}"
        if self.choice == "skip" and self.skipped < self.max_skips:
            self.skipped += 1
            log.warning("skipped %d of at most %d: the gradient of %s", self.skipped, self.max_skips, what)
            return True
        after = f" ({self.skipped} were skipped before)" if self.skipped else ""
        raise NonFiniteError(
            f"the gradient of {what}{after}\n"
            f"  fix: lower the learning rate, or go on without such mini-batches by model.on_nonfinite: skip "
            f"(at most model.max_skips of them)"
        )


def check_weights(policy: Policy, after: str) -> None:
    """The weights are finite.

    Raises:
        NonFiniteError: one is not; ``after`` says when.
    """
    sharded = is_sharded(policy)
    tensors = [p.detach() for p in policy.parameters() if p.is_floating_point()]  # packed weights are whole numbers
    if math.isfinite(total_norm(tensors, sharded=sharded, device=policy.device, norm_type=math.inf)):
        return
    bad = (n for n, p in policy.named_parameters() if not bool(torch.isfinite(local(p)).all()))
    name = next(bad, "a weight of another rank")
    raise NonFiniteError(
        f"{name} is not finite {after}; it was not saved, the last checkpoint is good.\n"
        f"  fix: lower the learning rate, or clip gradients (trainer.gradient_clip_val), and resume"
    )


@torch.no_grad()
def make_dump(
    batch: MiniBatch,
    policy: Policy,
    old_policy: OldPolicy,
    objective: Objective,
    temperature: float,
    *,
    on_policy: bool = False,
    **rest: Any,
) -> Dump:
    """A dump of an update that has not happened; ``rest`` are the fields that are known already."""
    logprobs, parts = [], []
    for part in in_step(policy, batch.micro_batches, policy.device):
        current = policy(part, temperature)[0]
        old = old_policy.logprobs(part, temperature, current if on_policy else None)
        logprobs.append(current.cpu())
        routes = part.routes if policy.routing is not None and policy.routing.replay != "off" else None
        parts.append(dataclasses.replace(part, old_logprobs=old, routes=routes).to("cpu"))
    parts, logprobs = parts[: len(batch.micro_batches)], logprobs[: len(batch.micro_batches)]
    kind, known = type(objective), dataclasses.fields(objective)
    settings = {f.name: getattr(objective, f.name) for f in known if f.init}
    described = {"class": f"{kind.__module__}.{kind.__qualname__}", "settings": settings}
    return Dump(
        mini_batch=dataclasses.replace(batch, micro_batches=parts),
        logprobs=logprobs,
        objective=described,
        temperature=temperature,
        weights=_weights(policy),
        **rest,
    )


def _weights(policy: Policy) -> dict[str, Tensor]:
    """Of the transformers model, whole, on the CPU."""
    if is_sharded(policy):
        return {name: value.cpu() for name, value in full_weights(policy, policy.device)}
    return {name: value.detach().cpu().clone() for name, value in policy.model.state_dict().items()}
