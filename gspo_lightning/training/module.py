"""GSPOModule: the LightningModule of policy, old policy and objective; :meth:`GSPOModule.training_step` is the loop.

One Lightning epoch is one RL iteration, one batch is one mini-batch is one optimizer step (docs/architecture.md).
Between two iterations :mod:`gspo_lightning.loop.experience.iteration` runs: to it this is a ``TrainingState``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from gspo_lightning.core.distributed import from_first_rank, rank_and_world
from gspo_lightning.core.signatures import WholeSignature
from gspo_lightning.core.types import MicroBatch, MiniBatch
from gspo_lightning.data.prompts.specials import check_stop_tokens
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.metrics.sums import Level, MetricSums
from gspo_lightning.loop.metrics.update_metrics import UpdateMetrics
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs, OldLogProbsChoice
from gspo_lightning.loop.old_policy.noise import check_ratio_noise
from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.loop.old_policy.reference import ReferencePolicy
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs, ResidentSnapshot
from gspo_lightning.loop.old_policy.teacher import Teacher
from gspo_lightning.loop.update.dump import make_dump
from gspo_lightning.loop.update.loss import LossTerms
from gspo_lightning.loop.update.loss_scale import Scale, overflows, scaler_of
from gspo_lightning.loop.update.micro_batches import all_but_last_backward, backward_here
from gspo_lightning.loop.update.nonfinite import NonFiniteGuard, OnNonFinite, check_weights, finite_by_norms
from gspo_lightning.loop.update.router_loss import changed_routes
from gspo_lightning.loop.update.schedules import lr_factor, step_plateaus
from gspo_lightning.loop.update.update import Update
from gspo_lightning.objectives import GSPO, Objective
from gspo_lightning.objectives.trial import learns_without_advantage
from gspo_lightning.policy.adapters.lora import frozen_norm
from gspo_lightning.policy.averaging import holds_average, training_weights
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.row_isolation import probe, probe_length
from gspo_lightning.policy.routing import replay_word
from gspo_lightning.policy.strategies.sharding import clip_gradients, is_sharded, total_norm
from gspo_lightning.policy.strategies.sharding_strategy import ddp_of, no_backward_sync, sharding_of
from gspo_lightning.resume import close_epoch, flush, reopen_epoch
from gspo_lightning.training.build import build_critic, build_optimizers, build_policy, segments_of
from gspo_lightning.training.checkpoint import RunRecord
from gspo_lightning.training.checks import check_run, check_sampling
from gspo_lightning.training.cold_start import ColdStart
from gspo_lightning.training.data import PromptDataModule
from gspo_lightning.training.policy_module import PolicyModule
from gspo_lightning.training.teacher import TeacherModel, load_teacher, taught_by
from gspo_lightning.training.trainer_checks import check_accumulation, check_measured, check_monitor, iterations


class GSPOModule(PolicyModule):
    """A policy trained with a sequence- or token-level objective against its own frozen snapshot.

    Args:
        name_or_path: hub id, local folder in transformers format, GGUF file, or a built-in tiny model (``tiny-qwen3``,
            ``tiny-qwen3-moe``).
        objective: turns log-probabilities and advantages into a loss.
        old_policy: how the frozen snapshot is kept.
        old_logprobs: ``auto`` takes those of the rollout source if their measured noise is below a tenth of the clip
            range, and else recomputes them in the training layout; ``source`` and ``recompute`` force one of the two.
        optimizer: built from the policy's trainable parameters. Its weight decay is 0 unless it is set.
        lr_scheduler: stepped once per update of the policy (``ReduceLROnPlateau`` of ``lightning.pytorch.cli``: once
            per iteration, or per evaluation if it monitors one); None keeps the learning rate constant.
        critic: learns the values that ``data.advantages: GAE`` needs; None: advantages come from groups alone.
        cold_start: supervised steps before reinforcement learning, made once and cached; None starts from the model.
        teacher: model to distil from with ``objective.distill_coef`` (docs/distillation.md): a hub id, a folder, or the
            URL of a server; or a mapping of :class:`~gspo_lightning.training.teacher.TeacherModel`. Never trained.
        ess_step_scaling: multiply the learning rate of an update by the square root of its effective sample size, the
            metric correction/effective_sample_size (VCPO, arXiv 2602.17616); needs ``objective.correction``.
        segment_delimiters: texts that end a segment, for ``Segment`` with ``by: given`` (for example a line feed).
        allow_unusual_clip: accept a clip range of the wrong scale for the objective's level.
        histogram_every: optimizer steps between two sets of histograms, after those of the first; 0 writes none.
        metrics: set of metrics to compute: ``full``, ``basic`` (nothing by sign or token, nothing about the weights) or
            ``off`` (loss, gradient norm, rewards). Training is the same, bit for bit.
        on_nonfinite: how to treat an update with a NaN or infinity: ``stop`` the run, or ``skip`` the
            mini-batch. Either way the weights stay as they are and the mini-batch is written to ``dumps/``.
        max_skips: largest number of mini-batches that a run may skip.
        routing_replay: mixtures of experts: in training, send every token to the experts it went to in the forward pass
            of the old policy (``R2``) or in the rollout (``R3``), weighted by live scores; ``off`` routes freely.
        router_aux_loss_coef: mixtures of experts: weight of the routers' load-balancing loss over all tokens of a
            mini-batch (Switch Transformer; Qwen3-MoE's form), 0 leaves it out. It costs one more forward pass.
        router_metrics: measure load, confidence and changes of routers; None: if the model has routers.
        **model: how the model is loaded; the fields of
            :class:`~gspo_lightning.policy.load.model_settings.ModelSettings`.
    """

    __signature__ = WholeSignature(ModelSettings, computed=("mask_padding",))

    def __init__(
        self,
        name_or_path: str = ModelSettings.name_or_path,
        objective: Objective | None = None,
        old_policy: OldPolicy | None = None,
        old_logprobs: OldLogProbsChoice = "auto",
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        critic: ValueModel | None = None,
        cold_start: ColdStart | None = None,
        teacher: TeacherModel | str | None = None,
        ess_step_scaling: bool = False,
        segment_delimiters: list[str] | None = None,
        allow_unusual_clip: bool = False,
        histogram_every: int = 20,
        metrics: Level = "full",
        on_nonfinite: OnNonFinite = "stop",
        max_skips: int = 3,
        routing_replay: Literal["off", "R2", "R3"] | bool = "off",
        router_metrics: bool | None = None,
        router_aux_loss_coef: float = 0.0,
        **model: Any,
    ) -> None:
        settings = ModelSettings(name_or_path, mask_padding=True, **model)
        super().__init__(settings, cold_start)
        self.objective = objective if objective is not None else GSPO()
        self.every_row_learns = learns_without_advantage(self.objective)
        self.old_policy = old_policy if old_policy is not None else CachedLogProbs()
        self.old_logprobs = OldLogProbs(old_logprobs, self.objective, exact=settings.batch_invariant)
        self.reference: ReferencePolicy | None = None
        self.teacher_model = taught_by(teacher)
        self.teacher: Teacher | None = None
        self.critic = critic
        self.build_optimizer = optimizer
        self.build_scheduler = lr_scheduler
        self.segment_delimiters = segment_delimiters or []
        self.ess_step_scaling = ess_step_scaling
        self.allow_unusual_clip = allow_unusual_clip
        self.histogram_every = histogram_every
        self.routing_replay = replay_word(routing_replay)
        self.router_metrics = router_metrics
        self.router_aux_loss_coef = router_aux_loss_coef
        self.update_metrics = UpdateMetrics(metrics)
        self.guard = NonFiniteGuard(on_nonfinite, max_skips)
        self.run = RunRecord(self.guard, self.update_metrics, self.old_logprobs, self.evaluator, critic)
        self.before_update: list[Callable[[dict[str, float]], None]] = []
        """Callbacks that get the metrics of an update, before the optimizer steps."""
        self.last_update: dict[str, float] = {}
        self._checked: Trainer | None = None
        self.restored: dict[str, Any] | None = None
        """A checkpoint with averaged weights, until a callback has taken them."""

    # queries ---------------------------------------------------------------------------------------------------

    @property
    def iterations(self) -> int | None:
        """Number of iterations of this run; None without a limit."""
        return iterations(self.trainer, self.data.settings.updates_per_iteration)

    @property
    def lr_factor(self) -> float:
        """The current learning rate as a factor of its initial value."""
        return lr_factor(self.policy_optimizer)

    @property
    def critic_only(self) -> bool:
        """True while updates train the critic alone: the policy waits for the end of its warm-up."""
        return self.critic is not None and self.critic.warming

    def on_policy(self, batch: MiniBatch) -> bool:
        """True for the first update on its rollouts, if they come from a snapshot that equals the current policy."""
        return batch.index == 0 and self.old_policy.due(batch.iteration) and not self.old_logprobs.as_behaviour

    def terms(self) -> LossTerms:
        """Return the inputs of this run's loss."""
        temperature = self.data.settings.temperature
        router_coef = self.router_aux_loss_coef
        segments = partial(segments_of, self.objective, self.segment_delimiters, self.tokenizer)
        return LossTerms(self.policy, self.old_policy, self.objective, temperature, segments, router_coef, self.teacher)

    # building ----------------------------------------------------------------------------------------------------

    def prepare(self, stage: str, data: PromptDataModule, trainer: Trainer) -> None:
        """Check the settings of trainer, model and data together, once per trainer, then as the base class."""
        if stage == "fit" and self._checked is not trainer:
            check_run(data, self, trainer)
            self._checked = trainer
        super().prepare(stage, data, trainer)

    def setup(self, stage: str) -> None:
        """Make the cold start if there is none yet, and build the policy.

        Not in :meth:`configure_model`: there Lightning watches every operation, and makes all tensors on the GPU.
        """
        self.prepare(stage, self.data, self.trainer)
        self.data.bind(self, self.folder, distributions=self.update_metrics.level == "full")
        self.old_logprobs.ahead = self.data.settings.max_staleness > 0
        with self.trainer.strategy.model_sharded_context(), self.trainer.precision_plugin.module_init_context():
            self.configure_model()

    def _keeps_reference(self, data: PromptDataModule) -> bool:
        return getattr(self.objective, "kl_coef", 0.0) > 0 or data.settings.kl_in_reward > 0

    def keeps_start(self, data: PromptDataModule) -> bool:
        """True with adapters, and if a KL term is measured to the start."""
        return self._keeps_reference(data) or super().keeps_start(data)

    def configure_model(self) -> None:
        """Load the policy; shard it, the old policy and the reference if the strategy does so."""
        if hasattr(self, "policy"):
            return
        settings = self.start()
        strategy = self.trainer.strategy
        sharding = sharding_of(strategy)
        dtype = self.autocast_dtype(strategy.root_device)
        self.policy = self.fitting(build_policy(
            settings, replay=self.routing_replay, router_metrics=self.router_metrics,
            router_aux_loss_coef=self.router_aux_loss_coef, longest=self.data.longest, device=strategy.root_device,
            dtype=dtype,
            on_first_rank=sharding is not None and sharding.loads_on_first_rank and self.critic is None,
            init_context=strategy.tensor_init_context,
        ))  # fmt: skip
        self.update_metrics.watch(self.policy)
        self.policy.register_forward_hook(self.guard.watch)
        self.base_norm = from_first_rank(lambda: frozen_norm(self.policy)) if settings.lora is not None else 0.0
        build_critic(self.critic, self.policy, settings, self.trainer, longest=self.data.longest, dtype=dtype)
        shard = None if sharding is None else sharding.shard
        self.reference = ReferencePolicy(self.policy, shard) if self._keeps_reference(self.data) else None
        if shard is not None:
            self.old_policy.shard(self.policy, shard)
            self.policy = shard(self.policy)
            if self.reference is not None:
                self.reference.follow(self.policy)

    def on_fit_start(self) -> None:
        """Load the teacher and check ratios and sampling, with the device, precision and strategy of training."""
        self.restored = None  # callbacks have used it
        if self.teacher is None:
            dtype = self.autocast_dtype(self.device)
            self.teacher = load_teacher(
                self.teacher_model, self.settings, self.policy, self.objective, self.data, self.trainer, dtype
            )
        rows = probe(self.policy, probe_length(self.policy, self.data.longest, self.data.token_budget))
        check_ratio_noise(self.policy, rows.to(self.device), self.objective, self.forward_context)
        check_stop_tokens(self.data.settings.stop_token_ids or (), self.policy.unsaid)
        if self.global_rank == 0:
            check_sampling(self.policy, self.data.settings.sampling(self.policy.eos_token_ids))
        self.verify_sources()

    def on_train_start(self) -> None:
        """Restore the critic; only now has every strategy read the checkpoint."""
        super().on_train_start()
        self.run.restore_critic()

    def teardown(self, stage: str) -> None:
        """Close the connection to a teacher's server."""
        if self.teacher is not None:
            self.teacher.close()

    def configure_optimizers(self) -> Any:
        """Build the optimizer over the policy's trainable parameters, and the scheduler stepped with it."""
        check = partial(check_monitor, "model.lr_scheduler", data=self.data, level=self.update_metrics.level)
        scaled = scaler_of(self.trainer) is not None
        return build_optimizers(self.policy, self.build_optimizer, self.build_scheduler, check, scaled=scaled)

    # checkpoints -------------------------------------------------------------------------------------------------

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Allocate the snapshot if the checkpoint has one, or drop it if this run keeps none."""
        close_epoch(checkpoint)
        self.run.take_from(checkpoint)
        if self.trainer.state.fn == "fit":
            self.run.check_precision(checkpoint, str(self.trainer.precision))
        if self.trainer.state.fn == "fit" and holds_average(checkpoint):
            self.restored = dict(checkpoint)
            checkpoint["state_dict"] = training_weights(checkpoint)
        state = checkpoint.get("state_dict", {})  # if sharded, the strategy has loaded the weights
        snapshot = [name for name in state if name.startswith("old_policy.")]
        if snapshot and isinstance(self.old_policy, ResidentSnapshot):
            self.configure_model()
            self.old_policy.materialise(self.policy)
        else:
            for name in snapshot:
                del state[name]
        super().on_load_checkpoint(checkpoint)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the model's settings (for ``gspo export``); flush the loggers, so that a resume doubles no step."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["gspo_lightning"]["objective"] = repr(self.objective)
        self.run.put_into(checkpoint, str(self.trainer.precision))
        if self.average is not None:
            self.average.put_into(checkpoint)
        if not self.data.loader.spent:
            reopen_epoch(checkpoint)
        flush(self.loggers)

    # the loop ----------------------------------------------------------------------------------------------------

    def training_step(self, batch: MiniBatch, batch_idx: int) -> Tensor:
        """Run forward and backward of every micro-batch of an update; Lightning does the last backward and the step."""
        self._update = update = Update(batch, self.on_policy(batch), time.perf_counter())
        check_accumulation(self.trainer)
        terms = self.terms()
        strategy = self.trainer.strategy
        memory = self.data.memory
        memory.about(self.policy.packed, is_sharded(self.policy), self.policy.decoding.release)
        without_sync = partial(no_backward_sync, strategy, self.policy)
        scale = Scale(scaler_of(self.trainer))
        # the gradient noise compares micro-batches, whose rows must not be sorted by length (as padded ones are)
        comparable = memory.packed and not memory.sharded and scale.scaler is None

        def backward(parts: list[MicroBatch]) -> tuple[Tensor, MetricSums]:
            self.policy_optimizer.zero_grad(set_to_none=True)
            sums = self.update_metrics.sums(parts if comparable else (), self.data.loader.recorded)
            loss = all_but_last_backward(
                parts, terms, sums, on_policy=update.on_policy, without_sync=without_sync, scale=scale
            )
            return backward_here(loss, scale) if ddp_of(strategy) is None else loss, sums

        loss, sums = memory.retry_smaller(backward, batch.micro_batches, f"update {self.global_step + 1}")
        sources = self.data.iteration.sampling.prompts.sources if self.data.iteration is not None else ()
        metrics = self.data.loader.experience.metrics
        update.measure(sums, metrics, self.update_metrics, self.old_logprobs, self.policy, sources)
        update.show(self)
        return loss

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Do nothing: :meth:`training_step` clears gradients at its start; here they hold most of the update."""

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the gradient norm before clipping; drop an update with a NaN or infinity, and keep the weights."""
        values = self._update.values
        gradients = [p.grad for p in self.policy.parameters() if p.grad is not None]
        norm = total_norm(gradients, sharded=is_sharded(self.policy), device=self.device)
        if self.ess_step_scaling:
            self._update.scale_step(optimizer)
        values["optim/gradient_norm"] = norm
        values["optim/lr"] = float(optimizer.param_groups[0]["lr"])
        suspects = self._update.suspects
        scaler = scaler_of(self.trainer)
        if scaler is not None:
            values["optim/loss_scale"] = scaler.get_scale()
            if overflows(scaler, suspects):  # the scaler skips this update
                values["optim/gradient_norm"] = suspects["gradient norm"] = norm = 0.0
        skipped = self.guard.skips(suspects, self.global_step + 1, self.device, lambda: self.dump_update(suspects))
        if skipped or self.critic_only:
            optimizer.zero_grad(set_to_none=True)  # a step without gradients changes nothing
        values |= self.update_metrics.before_step(self.policy, norm)
        for callback in self.before_update:
            callback(values)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm over all ranks that was measured before, or element by element."""
        if gradient_clip_val:
            norm = self._update.gradient_norm
            clip_gradients(self.policy.parameters(), norm, float(gradient_clip_val), gradient_clip_algorithm)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Make the optimizer step; only then count the mini-batch as trained on, and log the update."""
        super().optimizer_step(*args, **kwargs)
        update = self._update
        step = self.global_step + 1  # Lightning counts the step after this hook
        update.restore_rates(self.policy_optimizer)
        changes = self.update_metrics.after_step(self.policy)
        if not finite_by_norms(changes):  # otherwise every weight that was trained is finite, without another pass
            check_weights(self.policy, f"after update {step}")
        update.values |= changes
        self.data.loader.mark_trained()
        last_of_iteration = self.data.loader.spent
        if self.policy.routing is not None and last_of_iteration:
            rows = update.batch.micro_batches[0]
            temperature = self.data.settings.temperature
            update.values["moe/changed_over_iteration"] = changed_routes(rows, self.policy, temperature)
        if not self.last_update:
            check_measured(self.trainer, update.values)
        update.log(self.loggers, step)
        self.last_update = update.values
        self.trainer.callback_metrics.update({tag: torch.tensor(value) for tag, value in update.values.items()})
        if last_of_iteration:
            step_plateaus(self.trainer.lr_scheduler_configs, update.values, self.lr_scheduler_step)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Step the scheduler after an update of the policy: the first one uses the schedule's first learning rate."""
        if not self.critic_only:
            super().lr_scheduler_step(scheduler, metric)

    def dump_update(self, values: dict[str, float]) -> Path:
        """Write the inputs of this update and the current weights to ``dumps/``; return the path."""
        data = self.data
        update = self._update
        return make_dump(
            update.batch, self.terms(), on_policy=update.on_policy, update=self.global_step + 1, values=values,
            rewards=data.loader.experience.rewards, model=self.settings, longest=data.longest,
            rng={"seed": data.settings.seed, "iteration": data.loader.iteration},
        ).write(self.folder / "dumps", rank_and_world()[0])  # fmt: skip
