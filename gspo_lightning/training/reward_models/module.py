"""LightningModule of a reward model with its Bradley-Terry loss.

One Lightning batch is a micro-batch, and ``trainer.accumulate_grad_batches`` is set to the number of them in an
optimizer step, so ``global_step``, clipping, schedules, precision and strategies keep their usual meaning. The loss of
a micro-batch is its sum over pairs divided by the pairs of the whole step: how a step is split, and over how many
ranks, does not change its gradient.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gspo_lightning.core.distributed import all_gather_objects, all_sum
from gspo_lightning.core.errors import NonFiniteError, UserError, check_number
from gspo_lightning.core.host_memory import keep_freed_memory
from gspo_lightning.core.signatures import WholeSignature
from gspo_lightning.loop.update.optimizers import fuse, settings_of_optimizer, take_closure, undecayed
from gspo_lightning.loop.update.schedules import schedule
from gspo_lightning.policy.adapters.lora import frozen_norm
from gspo_lightning.policy.disable_dropout import disable_dropout, hold
from gspo_lightning.policy.load.classifier import check_reading, set_pad
from gspo_lightning.policy.load.loading import context_length, load_tokenizer
from gspo_lightning.policy.load.model_settings import BaseModelSettings, ModelSettings
from gspo_lightning.policy.load.trained_dtype import check_dtype, check_trained_dtype
from gspo_lightning.policy.strategies.checks import check_optimizer
from gspo_lightning.policy.strategies.layers import compute_dtype
from gspo_lightning.policy.strategies.optimizer_trial import try_steps
from gspo_lightning.policy.strategies.sharding import clip_gradients, total_norm
from gspo_lightning.resume import close_epoch, flush, reopen_epoch
from gspo_lightning.training.reward_models.data import PreferenceDataModule
from gspo_lightning.training.reward_models.held_out import HeldOut, judge
from gspo_lightning.training.reward_models.model import layers_of, load_reward_model
from gspo_lightning.training.reward_models.pair_batches import PairBatch, alone_and_padded
from gspo_lightning.training.reward_models.weights import check_frozen, trained_only


def bradley_terry(chosen: Tensor, rejected: Tensor, margins: Tensor, center: float = 0.0) -> Tensor:
    """Return the loss of each pair, [N] nats: ``-log sigmoid(r_c - r_r - m) + center (r_c + r_r)^2``.

    The first term is the negative log-likelihood of Bradley and Terry (1952) with the margin of Llama 2
    (arXiv 2307.09288, Eq. 2). It depends on differences only; the second term keeps the mean reward of a pair near 0
    (Eisenstein
    et al., arXiv 2312.09244, TRL's ``center_rewards_coefficient``).

    Args:
        chosen: [N] rewards of the preferred answers, float32 or wider.
        rejected: [N] rewards of the others.
        margins: [N], reward units.
        center: coefficient of the second term, >= 0.

    >>> import torch
    >>> bradley_terry(torch.tensor([1.0]), torch.tensor([1.0]), torch.zeros(1), center=0.01)
    tensor([0.7331])
    """
    loss = -F.logsigmoid(chosen - rejected - margins)
    return loss + center * (chosen + rejected).square() if center else loss


_MEASURED = ("loss", "accuracy", "margin", "reward")


class RewardModule(LightningModule):
    """A sequence classifier with one output, trained to give preferred answers the higher reward.

    Args:
        name_or_path: hub id or local folder in transformers format, or a built-in tiny model (``tiny-qwen3``,
            ``tiny-qwen3-moe``). A causal model gets a head that starts at zero; a reward model keeps its own.
        optimizer: built from the trainable parameters. Its weight decay is 0 unless it is set.
        lr_scheduler: stepped once per optimizer step; None keeps the learning rate constant.
        center_rewards_coefficient: weight of the squared sum of a pair's rewards in the loss, which keeps their mean
            near 0 (arXiv 2312.09244 uses 0.01); 0 leaves it out.
        **model: how the model is loaded; the fields of
            :class:`~gspo_lightning.policy.load.model_settings.BaseModelSettings`.
    """

    __signature__ = WholeSignature(BaseModelSettings)

    def __init__(
        self,
        name_or_path: str = BaseModelSettings.name_or_path,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        center_rewards_coefficient: float = 0.0,
        **model: Any,
    ) -> None:
        super().__init__()
        check_number("model.center_rewards_coefficient", center_rewards_coefficient, low=0.0)
        shared = BaseModelSettings(name_or_path, **model)
        self.settings = ModelSettings(**vars(shared))
        self.build_optimizer = optimizer
        self.build_scheduler = lr_scheduler
        self.center = center_rewards_coefficient
        self.provenance: dict[str, Any] = {}
        """Provenance of a run, for its checkpoints."""
        self.evaluations: list[tuple[int, HeldOut]] = []
        """(Optimizer step, held-out results) of this process, in order."""
        self.last_update: dict[str, float] = {}
        self.held_out_margins: list[float] = []
        """Chosen minus rejected reward of each held-out pair [N], at the last evaluation."""
        self._whole: dict[str, Tensor] | None = None
        self._sums = torch.zeros(len(_MEASURED) + 1, dtype=torch.float64)
        self._rewards: list[tuple[int, float, float]] = []
        """(Number of a held-out pair, chosen reward, rejected reward) on this rank."""
        self.strict_loading = self.settings.lora is None

    # building ----------------------------------------------------------------------------------------------------

    def prepare(self, data: PreferenceDataModule) -> None:
        """Load the tokenizer and read the pairs: errors in the data are found before the weights are loaded.

        Raises:
            UserError: as :meth:`PreferenceDataModule.read`, or all weights would be trained in bfloat16.
        """
        check_dtype(self.settings)
        self.tokenizer = load_tokenizer(self.settings)
        data.read(self.tokenizer, context_length(self.settings))
        self.data = data

    def configure_model(self) -> None:
        """Load the model; FSDP2 shards every layer separately."""
        if hasattr(self, "model"):
            return
        self.model = load_reward_model(self.settings)
        set_pad(self.model, self.tokenizer.pad_token_id)
        self.disabled_dropout = disable_dropout(self.model)
        self.train()
        self.base_norm = frozen_norm(self.model.base_model) if self.settings.lora is not None else 0.0
        strategy = self.trainer.strategy
        if isinstance(strategy, ModelParallelStrategy):
            policy = MixedPrecisionPolicy(
                compute_dtype(str(self.trainer.precision)), torch.float32, cast_forward_inputs=False
            )
            for layer in layers_of(self.model):
                fully_shard(layer, mesh=strategy.device_mesh["data_parallel"], mp_policy=policy)
            fully_shard(self.model, mesh=strategy.device_mesh["data_parallel"], mp_policy=policy)

    def configure_optimizers(self) -> Any:
        """Return the optimizer over the trainable parameters, with its schedule."""
        check_trained_dtype(self.model)

        def build(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
            instance = undecayed(self.build_optimizer)(weights)
            take_closure(instance)
            fuse(instance)
            return instance

        with settings_of_optimizer():
            optimizer = build([p for p in self.model.parameters() if p.requires_grad])
        check_optimizer(optimizer, self.model)
        try_steps(build, self.model)
        if self.build_scheduler is None:
            return optimizer
        config = schedule(self.build_scheduler(optimizer))
        if "monitor" in config:
            raise UserError(
                "model.lr_scheduler",
                "watches a metric, but a reward model is trained for few epochs, most often for one",
                fix="use a schedule over steps, such as torch.optim.lr_scheduler.LinearLR",
            )
        return {"optimizer": optimizer, "lr_scheduler": config}

    def setup(self, stage: str) -> None:
        """Make Lightning accumulate the micro-batches of an optimizer step."""
        self.trainer.accumulate_grad_batches = self.data.micro_batches(self.trainer.world_size)

    # the loop ----------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> RewardModule:
        """Set train mode like any module, but keep in eval mode the modules that would be random in train mode."""
        super().train(mode)
        if mode and hasattr(self, "disabled_dropout") and self.disabled_dropout.held:
            hold(self.model)
        return self

    def on_fit_start(self) -> None:
        """Compare the reward of an answer alone and padded in a batch, on the device and in the mode of training.

        Raises:
            UserError: the rewards differ.
        """
        keep_freed_memory(self.device)
        pairs = alone_and_padded(self.data.rows["train"], self.tokenizer)
        if pairs is not None:
            with self.trainer.precision_plugin.forward_context():
                alone, beside = (batch.to(self.device).inputs for batch in pairs)
                check_reading(self.model, alone, beside)

    def forward(self, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """Return rewards of the chosen and of the rejected answers, each [N] float32."""
        logits = self.model(**batch.inputs).logits
        chosen, rejected = logits[:, 0].float().chunk(2)
        return chosen, rejected

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        """Return the share of a micro-batch in the mean loss over the pairs of its optimizer step.

        Lightning divides by the micro-batches of a step, and strategies by the ranks: both are multiplied back.
        """
        chosen, rejected = self(batch)
        losses = bradley_terry(chosen, rejected, batch.margins, self.center) * batch.weights
        self._measure(losses, chosen, rejected, batch.weights)
        shares = self.trainer.accumulate_grad_batches * self.trainer.world_size
        return losses.sum() * (shares / batch.total)

    @torch.no_grad()
    def _measure(self, losses: Tensor, chosen: Tensor, rejected: Tensor, weights: Tensor) -> None:
        """Add a micro-batch to the sums of :data:`_MEASURED`, and its number of pairs; all arguments are [N]."""
        margins = chosen - rejected
        right = (margins > 0).float() + 0.5 * (margins == 0).float()
        means = (chosen + rejected) * 0.5
        values = (losses, right * weights, margins * weights, means * weights, weights)
        self._sums = self._sums.to(losses.device) + torch.stack([value.double().sum() for value in values])

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the gradient norm; a NaN or infinity stops the run before the weights change.

        Raises:
            NonFiniteError: the norm is not finite.
        """
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self._norm = total_norm(gradients, sharded=self._sharded, device=self.device)
        if not math.isfinite(self._norm):
            raise NonFiniteError(
                f"the gradient of update {self.global_step + 1} is not finite: the weights are those of update "
                f"{self.global_step}\n  fix: lower model.optimizer.lr, or look for extreme values of the column margin"
            )

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm over all ranks that was measured before, or element by element."""
        if gradient_clip_val:
            clip_gradients(self.model.parameters(), self._norm, float(gradient_clip_val), gradient_clip_algorithm)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Take one step, then log its measurements over all micro-batches and ranks."""
        super().optimizer_step(*args, **kwargs)
        local_sums = self._sums.float() if self.device.type == "mps" else self._sums  # MPS has no float64
        *sums, count = all_sum(local_sums).tolist()
        self._sums = torch.zeros_like(self._sums)
        values = {f"reward_model/{name}": value / count for name, value in zip(_MEASURED, sums, strict=True)}
        values["optim/gradient_norm"] = self._norm
        values["optim/lr"] = float(self.trainer.optimizers[0].param_groups[0]["lr"])
        self.last_update = values
        self._log(values, self.global_step + 1)  # Lightning counts the step after this hook

    @property
    def _sharded(self) -> bool:
        return isinstance(self.trainer.strategy, ModelParallelStrategy)

    def _log(self, values: dict[str, float], step: int) -> None:
        for logger in self.loggers:
            logger.log_metrics(values, step)
        self.trainer.callback_metrics.update({tag: torch.tensor(value) for tag, value in values.items()})

    # held-out pairs ----------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        """Clear earlier rewards."""
        self._rewards = []

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Record rewards of held-out pairs; fillers are left out."""
        chosen, rejected = self(batch)
        rows = zip(batch.numbers.tolist(), chosen.tolist(), rejected.tolist(), batch.weights.tolist(), strict=True)
        self._rewards += [(number, c, r) for number, c, r, weight in rows if weight > 0]

    def on_validation_epoch_end(self) -> None:
        """Compute and log held-out results from the rewards of all ranks."""
        rewards = sorted(pair for of_rank in all_gather_objects(self._rewards) for pair in of_rank)
        rows = [self.data.rows["val"][number] for number, _, _ in rewards]
        held_out = judge(
            chosen=[chosen for _, chosen, _ in rewards],
            rejected=[rejected for _, _, rejected in rewards],
            margins=[row.margin for row in rows],
            prompts=[row.prompt for row in rows],
        )
        self.evaluations.append((self.global_step, held_out))
        self.held_out_margins = [chosen - rejected for _, chosen, rejected in rewards]
        self._log(
            {
                "reward_model/val_accuracy": held_out.accuracy.value,
                "reward_model/val_loss": held_out.loss,
                "reward_model/val_margin": held_out.margin,
                "reward_model/val_ece": held_out.ece,
            },
            self.global_step,
        )

    # weights -----------------------------------------------------------------------------------------------------

    def on_fit_end(self) -> None:
        """Evaluate the final weights, unless that is done, and gather sharded ones. All ranks still take part."""
        if not self.evaluations or self.evaluations[-1][0] != self.global_step:
            self.eval()
            self.on_validation_epoch_start()
            with torch.no_grad(), self.trainer.precision_plugin.forward_context():
                for number, batch in enumerate(self.data.val_dataloader()):
                    self.validation_step(batch.to(self.device), number)
            self.on_validation_epoch_end()
            self.train()
        if self._sharded:
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            self._whole = cast(dict[str, Tensor], get_model_state_dict(self, options=options))

    def whole_weights(self) -> dict[str, Tensor]:
        """Return ``{"model.<name>": tensor}`` after training; sharded weights on the first rank only."""
        return self.state_dict() if self._whole is None else self._whole

    # checkpoints -------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Record the model's settings; with adapters, keep only trained weights. Loggers are flushed first."""
        trained_only(checkpoint, self)
        if self.global_step % self.data.steps(self.trainer.world_size):  # max_steps or max_time may end an epoch early
            reopen_epoch(checkpoint)
        flush(self.loggers)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse adapters of another model.

        Raises:
            UserError: they were trained on other weights.
        """
        close_epoch(checkpoint)
        check_frozen(checkpoint, self)
        self._recount(checkpoint)

    def _recount(self, checkpoint: dict[str, Any]) -> None:
        """Recompute Lightning's count of micro-batches, whose number per step may differ in this run."""
        loop = checkpoint.get("loops", {}).get("fit_loop")
        if loop is None:
            return
        world = self.trainer.world_size
        position = checkpoint["global_step"] % self.data.steps(world) * self.data.micro_batches(world)
        batches = loop["epoch_loop.batch_progress"]
        batches["current"] = dict.fromkeys(batches["current"], position)
        batches["total"] = dict.fromkeys(batches["total"], batches["total"]["ready"])
