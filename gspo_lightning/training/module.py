"""The LightningModule: policy, old policy and objective. The loop itself is :meth:`GSPOModule.training_step`.

Automatic optimization; one Lightning epoch is one RL iteration, one batch is one mini-batch is one optimizer step. So
``global_step``, clipping, schedulers, precision and checkpoints keep their plain meaning, and no checkpoint can fall
between the micro-batches of an update.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from gspo_lightning.distributed import all_sum, largest, rank_and_world
from gspo_lightning.errors import UserError
from gspo_lightning.evaluation.metrics import EvaluationMetrics
from gspo_lightning.metrics.meter import UpdateMeter
from gspo_lightning.metrics.sums import Level, MetricSums
from gspo_lightning.metrics.update import update_scalars
from gspo_lightning.objectives import GSPO, Objective, segments_by_delimiter
from gspo_lightning.old_policy.base import OldPolicy
from gspo_lightning.old_policy.logprobs import OldLogProbs, OldLogProbsChoice
from gspo_lightning.old_policy.noise import check_ratio_noise
from gspo_lightning.old_policy.reference import ReferencePolicy
from gspo_lightning.old_policy.snapshots import CachedLogProbs, ResidentSnapshot
from gspo_lightning.packing.batches import filler
from gspo_lightning.policy.averaging import Average, holds_average, training_weights
from gspo_lightning.policy.checks import check_head, choose_layout, probe
from gspo_lightning.policy.loading import load_policy, load_tokenizer
from gspo_lightning.policy.lora import BASE_NORM, LoRA, check_base, check_names, frozen_norm, only_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import LOAD, LoadBalance, replay_word, routers_of, routing_scalars
from gspo_lightning.policy.settings import DType, Layout, ModelSettings
from gspo_lightning.resume import Provenance, close_epoch, flush, reopen_epoch
from gspo_lightning.rollouts.base import RolloutSource
from gspo_lightning.rollouts.recording.records import record
from gspo_lightning.rollouts.verify import verify_decoding
from gspo_lightning.strategies.checks import check_optimizer
from gspo_lightning.strategies.fsdp import FSDPStrategy
from gspo_lightning.strategies.fsdp2 import FSDP2Strategy
from gspo_lightning.strategies.sharding import clip_norm, clip_values, gathered, is_sharded, total_norm, without_sync
from gspo_lightning.training.checks import check_sampling
from gspo_lightning.training.cold_start import ColdStart
from gspo_lightning.training.data import PromptDataModule
from gspo_lightning.training.trainer_checks import check_accumulation, check_measured, check_monitor
from gspo_lightning.types import MicroBatch, MiniBatch, Prompt
from gspo_lightning.update.dump import make_dump
from gspo_lightning.update.loss import micro_batch_loss, mini_batch_count
from gspo_lightning.update.nonfinite import NonFiniteGuard, OnNonFinite, check_weights
from gspo_lightning.update.optimizers import fuse, warn_if_weights_stand_still
from gspo_lightning.update.router_loss import changed_routes, load_balance
from gspo_lightning.update.schedules import schedule, step_plateaus

__all__ = ["GSPOModule", "learner"]


class GSPOModule(LightningModule):
    """A policy trained with a sequence- or token-level objective against its own frozen snapshot.

    Args:
        name_or_path: hub id, local folder in transformers format, or a built-in tiny model (``tiny-qwen3``,
            ``tiny-qwen3-moe``).
        objective: turns log-probabilities and advantages into a loss.
        old_policy: how the frozen snapshot is kept.
        old_logprobs: ``auto`` takes those of the rollout source where their measured noise is below a tenth of the clip
            range and else recomputes them in the training layout; ``source`` and ``recompute`` always do one of it.
        optimizer: built from the policy's trainable parameters.
        lr_scheduler: stepped once per optimizer step (``ReduceLROnPlateau`` of ``lightning.pytorch.cli``: once per
            iteration, or per evaluation where it monitors one); None keeps the learning rate constant.
        cold_start: supervised steps before reinforcement learning, made once and cached; None starts from the model.
        dtype: of the weights. float32 with ``trainer.precision: bf16-mixed`` is the rule.
        attn_implementation: ``sdpa``, ``eager``, ``flash_attention_2`` ...; None lets transformers choose.
        gradient_checkpointing: recompute activations in the backward pass.
        layout: ``packed`` (a prompt once for all its responses, no padding), ``padded``, or ``auto``: packed where the
            model gives the same log-probabilities.
        trust_remote_code: run Python code that a model repository ships.
        revision: branch, tag or commit of a hub id.
        config_overrides: fields of the model's config to change before it is built.
        experts_implementation: ``grouped_mm``, ``batched_mm`` or ``eager``, for mixtures of experts; None takes what
            transformers chooses, ``grouped_mm`` where the model can.
        lora: train low-rank adapters and keep the weights as they are (``{r: 16}``); None trains all weights.
        segment_delimiters: texts that end a segment, for ``Segment`` with ``by: given`` (for example a line feed).
        allow_unusual_clip: accept a clip range of the wrong scale for the objective's level.
        histogram_every: optimizer steps between two histograms of s_i.
        metrics: how much is measured: ``full``, ``basic`` (nothing by sign or token, nothing about the weights) or
            ``off`` (loss, gradient norm, rewards). Training is the same, bit for bit.
        on_nonfinite: what happens to an update with a NaN or infinity in it: ``stop`` the run, or ``skip`` the
            mini-batch. Either way the weights stay as they are and the mini-batch is written to ``dumps/``.
        max_skips: mini-batches of a run that may be skipped.
        routing_replay: mixtures of experts: in training, send every token to the experts it went to in the forward pass
            of the old policy (``R2``) or in the rollout (``R3``), weighted by live scores; ``off`` routes freely.
        router_aux_loss_coef: mixtures of experts: weight of the routers' load-balancing loss over all tokens of a
            mini-batch (Switch Transformer; Qwen3-MoE's form), 0 leaves it out. It costs one more forward pass.
        router_metrics: measure load, confidence and changes of routers; None: where the model has routers.
        seed: of freshly initialised weights; the command line sets it from ``seed_everything``.
    """

    policy: Policy

    def __init__(
        self,
        name_or_path: str = "tiny-qwen3",
        objective: Objective | None = None,
        old_policy: OldPolicy | None = None,
        old_logprobs: OldLogProbsChoice = "auto",
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        cold_start: ColdStart | None = None,
        dtype: DType = "float32",
        attn_implementation: str | None = None,
        gradient_checkpointing: bool = False,
        layout: Layout = "auto",
        trust_remote_code: bool = False,
        revision: str | None = None,
        config_overrides: dict[str, Any] | None = None,
        experts_implementation: str | None = None,
        lora: LoRA | None = None,
        segment_delimiters: list[str] | None = None,
        allow_unusual_clip: bool = False,
        histogram_every: int = 1,
        metrics: Level = "full",
        on_nonfinite: OnNonFinite = "stop",
        max_skips: int = 3,
        routing_replay: Literal["off", "R2", "R3"] | bool = "off",
        router_metrics: bool | None = None,
        router_aux_loss_coef: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.settings = ModelSettings(
            name_or_path, dtype, attn_implementation, gradient_checkpointing, trust_remote_code, revision,
            config_overrides or {}, seed, layout, experts_implementation, lora,
        )  # fmt: skip
        self.objective = objective if objective is not None else GSPO()
        self.old_policy = old_policy if old_policy is not None else CachedLogProbs()
        self.old_logprobs = OldLogProbs(old_logprobs, self.objective)
        self.build_optimizer, self.build_scheduler = optimizer, lr_scheduler
        self.cold_start = cold_start
        self.segment_delimiters = segment_delimiters or []
        self.allow_unusual_clip, self.histogram_every = allow_unusual_clip, histogram_every
        self.meter = UpdateMeter(metrics)
        self.before_update: list[Callable[[dict[str, float]], None]] = []
        """Called with what was measured of an update, before the optimizer steps."""
        self.evaluation_metrics = EvaluationMetrics()
        self.guard = NonFiniteGuard(on_nonfinite, max_skips)
        self.routing_replay, self.router_metrics = replay_word(routing_replay), router_metrics
        self.router_aux_loss_coef = router_aux_loss_coef
        self.weights_from_checkpoint = False
        """Set where a checkpoint will be loaded: a cold start would only be overwritten."""
        self.provenance: Provenance = {}
        """Config, versions and data of this run, for its checkpoints; set by the command line."""
        self.last_update: dict[str, float] = {}
        self.last_evaluation: dict[str, float] = {}
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.reference: ReferencePolicy | None = None
        self.strict_loading = lora is None  # a checkpoint of adapters lacks what is frozen
        self._pending: dict[str, float] = {}
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._started: ModelSettings | None = None
        self._loaded_step = 0
        self._gathered = contextlib.ExitStack()
        self.average: Average | None = None
        """Of the weights, where a callback asks for one: what is evaluated."""
        self.restored: dict[str, Any] | None = None
        """A checkpoint with an average of weights, until that has been taken out of it."""
        self._evaluated: list[Policy] = []  # in a list, so that it does not become part of this module

    # building ----------------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Loaded on first use, before the model: prompts are checked while a mistake is still cheap."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.settings)
        return self._tokenizer

    @property
    def policy_version(self) -> int:
        """Optimizer steps behind the weights; Lightning counts none where it does not train."""
        return int(self.global_step) or self._loaded_step

    @property
    def data(self) -> PromptDataModule:
        """The data module this module trains on."""
        data: PromptDataModule = self.trainer.datamodule
        return data

    def setup(self, stage: str) -> None:
        """Make the cold start if there is none yet: in :meth:`configure_model` Lightning watches every operation."""
        self.old_logprobs.ahead = self.data.max_staleness > 0
        if not hasattr(self, "policy"):
            self._start()

    def _start(self) -> ModelSettings:
        """The model to load: the configured one, or what its cold start has made of it."""
        if self._started is None:
            loaded = self.weights_from_checkpoint and not self._keeps_reference and self.settings.lora is None
            folder = Path(self.trainer.default_root_dir)
            if self.cold_start is None or loaded:
                self._started = self.settings
            else:
                self._started = self.cold_start.ensure(self.settings, folder, self.data.longest)
        return self._started

    @property
    def _keeps_reference(self) -> bool:
        return getattr(self.objective, "kl_coef", 0.0) > 0 or self.data.kl_in_reward > 0

    def configure_model(self) -> None:
        """Load the policy, and check its weights, its output head and how its rows can be laid out."""
        if hasattr(self, "policy"):
            return
        settings = self._start()
        self.policy = load_policy(settings)
        self.policy.train()
        if self.policy.silenced.held:  # on purpose (gspo_lightning.policy.silence); Lightning would wonder
            warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")
        self.meter.watch(self.policy)
        check_weights(self.policy, f"in {settings.name_or_path}")
        self.policy.register_forward_hook(self.guard.watch)
        check_head(self.policy)
        self.policy.routing = routers_of(
            self.policy.backbone, self.routing_replay, self.router_metrics, self.router_aux_loss_coef
        )
        self._base_norm = frozen_norm(self.policy) if settings.lora is not None else 0.0
        choose_layout(self.policy, settings.layout, self.data.longest, self.trainer.strategy.root_device)
        strategy = self.trainer.strategy
        shard = strategy.shard if isinstance(strategy, FSDPStrategy | FSDP2Strategy) else None
        self.reference = ReferencePolicy(self.policy, shard) if self._keeps_reference else None
        if shard is not None:
            self.old_policy.shard(self.policy, shard)
            self.policy = shard(self.policy)
            if self.reference is not None:
                self.reference.follow(self.policy)

    def on_fit_start(self) -> None:
        """On the device, in the precision and under the strategy that will train: ratios of the same weights are 1."""
        self.restored = None  # callbacks have had it
        context = self.trainer.precision_plugin.forward_context
        check_ratio_noise(self.policy, probe(self.policy).to(self.device), self.objective, context)
        if self.global_rank == 0:
            check_sampling(self.policy, self.data.sampling(self.policy.eos_token_ids))
        sources = (self.data.rollouts, self.data.rollouts.for_evaluation())
        if any(source.local() is not None for source in sources):  # or whole weights would be gathered for nothing
            with gathered(self.policy) as plain:
                for source in sources:
                    self._verify(plain, source)

    def _verify(self, policy: Policy, source: RolloutSource) -> None:
        data, context = self.data, self.trainer.precision_plugin.forward_context
        verify_decoding(policy, source, temperature=data.temperature, longest=data.longest, context=context)

    def configure_optimizers(self) -> Any:
        """The optimizer over the policy's trainable parameters, and the scheduler stepped with it."""
        parameters = [p for p in self.policy.parameters() if p.requires_grad]
        optimizer = self.build_optimizer(parameters)
        check_optimizer(optimizer, self.policy)
        fuse(optimizer)
        warn_if_weights_stand_still(self.policy, optimizer)
        if self.build_scheduler is None:
            return optimizer
        config = schedule(self.build_scheduler(optimizer))
        if "monitor" in config:
            check_monitor(
                "model.lr_scheduler", config["monitor"], config["scheduler"].mode, self.data, self.meter.level
            )
        return {"optimizer": optimizer, "lr_scheduler": config}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """What is trained: with adapters nothing else, in every checkpoint and under every strategy."""
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        return state if self.settings.lora is None else only_adapters(state)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make room for a snapshot that is in the checkpoint, or leave it out where this run keeps none."""
        close_epoch(checkpoint)
        self._loaded_step = int(checkpoint.get("global_step", 0))
        self.evaluations = [(int(step), dict(values)) for step, values in checkpoint.get("gspo_evaluations", [])]
        self.last_evaluation = dict(self.evaluations[-1][1]) if self.evaluations else {}
        self.guard.skipped = int(checkpoint.get("gspo_skipped", 0))
        self.meter.load_state_dict(checkpoint.get("gspo_meter", {}))
        self.old_logprobs.noise = checkpoint.get("gspo_noise")
        if self.trainer.state.fn == "fit" and holds_average(checkpoint):
            self.restored = dict(checkpoint)
            checkpoint["state_dict"] = training_weights(checkpoint)
        state = checkpoint.get("state_dict", {})  # of sharded ones, the strategy has loaded the weights
        snapshot = [name for name in state if name.startswith("old_policy.")]
        if snapshot and isinstance(self.old_policy, ResidentSnapshot):
            self.configure_model()
            self.old_policy.materialise(self.policy)
        else:
            for name in snapshot:
                del state[name]
        if self.settings.lora is not None:
            self.configure_model()
            check_base(checkpoint, self._base_norm)
            if state:
                check_names(state, self.state_dict())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say which model this is (for ``gspo export``), and flush the loggers.

        Loggers then hold at least what the checkpoint has seen: a resume neither loses nor doubles a step.
        """
        checkpoint["gspo_lightning"] = {"model": dataclasses.asdict(self.settings), "objective": repr(self.objective)}
        if self.settings.lora is not None:
            checkpoint["gspo_lightning"]["model"] = dataclasses.asdict(self._start())
            checkpoint[BASE_NORM] = self._base_norm
        checkpoint["gspo_run"] = self.provenance
        checkpoint["gspo_skipped"] = self.guard.skipped
        checkpoint["gspo_meter"] = self.meter.state_dict()
        checkpoint["gspo_noise"] = self.old_logprobs.noise
        checkpoint["gspo_evaluations"] = [[step, dict(values)] for step, values in self.evaluations]
        if self.average is not None:
            self.average.put_into(checkpoint)
        if not self.data.loader.spent:
            reopen_epoch(checkpoint)
        flush(self.loggers)

    # the loop ----------------------------------------------------------------------------------------------------

    def training_step(self, batch: MiniBatch, batch_idx: int) -> Tensor:
        """One update: forward and backward of every micro-batch; Lightning does the last backward and the step.

        Gradients do not depend on how the mini-batch was cut or on how many ranks hold it: every micro-batch is
        divided by the denominator of the whole mini-batch over all ranks.
        """
        start = time.perf_counter()
        check_accumulation(self.trainer)
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        self._batch = batch
        memory = self.data.memory
        memory.packed, memory.sharded = self.policy.packed, is_sharded(self.policy)

        def update(parts: list[MicroBatch]) -> tuple[Tensor, MetricSums]:
            optimizer.zero_grad(set_to_none=True)
            micro_batches = self._in_step(parts)
            denominator = all_sum(mini_batch_count(self.objective, micro_batches))
            balance = load_balance(self.router_aux_loss_coef, self.policy, micro_batches, self.data.temperature)
            sums = self.meter.sums()
            for part in micro_batches[:-1]:
                with self._without_sync():
                    self._loss(part, denominator, sums, balance).backward()
            return self._last(self._loss(micro_batches[-1], denominator, sums, balance)), sums

        loss, sums = memory.retry_smaller(update, batch.micro_batches, self.global_step + 1)
        self._measure(batch, sums, start)
        return loss

    def _last(self, loss: Tensor) -> Tensor:
        """The loss that Lightning runs backward from; a single process does it here, where it may run out of memory."""
        if self.trainer.strategy.model is not self:
            return loss  # DDP reduces gradients in the backward pass that follows its forward
        with torch.autocast(self.device.type, enabled=False):
            loss.backward()
        return loss.detach().requires_grad_()

    def _loss(self, part: MicroBatch, denominator: Tensor, sums: MetricSums, balance: LoadBalance | None) -> Tensor:
        """The share of one micro-batch in the loss; DDP and FSDP average over ranks, so it is scaled to a sum."""
        loss = micro_batch_loss(
            part,
            policy=self.policy,
            old_policy=self.old_policy,
            objective=self.objective,
            temperature=self.data.temperature,
            denominator=denominator,
            segments=self.segments(part),
            sums=sums,
            on_policy=self.on_policy(self._batch),
            balance=balance,
        )
        return loss * rank_and_world()[1]

    def on_policy(self, batch: MiniBatch) -> bool:
        """Whether this update is the first on its rollouts, and the snapshot they come from is the policy of now."""
        first = batch.index == 0 and self.old_policy.due(batch.iteration)
        return first and not self.old_logprobs.as_behaviour

    def segments(self, part: MicroBatch) -> Tensor | None:
        """[N, T] segment numbers where the objective is over delimited segments."""
        if not self.segment_delimiters:
            return None
        encode = self.tokenizer.encode
        ends = [encode(text, add_special_tokens=False)[-1] for text in self.segment_delimiters]
        return segments_by_delimiter(part.response_ids, part.response_mask, ends)

    def _in_step(self, micro_batches: list[MicroBatch]) -> list[MicroBatch]:
        """The same number of micro-batches on every rank; the missing ones carry weight 0."""
        wanted = largest(len(micro_batches), self.device)
        return micro_batches + [filler(micro_batches[-1])] * (wanted - len(micro_batches))

    @contextlib.contextmanager
    def _without_sync(self) -> Iterator[None]:
        """Gradients of this micro-batch stay on this rank; they are reduced with the last one's."""
        wrapped = self.trainer.strategy.model
        if isinstance(wrapped, nn.parallel.DistributedDataParallel):
            wrapped.require_backward_grad_sync = False
            try:
                yield
            finally:
                wrapped.require_backward_grad_sync = True
        elif getattr(self.trainer.strategy, "reduces_each", False):
            yield
        else:
            with without_sync(self.policy):
                yield

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are cleared at the start of :meth:`training_step`; here they already hold most of the update."""

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the gradient norm before clipping; a NaN or infinity stops here, and the weights stay as they are."""
        gradients = [p.grad for p in self.policy.parameters() if p.grad is not None]
        norm = total_norm(gradients, sharded=is_sharded(self.policy), device=self.device)
        values = {"loss": self._pending["loss"], "gradient norm": norm, "largest ratio": self._pending["ratio/max"]}
        if self.guard.skips(values, self.global_step + 1, self.device, lambda: self.dump_update(values)):
            optimizer.zero_grad(set_to_none=True)  # a step without gradients changes nothing
        self._pending |= self.meter.before_step(self.policy, norm)
        self._pending["optim/gradient_norm"] = norm
        self._pending["optim/lr"] = float(optimizer.param_groups[0]["lr"])
        for look in self.before_update:
            look(self._pending)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """By the norm over all ranks, or element by element; plain parameters are Lightning's business."""
        if not gradient_clip_val:
            return
        if not is_sharded(self.policy):
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_algorithm == GradClipAlgorithmType.VALUE:  # an enum of texts: its str() is not its value
            clip_values(self.policy.parameters(), float(gradient_clip_val))
        else:
            clip_norm(self.policy.parameters(), self._pending["optim/gradient_norm"], float(gradient_clip_val))

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """One step; only now does the mini-batch count as trained on, and only now is the update logged."""
        super().optimizer_step(*args, **kwargs)
        check_weights(self.policy, f"after update {self.global_step + 1}")
        self._pending |= self.meter.after_step(self.policy)
        self.data.loader.mark_trained()
        if self.policy.routing is not None and self.data.loader.spent:
            changed = changed_routes(self._batch.micro_batches[0], self.policy, self.data.temperature)
            self._pending["moe/changed_over_iteration"] = changed
        self._log_update(self.global_step + 1)  # Lightning counts the step after this hook
        if self.data.loader.spent:
            step_plateaus(self.trainer.lr_scheduler_configs, self.last_update)

    def dump_update(self, values: dict[str, float]) -> Path:
        """Write down what this update saw, with the weights as they are now; returns the path."""
        loader, batch = self.data.loader, self._batch
        dump = make_dump(
            batch, self.policy, self.old_policy, self.objective, self.data.temperature, on_policy=self.on_policy(batch),
            update=self.global_step + 1, values=values, rewards=loader.experience.rewards, model=self.settings,
            rng={"seed": self.data.seed, "iteration": loader.iteration},
            segments=[self.segments(part) for part in batch.micro_batches], longest=self.data.longest,
            router_aux_loss_coef=self.router_aux_loss_coef,
        )  # fmt: skip
        return dump.write(Path(self.trainer.log_dir or self.trainer.default_root_dir) / "dumps", rank_and_world()[0])

    # measuring ---------------------------------------------------------------------------------------------------

    def _measure(self, batch: MiniBatch, sums: MetricSums, start: float) -> None:
        pairs, vectors, maxima = sums.reduce()
        scalars, iteration = update_scalars(pairs), self.data.loader.experience.metrics
        if self.on_policy(batch):
            self.old_logprobs.note(pairs)
            iteration |= {tag: value for tag, value in scalars.items() if tag.startswith("noise/")}
        self._pending = iteration | scalars | maxima
        self._pending |= self.meter.of_ratios(self._pending, vectors, batch.index)
        if self.policy.routing is not None and LOAD in vectors:
            self._pending |= routing_scalars(vectors[LOAD], self.policy.routing)
        self._pending["data/mini_batch"] = float(batch.index)
        tokens = all_sum(torch.tensor(batch.num_tokens, dtype=torch.float64, device=self.device))
        self._pending["data/tokens_per_update"] = float(tokens)
        self._pending["data/micro_batches"] = float(len(batch.micro_batches))
        self._update_start = start

    def _log_update(self, step: int) -> None:
        seconds = time.perf_counter() - self._update_start
        self._pending["time/update_s"] = seconds
        self._pending["throughput/trained_tokens_per_s"] = self._pending["data/tokens_per_update"] / max(seconds, 1e-9)
        if not self.last_update:
            check_measured(self.trainer, self._pending)
        self.last_update = self._pending
        self.trainer.callback_metrics.update({tag: torch.tensor(value) for tag, value in self.last_update.items()})
        for logger in self.loggers:
            logger.log_metrics(self.last_update, step=step)

    # evaluation --------------------------------------------------------------------------------------------------

    @property
    def evaluated_policy(self) -> Policy:
        """What answers held-out prompts: the policy, its average, or the plain copy gathered for this evaluation."""
        return self._evaluated[0] if self._evaluated else self.policy

    def _gather(self) -> None:
        """Once for a whole evaluation, in which ranks have different numbers of prompts."""
        self._gathered = contextlib.ExitStack()
        policy = self.policy if self.average is None else self.average.policy(self.policy)
        self._evaluated.append(self._gathered.enter_context(gathered(policy)))
        self._gathered.callback(self._evaluated.clear)
        self._verify(self.evaluated_policy, self.data.rollouts.for_evaluation())

    def on_validation_epoch_start(self) -> None:
        """Start counting."""
        self.evaluation_metrics.start(self.data.evaluation, self.device)
        self._gather()

    def validation_step(self, batch: list[Prompt], batch_idx: int) -> None:
        """Answer held-out prompts and count what is correct."""
        self.evaluation_metrics.update(self.data.answer(batch), self.data.accuracy_reward)

    def on_validation_epoch_end(self, to_callbacks: bool = True) -> None:
        """Log under the number of updates so far; the evaluation before the first update is step 0."""
        self._gathered.close()
        self.last_evaluation = self.evaluation_metrics.compute()
        self.evaluations.append((self.global_step, self.last_evaluation))
        if self.trainer.state.fn == "fit":
            for logger in self.loggers:
                logger.log_metrics(self.last_evaluation, step=self.global_step)
        if (
            to_callbacks and not self.trainer.sanity_checking
        ):  # Lightning refuses self.log there; callbacks may monitor these
            self.log_dict(self.last_evaluation, logger=False)
            step_plateaus(self.trainer.lr_scheduler_configs, self.last_evaluation)

    @torch.no_grad()
    def evaluate(self) -> None:
        """Evaluate now, outside Lightning's validation loop (at the end of a run, if the last one is stale)."""
        self.on_validation_epoch_start()
        for i, batch in enumerate(self.data.val_dataloader()):
            self.validation_step(batch, i)
        self.on_validation_epoch_end(to_callbacks=False)

    def on_test_epoch_start(self) -> None:
        """As in validation."""
        self.on_validation_epoch_start()

    def test_step(self, batch: list[Prompt], batch_idx: int) -> None:
        """As in validation."""
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """As in validation."""
        self.on_validation_epoch_end()

    def on_predict_epoch_start(self) -> None:
        """As in validation."""
        self._gather()

    def on_predict_epoch_end(self) -> None:
        """As in validation."""
        self._gathered.close()

    def predict_step(self, batch: list[Prompt], batch_idx: int) -> list[dict[str, Any]]:
        """Scored responses to the prompts of a batch as plain data, one group after another."""
        sampling = self.data.evaluation_sampling(self.policy.eos_token_ids)
        return [record(rollout, sampling) for group in self.data.answer(batch) for rollout in group]

    def forward(self, *_: Any, **__: Any) -> Any:
        """Not used: call ``module.policy``."""
        raise UserError("GSPOModule", "has no forward of its own", fix="call module.policy(micro_batch, temperature)")


def learner(pl_module: LightningModule) -> GSPOModule:
    """The module that a callback was called with, as what it is.

    Raises:
        UserError: another LightningModule is trained.
    """
    if not isinstance(pl_module, GSPOModule):
        name = type(pl_module).__name__
        raise UserError("trainer.callbacks", f"one of them works with a GSPOModule, but {name} is trained")
    return pl_module
