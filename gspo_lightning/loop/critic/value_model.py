"""Critic of a run: a model with a value head, its optimizers, and its updates on a rollout batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.core.distributed import all_sum, rank_and_world
from gspo_lightning.core.errors import NonFiniteError, UserError, check_number
from gspo_lightning.core.transfer import to_device
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.advantages.per_token import padded
from gspo_lightning.loop.critic.backbone import Backbone, another_backbone, copied_backbone, critic_settings
from gspo_lightning.loop.critic.loss import value_loss
from gspo_lightning.loop.critic.state import read_state, written_state
from gspo_lightning.loop.old_policy.frozen import without_routing
from gspo_lightning.loop.update.micro_batches import in_number
from gspo_lightning.loop.update.optimizers import fuse
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.load.trained_dtype import check_trained_dtype
from gspo_lightning.policy.packing.batches import filler
from gspo_lightning.policy.packing.memory import MemoryLimit
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.packing.rows import Row, store
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.layers import decoder_layers
from gspo_lightning.policy.strategies.sharding import (
    clip_gradients,
    in_step,
    is_sharded,
    reshard,
    total_norm,
    without_sync,
)
from gspo_lightning.policy.strategies.sharding_strategy import Sharding


class ValueModel:
    """Value model: predicts the remaining reward at each token of a response, the baseline of ``GAE``.

    It reads the same packed rows as the policy, so a prompt is computed once for all its responses. The head is a
    float32 layer initialized to zero, so every value starts at 0. On every rollout batch the critic is trained before
    the policy; the baseline is its values from before that training.

    Args:
        name_or_path: another model with the same tokenizer, as ``model.name_or_path``; None copies the policy as it is
            at the start of the run. Both use the LoRA adapters of ``model.lora``.
        share: read the policy's own hidden states; only the head is trained, and no value gradient reaches the
            policy. Costs next to nothing. Not with FSDP.
        lr: learning rate of AdamW (without weight decay). It follows the shape of ``model.lr_scheduler``: in each
            iteration it is multiplied by the policy's present rate divided by the configured one. During
            ``warm_up``, before that schedule begins, it is constant.
        warm_up: critic updates before the policy starts to learn, rounded up to whole iterations. Until then the
            policy and its learning rate schedule do not change (VC-PPO, arXiv 2503.01491).
        epochs: passes over each rollout batch, each with ``data.minibatches_per_rollout`` updates.
        clip: largest distance of a value from the one before the first update on a rollout batch, in reward units
            (PPO's value clipping; 0.2 is usual); None sets no limit.
        gradient_clip: largest norm of the critic's gradient; None sets no limit.
    """

    def __init__(
        self,
        name_or_path: str | None = None,
        share: bool = False,
        lr: float = 1e-5,
        warm_up: int = 0,
        epochs: int = 1,
        clip: float | None = None,
        gradient_clip: float | None = 1.0,
    ) -> None:
        check_number("model.critic.lr", lr, low=0.0, open_low=True)
        check_number("model.critic.warm_up", warm_up, low=0)
        check_number("model.critic.epochs", epochs, low=1)
        if clip is not None:
            check_number("model.critic.clip", clip, low=0.0, open_low=True)
        if gradient_clip is not None:
            check_number("model.critic.gradient_clip", gradient_clip, low=0.0, open_low=True)
        if share and name_or_path is not None:
            raise UserError(
                "model.critic.share",
                f"is true, but model.critic.name_or_path names another model ({name_or_path})",
                fix="set one of them",
            )
        self.name_or_path = name_or_path
        self.share = share
        self.lr = lr
        self.warm_up = warm_up
        self.epochs = epochs
        self.clip = clip
        self.gradient_clip = gradient_clip
        self.updates = 0
        """Updates made so far."""
        self.updates_judged = 0
        """Updates behind the values of the current rollout batch."""
        self.backbone: nn.Module | None = None
        """:class:`Backbone`, sharded if the policy is; None before :meth:`build`."""
        self.head = nn.Linear(1, 1)
        self.optimizers: list[torch.optim.Optimizer] = []
        """Optimizer of the head, and of the backbone unless it is shared."""
        self._reduces_last = False
        """True if the strategy may reduce gradients once, at an update's last micro-batch (see :meth:`_backward`)."""

    # building ----------------------------------------------------------------------------------------------------

    def build(
        self,
        policy: Policy,
        settings: ModelSettings | None = None,
        *,
        longest: int = 0,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        """Build the model and its optimizers. Call once, at the start of the run, while the policy is whole.

        Args:
            policy: of the run.
            settings: of the policy; needed if the critic is another model.
            longest: largest number of tokens of a row.
            device: training device; None: the policy's.
            dtype: autocast dtype in training; None: no autocast.
            sharding: shards the policy, and so the critic; None keeps it whole.

        Raises:
            UserError: the other model cannot be loaded, does not fit, or has weights to train in bfloat16 or float16.
        """
        device = policy.device if device is None else device
        if self.share:
            backbone = Backbone(policy)
        elif self.name_or_path is None:
            backbone = copied_backbone(policy, own_frozen=sharding is not None)
        else:
            other = critic_settings(settings if settings is not None else ModelSettings(), self.name_or_path)
            backbone = another_backbone(other, policy, longest=longest, device=device, dtype=dtype)
        self._policy = backbone.policy
        width = int(backbone.policy.model.config.get_text_config().hidden_size)
        self.head = nn.Linear(width, 1, dtype=torch.float32, device=device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.backbone = backbone if self.share else self._placed(backbone, device, sharding)
        self.optimizers = []
        for parameters in (list(self.head.parameters()), self.trained_backbone()):
            if parameters:
                optimizer = torch.optim.AdamW(parameters, lr=self.lr, weight_decay=0.0)
                fuse(optimizer)
                self.optimizers.append(optimizer)

    def _placed(self, backbone: Backbone, device: torch.device, sharding: Sharding | None) -> nn.Module:
        """Move the critic's own backbone to the device, or shard it like the policy."""
        placed: nn.Module
        if sharding is None:
            placed = backbone.to(device)
        else:
            placed = sharding.spread(backbone, decoder_layers(backbone.policy))
            self._reduces_last = not sharding.reduces_each
        fix = "use model.dtype: float32 with trainer.precision: bf16-mixed, or a critic that is saved in float32"
        check_trained_dtype(placed, "model.critic", fix)
        return placed

    def trained_backbone(self) -> list[nn.Parameter]:
        """Return the trained parameters below the head."""
        if self.share or self.backbone is None:
            return []
        return [p for p in self.backbone.parameters() if p.requires_grad]

    @property
    def warming(self) -> bool:
        """True if the policy must wait: the critic behind the present values has had fewer than ``warm_up`` updates."""
        return self.updates_judged < self.warm_up

    @property
    def sharded(self) -> bool:
        """True if the critic's own parameters are sharded over ranks."""
        return self.backbone is not None and not self.share and is_sharded(self.backbone)

    @property
    def device(self) -> torch.device:
        """Device of the value head."""
        return self.head.weight.device

    # values ------------------------------------------------------------------------------------------------------

    def values(self, batch: MicroBatch) -> Tensor:
        """Return values [N, T] float32 of the state before each response token; 0 beyond a row's response."""
        assert self.backbone is not None, "build() was not called"
        with torch.no_grad() if self.share else nullcontext():
            hidden, rows, steps, collect = self.backbone(batch)
        with torch.autocast(hidden.device.type, enabled=False):
            predictions: Tensor = collect(self.head(hidden.float()).squeeze(-1))  # [M], one per response token
        values = torch.zeros(batch.response_mask.shape, device=predictions.device)
        return values.index_put((rows, steps), predictions)

    @torch.no_grad()
    def judge(self, batch: RolloutBatch) -> None:
        """Fill ``values`` of every rollout of this rank."""
        assert self.backbone is not None
        self.updates_judged = self.updates
        pairs = list(itertools.chain.from_iterable(batch.parts()))
        row_values: list[tuple[Row, Tensor]] = []
        with without_routing(self._policy):
            for (part, rows), is_own in in_step(self.backbone, pairs, self.device):
                if not is_own:  # takes part in the gathers of another rank's forward pass
                    self.values(filler(part).to(self.device))
                    continue
                values = self.values(part.to(self.device)).cpu()
                row_values += zip(rows, values, strict=False)  # a filler of the batch has no rows
        store("values", row_values)

    # learning ----------------------------------------------------------------------------------------------------

    def learn(
        self, batch: RolloutBatch, *, lr_factor: float = 1.0, memory: MemoryLimit | None = None
    ) -> dict[str, float]:
        """Train on a rollout batch whose rollouts have ``values`` and ``returns``.

        Gradients do not depend on how mini-batches were cut or on how many ranks hold them.

        Args:
            batch: of this rank.
            lr_factor: multiplies the learning rate after the warm-up.
            memory: cuts an update that does not fit into smaller pieces; None: running out of memory is an error.

        Returns:
            Metrics under their tags: means over the updates.

        Raises:
            NonFiniteError: a gradient is not finite; the critic stays as it was before that update.
            InfrastructureError: a row does not fit into memory, or a rank of several ran out; the critic is unchanged.
        """
        lr = self.lr if self.warming else self.lr * lr_factor
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        norm_sum = 0.0
        with without_routing(self._policy), torch.enable_grad():
            for _ in range(self.epochs):
                for pairs in batch.parts():
                    update_sums, norm = self._update(pairs, memory)
                    sums = sums + update_sums
                    norm_sum += norm
        loss, clipped, tokens = all_sum(sums).tolist()
        update_count = self.epochs * len(batch.mini_batches)
        return {
            "critic/loss": loss / max(tokens, 1.0),
            "critic/clip": clipped / max(tokens, 1.0),
            "critic/gradient_norm": norm_sum / update_count,
            "critic/lr": lr,
            "critic/updates": float(self.updates),
        }

    def _update(
        self, pairs: Sequence[tuple[MicroBatch, Sequence[Row]]], memory: MemoryLimit | None
    ) -> tuple[Tensor, float]:
        """Take one optimizer step; return this rank's sums [loss, clipped, tokens] and the gradient norm."""
        parts = [part.to(self.device) for part, _ in pairs]
        rows = list(itertools.chain.from_iterable(part_rows for _, part_rows in pairs))
        if memory is None:
            sums = self._backward(parts, rows)
        else:
            memory.packed = self._policy.packed
            memory.sharded = self.sharded
            work = partial(self._backward, rows=rows)
            sums = memory.retry_smaller(work, parts, f"critic update {self.updates + 1}")
        return sums, self._step()

    def _backward(self, parts: Sequence[MicroBatch], rows: Sequence[Row]) -> Tensor:
        """Clear gradients and compute those of one update.

        Args:
            parts: micro-batches, on the critic's device.
            rows: of all micro-batches, in their order; a filler has none.
        """
        assert self.backbone is not None
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        tokens = torch.stack([part.response_mask.sum() for part in parts]).sum().double()
        parts = in_number(parts, self.device, self._policy.context)
        # the mean over the tokens of all ranks; a sharding strategy divides the sum of gradients by their number
        world = rank_and_world()[1] if self.sharded else 1
        scale = (world / all_sum(tokens).clamp(min=1)).float()
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for i, (part, (old_values, returns)) in enumerate(zip(parts, _targets(parts, rows), strict=True)):
            is_last = i == len(parts) - 1
            with without_sync(self.backbone) if self._reduces_last and not is_last else nullcontext():
                loss, clipped = self._loss(part, old_values, returns)
                with torch.autocast(self.device.type, enabled=False):
                    (scale * loss).backward()
            sums[:2] += torch.stack([loss.detach().double(), clipped.double()])
        sums[2] = tokens
        return sums

    def _loss(self, part: MicroBatch, old_values: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
        values = self.values(part)
        old_values, returns = to_device((old_values, returns), values.device)
        return value_loss(values, old_values, returns, part.response_mask, self.clip)

    def _step(self) -> float:
        """Reduce gradients that no strategy reduces, clip, step; return the norm before clipping."""
        replicated = list(self.head.parameters())
        shards = []
        if self.sharded:
            shards = self.trained_backbone()
        else:
            replicated += self.trained_backbone()
        _, world = rank_and_world()
        if world > 1:
            for parameter in replicated:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = all_sum(gradient) / (world if self.sharded else 1)  # takes back the factor of the loss
        gradients = [p.grad for p in replicated if p.grad is not None]
        norm = total_norm(gradients, sharded=False, device=self.device)
        if self.sharded:
            gradients = [p.grad for p in shards if p.grad is not None]
            norm = math.hypot(norm, total_norm(gradients, sharded=True, device=self.device))
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"the gradient of the critic is not finite in its update {self.updates + 1} (norm {norm}); its weights "
                f"were not changed\n  fix: lower model.critic.lr, or check the reward"
            )
        if self.gradient_clip is not None:
            clip_gradients([*self.head.parameters(), *self.trained_backbone()], norm, self.gradient_clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return norm

    # checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return trained weights, optimizers and update counts, whole, on the writing rank; a collective if sharded."""
        if self.sharded:
            assert self.backbone is not None
            reshard(self.backbone)
        state = written_state(None if self.share else self.backbone, self.head, self.optimizers)
        return {"updates": self.updates, "judged": self.updates_judged, "share": self.share, **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned, on any number of ranks.

        Raises:
            UserError: the checkpoint was written with another value of ``share``.
        """
        if bool(state["share"]) != self.share:
            raise UserError(
                "model.critic.share",
                f"is {self.share}, but the checkpoint was written with {not self.share}",
                fix="resume with the same value, or start a new run",
            )
        if self.sharded:
            assert self.backbone is not None
            reshard(self.backbone)
        read_state(state, None if self.share else self.backbone, self.head, self.optimizers)
        self.updates = int(state["updates"])
        self.updates_judged = int(state["judged"])


def _targets(parts: Sequence[MicroBatch], rows: Sequence[Row]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield old values and returns [N, T] float32 of each micro-batch, perhaps a piece of one that did not fit."""
    remaining = iter(rows)
    for part in parts:
        count, width = part.response_mask.shape
        part_rows = list(itertools.islice(remaining, count)) if part.weight else []
        if part_rows:
            yield _padded(part_rows, "values", width), _padded(part_rows, "returns", width)
        else:
            zeros = torch.zeros_like(part.response_mask, dtype=torch.float32)
            yield zeros, zeros


def _slice(row: Row, name: str) -> Tensor:
    """Return a row's part of a field of its rollout, which must be there: zeros would pass for an estimate."""
    values: Tensor | None = getattr(row.rollout, name)
    if values is None:
        raise ValueError(f"response {row.rollout.prompt.id}/{row.rollout.sample} (prompt/sample) has no {name}")
    return row.slice(values)


def _padded(rows: Sequence[Row], name: str, width: int) -> Tensor:
    """Return a field of the rows' rollouts, [N, width] float32."""
    values = padded([_slice(row, name) for row in rows]).float()
    return nn.functional.pad(values, (0, width - values.shape[1]))
