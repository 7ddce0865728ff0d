"""Base LightningModule of a policy: loading and evaluation. Training is in a subclass."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.host_memory import keep_freed_memory
from gspo_lightning.core.types import Prompt
from gspo_lightning.loop.experience.generate_and_score import Groups
from gspo_lightning.loop.update.schedules import step_plateaus
from gspo_lightning.policy.adapters.adapter_files import FIELD as START
from gspo_lightning.policy.adapters.adapter_files import WEIGHTS, adapter_config, adapter_folder
from gspo_lightning.policy.adapters.lora import BASE_NORM, check_base, check_names, only_adapters
from gspo_lightning.policy.averaging import Average
from gspo_lightning.policy.load.loading import context_length, load_config, load_policy, load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.load.trained_dtype import check_dtype, check_stored_dtype
from gspo_lightning.policy.numerics.autocast_weights import autocast_dtype
from gspo_lightning.policy.numerics.rounded_updates import say_rounded_updates
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.fsdp import FSDP2Strategy
from gspo_lightning.policy.strategies.sharding import gathered
from gspo_lightning.policy.strategies.slurm import check_tasks
from gspo_lightning.policy.tiny import TINY_MODELS
from gspo_lightning.report.run import Shown, shown_by
from gspo_lightning.resume.files import sha256
from gspo_lightning.resume.model_record import ModelRecord
from gspo_lightning.rollouts.recording.records import record
from gspo_lightning.rollouts.source import RolloutSource
from gspo_lightning.rollouts.verify import verify_decoding
from gspo_lightning.training.cold_start import FIELD, ColdStart, prompt_format_of
from gspo_lightning.training.data import PromptDataModule
from gspo_lightning.training.evaluation.evaluator import Evaluator


class PolicyModule(LightningModule):
    """LightningModule with all that ``gspo validate``, ``test`` and ``predict`` need.

    Args:
        settings: settings of the model.
        cold_start: supervised steps that make the model to start from; None starts from the model itself.
    """

    policy: Policy

    def __init__(self, settings: ModelSettings, cold_start: ColdStart | None) -> None:
        super().__init__()
        self.settings = settings
        self.cold_start = cold_start
        self.evaluator = Evaluator()
        self.average: Average | None = None
        """Average of the weights, if a callback asks for one; evaluations use it."""
        self.weights_from: ModelRecord | None = None
        """Model of the checkpoint that will be loaded, which would overwrite a cold start."""
        self.loaded_step = 0
        """Optimizer steps that made the weights of a loaded checkpoint."""
        self.strict_loading = settings.lora is None  # a checkpoint of adapters lacks the frozen weights
        self.base_norm = 0.0
        """Norm of the frozen weights under adapters."""
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._started: ModelSettings | None = None

    @property
    def data(self) -> PromptDataModule:
        """The data module of the run."""
        data: PromptDataModule = self.trainer.datamodule
        return data

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, loaded on first use, before the model: prompts are checked while a mistake is still cheap."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.settings)
        return self._tokenizer

    @property
    def version(self) -> int:
        """Optimizer steps that made the weights; Lightning counts none when it does not train."""
        return int(self.global_step) or self.loaded_step

    @property
    def folder(self) -> Path:
        """The run folder, the same on every rank (must be read on every rank)."""
        return Path(self.trainer.log_dir or self.trainer.default_root_dir)

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return the autocast context of this run, for forward passes outside a training step."""
        context: AbstractContextManager[Any] = self.trainer.precision_plugin.forward_context()
        return context

    def autocast_dtype(self, device: torch.device) -> torch.dtype | None:
        """Return this run's autocast dtype on a device; None without autocast."""
        with self.forward_context():
            return autocast_dtype(device)

    def on_train_start(self) -> None:
        """Say what products under autocast will see of the first update; from here on freed memory is kept on a CPU."""
        keep_freed_memory(self.device)
        say_rounded_updates(self.policy.parameters(), self.autocast_dtype(self.device), self.trainer.optimizers)

    @property
    def policy_optimizer(self) -> torch.optim.Optimizer:
        """The policy's optimizer, without Lightning's wrapper."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        return optimizer

    def on_train_batch_end(self, *_: Any) -> None:
        """Free the gradients, after the callbacks have seen them: the next rollouts need the memory."""
        self.policy_optimizer.zero_grad(set_to_none=True)

    def prepare(self, stage: str, data: PromptDataModule, trainer: Trainer) -> None:
        """Check all that needs no model; the command line does so before anything is written.

        Raises:
            UserError: settings that do not go together, prompts that cannot be read ...
        """
        check_tasks(trainer)
        if self.weights_from is not None:
            self.settings = dataclasses.replace(self.settings, mask_padding=self.weights_from.masks_padding)
        if stage == "fit":
            self.check_dtype()
            if self.settings.dtype == "auto" and self.settings.name_or_path not in TINY_MODELS:
                check_stored_dtype(self.settings, load_config(self.settings))
        data.prepare(stage, self.tokenizer, context_length(self.settings), trainer.world_size)
        self._check_adapters()
        if self.cold_start is not None and self.makes_start(data):
            self.cold_start.check(self.tokenizer, prompt_format_of(data))
            strategy = trainer.strategy
            if isinstance(strategy, FSDP2Strategy) and strategy.expert_parallel:  # and not after the cold start's steps
                strategy.check_model(load_policy(self.settings, weights=False))

    def check_dtype(self) -> None:
        """Refuse settings that train weights in bfloat16, in the run or in its cold start.

        Raises:
            UserError: they do.
        """
        check_dtype(self.settings)
        if self.cold_start is not None and not self.cold_start.adapters and self.settings.dtype == "bfloat16":
            raise UserError(
                "model.dtype",
                "is 'bfloat16', but the cold start trains all weights, whose small updates bfloat16 rounds away",
                fix="set model.cold_start.adapters: true, or use float32 with trainer.precision: bf16-mixed",
            )

    def _check_adapters(self) -> None:
        """Check the files of adapters to start from.

        Raises:
            UserError: they cannot be read, or belong to weights that a cold start would change.
        """
        if self.cold_start is not None:
            self.cold_start.check_adapters(self.settings.lora)
        if self.settings.lora is not None and self.settings.lora.start_from is not None:
            self.settings.lora.agreed(adapter_config(adapter_folder(self.settings.lora.start_from)))

    def fingerprints(self, data: PromptDataModule) -> dict[str, dict[str, Any]]:
        """Return fingerprints of what a resumed run starts from: its demonstrations, or the adapters it began with."""
        fingerprints: dict[str, dict[str, Any]] = {}
        lora = self.settings.lora
        if lora is not None and lora.start_from is not None:
            fingerprints[START] = {"sha256": sha256(adapter_folder(lora.start_from) / WEIGHTS)}
        if self.cold_start is not None and self.keeps_start(data):
            fingerprints[FIELD] = self.cold_start.fingerprint()
        return fingerprints

    def keeps_start(self, data: PromptDataModule) -> bool:
        """True if the model to start from is needed unchanged, even when a checkpoint has newer weights."""
        return self.settings.lora is not None

    def makes_start(self, data: PromptDataModule) -> bool:
        """True if the cold start, if there is one, is needed: no checkpoint takes its place."""
        return self.keeps_start(data) or self.weights_from is None

    def start(self) -> ModelSettings:
        """Return the settings of the model to load: the configured model, or the result of its cold start."""
        if self._started is None:
            data = self.data
            if self.cold_start is None or not self.makes_start(data):
                self._started = self.settings
            else:
                root = Path(self.trainer.default_root_dir)
                device = self.trainer.strategy.root_device
                prompt_format = prompt_format_of(data)
                self._started = self.cold_start.ensure(self.settings, root, data.longest, prompt_format, device)
        return self._started

    def fitting(self, policy: Policy) -> Policy:
        """Return a policy that was just built, if the weights of the checkpoint to load fit it.

        Raises:
            UserError: they are those of another model.
        """
        if self.weights_from is not None:
            shapes = {f"policy.{name}": tuple(weight.shape) for name, weight in policy.state_dict().items()}
            model = {"name_or_path": self.settings.name_or_path}
            self.weights_from.check_weights(model, shapes, adapters=self.settings.lora is not None)
        return policy

    def verify_sources(self) -> None:
        """Verify that all sources in this process, evaluation included, compute the policy's log-probabilities."""
        sources = (self.data.rollouts, self.data.rollouts.for_evaluation())
        if any(source.local() is not None for source in sources):  # else whole weights would be gathered for nothing
            with gathered(self.policy) as plain:
                for source in sources:
                    self.verify(plain, source)

    def verify(self, policy: Policy, source: RolloutSource) -> None:
        """Verify that a source computes the policy's log-probabilities; see :mod:`gspo_lightning.rollouts.verify`."""
        verify_decoding(
            policy,
            source,
            temperature=self.data.settings.temperature,
            longest=self.data.longest,
            context=self.forward_context,
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the trained weights: with adapters only these, in every checkpoint and under every strategy."""
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        return state if self.settings.lora is None else only_adapters(state)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse adapters that were trained on other base weights."""
        self.loaded_step = int(checkpoint.get("global_step", 0))
        if self.settings.lora is None:
            return
        self.configure_model()
        check_base(checkpoint, self.base_norm)
        state = checkpoint.get("state_dict", {})
        if state:  # if sharded, the strategy has loaded the weights
            check_names(state, self.state_dict())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the model's settings (for ``gspo export``)."""
        model = self.settings if self.settings.lora is None else self.start()
        checkpoint["gspo_lightning"] = {"model": dataclasses.asdict(model)}
        if self.settings.lora is not None:
            checkpoint[BASE_NORM] = self.base_norm

    # evaluation --------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        """Reset the counts, after any rollout ahead of training has released the source."""
        if self.data.iteration is not None and self.data.iteration.sampling.prefetcher is not None:
            self.data.iteration.sampling.prefetcher.settle()
        split = "test" if self.trainer.state.fn == "test" else "val"
        self.evaluator.start(self.data.evaluation, self.device, self.data.sets.source_names(split))
        self.on_predict_epoch_start()

    def validation_step(self, batch: list[Prompt], batch_idx: int) -> None:
        """Answer held-out prompts and count correct responses."""
        self.evaluator.count(self._answer(batch), self.data.accuracy_reward)

    def on_validation_epoch_end(self, to_callbacks: bool = True) -> None:
        """Log under the number of updates so far; the evaluation before the first update is step 0."""
        metrics = self.evaluator.finish(self.global_step, self._measure_suites())
        if self.data.iteration is None or self.data.iteration.sampling.prefetcher is None:
            self.data.rollouts.for_evaluation().sleep()
        if self.trainer.state.fn == "fit":
            for logger in self.loggers:
                logger.log_metrics(metrics, step=self.global_step)
        if to_callbacks and not self.trainer.sanity_checking:  # Lightning refuses self.log there; others may monitor it
            self.log_dict(metrics, logger=False)
            step_plateaus(self.trainer.lr_scheduler_configs, metrics, self.lr_scheduler_step)

    def _measure_suites(self) -> dict[str, float]:
        if not self.data.suites.names:
            return {}
        with self.data.score_held_out.lock:  # the source answers one request at a time
            return self.data.suites.measure(
                self.evaluator.policy,
                self.data.rollouts.for_evaluation(),
                context=self.forward_context,
                version=self.version,
            )

    @property
    def shown_by(self) -> Shown:
        """The headline metric of this run's evaluations: accuracy or mean reward."""
        named = self.data.evaluation.accuracy_reward is not None
        return shown_by((values for _, values in self.evaluator.history), named=named)

    @torch.no_grad()
    def evaluate(self) -> None:
        """Evaluate now, outside Lightning's validation loop (at the end of a run, if the last one is stale)."""
        self.on_validation_epoch_start()
        for i, batch in enumerate(self.data.val_dataloader()):
            self.validation_step(batch, i)
        self.on_validation_epoch_end(to_callbacks=False)

    def on_test_epoch_start(self) -> None:
        """Reset the counts, as in validation."""
        self.on_validation_epoch_start()

    def test_step(self, batch: list[Prompt], batch_idx: int) -> None:
        """Answer test prompts and count correct responses."""
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """Log the results, as in validation."""
        self.on_validation_epoch_end()

    def on_predict_epoch_start(self) -> None:
        """Gather the weights once for all prompts: ranks have different numbers of prompts."""
        policy = self.policy if self.average is None else self.average.policy(self.policy)
        source = self.data.rollouts.for_evaluation()
        self.verify(self.evaluator.open(policy, source.weights_on), source)

    def predict_step(self, batch: list[Prompt], batch_idx: int) -> list[dict[str, Any]]:
        """Return scored responses to the prompts of a batch as plain data, one group after another."""
        sampling = self.data.held_out_sampling(self.policy)
        return [record(rollout, sampling) for group in self._answer(batch) for rollout in group]

    def on_predict_epoch_end(self) -> None:
        """Release the gathered weights."""
        self.evaluator.close()

    def _answer(self, prompts: list[Prompt]) -> Groups:
        return self.evaluator.answer(
            prompts, self.data.score_held_out, self.data.held_out_sampling(self.policy), self.version
        )

    def forward(self, *_: Any, **__: Any) -> Any:
        """Refuse to run: call ``module.policy``."""
        name = type(self).__name__
        raise UserError(name, "has no forward method", fix="call module.policy(micro_batch, temperature)")
