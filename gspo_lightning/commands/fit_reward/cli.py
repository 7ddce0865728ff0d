"""LightningCLI of reward models: builds trainer, module and data module from a config."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from gspo_lightning.commands.fit.arguments import settings as settings_of
from gspo_lightning.commands.fit.callbacks import SavedConfig, listed
from gspo_lightning.commands.fit.cli import Parser
from gspo_lightning.commands.fit.defaults import DEFAULT_ROOT
from gspo_lightning.commands.fit.fields import Fields
from gspo_lightning.commands.fit.one_writer import agree_first, hand_to_ranks
from gspo_lightning.commands.fit.run_folder import check_writable, loggers_of, runs_of
from gspo_lightning.commands.fit.torchrun import follow_torchrun, say_one_device
from gspo_lightning.commands.fit_reward.callbacks import callbacks_of
from gspo_lightning.commands.fit_reward.finish import MODEL, finish
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.variables import check_settings
from gspo_lightning.data.prompts.hub_revisions import begin, commits_read
from gspo_lightning.policy.load.threads import few_threads, threads_of, width_of
from gspo_lightning.policy.strategies.checks import check_strategy
from gspo_lightning.policy.strategies.sharding_strategy import sharding_of
from gspo_lightning.policy.strategies.slurm import check_tasks, explained
from gspo_lightning.resume import Resumption, Writer, plain
from gspo_lightning.resume.changes import versions
from gspo_lightning.resume.exports import check_replaceable
from gspo_lightning.training.callbacks import AtomicCheckpointIO
from gspo_lightning.training.precision_checks import check_device
from gspo_lightning.training.reward_models import PreferenceDataModule, RewardModule

DEFAULTS: dict[str, Any] = {
    "trainer.default_root_dir": DEFAULT_ROOT,
    "trainer.gradient_clip_val": 1.0,
    "trainer.num_sanity_val_steps": 0,
    "trainer.log_every_n_steps": 1,
    "trainer.max_epochs": 1,
    "trainer.accelerator": "auto",
    "trainer.enable_model_summary": False,
}
"""Field -> default, where it differs from Lightning's or Lightning has none."""
_PRECISIONS = ("32", "32-true", "bf16-mixed")


def fields() -> Fields:
    """Return the valid settings of a config."""
    values = {"seed_everything": int, "plugins": list[str] | str, "allow_changed_config": bool, "ckpt_path": str | None}
    sections = {**values, "trainer": Trainer, "model": RewardModule, "data": PreferenceDataModule}
    return Fields(sections, {"model.optimizer": torch.optim.AdamW})


class RewardCLI(LightningCLI):
    """LightningCLI of reward models; top-level settings: seed_everything, plugins, trainer, model, data."""

    @classmethod
    def run(cls, arguments: list[str]) -> None:
        """Train, evaluate and export a reward model."""
        with ExitStack() as until_over:
            cls.writer = until_over.enter_context(Writer())
            cli = cls(
                RewardModule,
                PreferenceDataModule,
                args=arguments,
                seed_everything_default=1,
                parser_kwargs={"exit_on_error": False, "dump_header": [f"{k} {v}" for k, v in versions().items()]},
                parser_class=Parser,
                save_config_callback=SavedConfig,
                save_config_kwargs={"overwrite": True},
                auto_configure_optimizers=False,
                run=False,
            )
            until_over.enter_context(few_threads(width_of(cli.model.settings), cli.trainer.strategy.root_device))
            cli.train()

    def _parse_ckpt_path(self) -> None:
        """Do nothing: unlike Lightning, read no setting from a checkpoint, least of all ``trust_remote_code``."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the package's own options and default values."""
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="A checkpoint, or last.")
        parser.add_argument("--plugins", type=list[str] | str, default=[], help="Files that add prompt sets.")
        parser.add_argument(
            "--allow_changed_config",
            type=bool,
            default=False,
            help="Resume although the config or the pairs have changed their meaning.",
        )
        parser.link_arguments("seed_everything", "model.seed")
        parser.link_arguments("seed_everything", "data.seed")
        parser.set_defaults(DEFAULTS)

    def before_instantiate_classes(self) -> None:
        """Refuse settings that cannot work, and resolve the checkpoint ``last``."""
        fields().refuse_nulls(settings_of(sys.argv[2:]))
        config = self.config
        if isinstance(config.seed_everything, bool):
            raise UserError("seed_everything", "must be a number: a run has a seed that can be repeated")
        check_trainer(config.trainer)
        follow_torchrun(config.trainer, os.environ)
        if not config.ckpt_path:
            check_writable(runs_of(config))
        settings = plain(config.as_dict())
        check_settings(settings)
        self.resumption = Resumption.of(
            config.ckpt_path, runs_of(config), writer=self.writer, reward_model=True, config=settings
        )
        hand_to_ranks(self.resumption)
        begin(self.resumption.before.get("datasets", {}))
        check_writable(self.resumption.run or runs_of(config))
        if self.resumption.run is not None:
            check_replaceable(self.resumption.run / MODEL, [], "ckpt_path")  # the export at the end of the run
        plugins = [config.plugins] if isinstance(config.plugins, str) else list(config.plugins or [])
        self.resumption.check_config(config.as_dict(), versions(), plugins)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the run folder's logger, default callbacks and the atomic checkpoint writer to the user's settings."""
        chosen = self._get(self.config_init, "trainer")
        kwargs["logger"] = loggers_of(chosen.get("logger"), self.config, True, self.resumption)
        kwargs["callbacks"] = callbacks_of(chosen)
        kwargs["plugins"] = [*listed(chosen.get("plugins")), AtomicCheckpointIO()]
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError, ImportError, RuntimeError, KeyError) as error:
            refusal = explained(error)
            if refusal is not None:
                raise refusal from error
            if isinstance(error, UserError | RuntimeError | KeyError):
                raise
            raise UserError("trainer", " ".join(str(error).split())) from error  # Lightning's message names the field
        agree_first(trainer, self.resumption, self.writer)
        say_one_device(trainer, self.config.trainer)
        return trainer

    def train(self) -> None:
        """Read the pairs, train, and write results, figure and model to the run folder."""
        module = self.model
        data = self.datamodule
        trainer = self.trainer
        self.resumption.check_layout(sharded=sharding_of(trainer.strategy) is not None)
        check_tasks(trainer)
        check_device(str(trainer.precision), module.settings.dtype, trainer.strategy.root_device)
        module.prepare(data)
        threads = threads_of(trainer.strategy.root_device)
        module.provenance = self.resumption.check_prompts(data.fingerprints(), commits_read(), threads)
        try:
            trainer.fit(
                module, data, ckpt_path=self.resumption.path, weights_only=True if self.resumption.path else None
            )
        except MisconfigurationException as error:
            raise UserError("trainer", " ".join(str(error).split())) from error
        finish(module, data, trainer, Path(trainer.log_dir or trainer.default_root_dir), self.config.as_dict())


def check_trainer(chosen: Any) -> None:
    """Refuse trainer settings that have no meaning, or a different one, for reward models.

    Raises:
        UserError: there is such a setting.
    """
    if chosen.accumulate_grad_batches != 1:
        raise UserError(
            "trainer.accumulate_grad_batches",
            f"is {chosen.accumulate_grad_batches}, but it follows from data.batch_size and data.micro_batch_size",
            fix="leave it out, and set data.batch_size to the pairs of an optimizer step over all ranks",
        )
    if chosen.precision is not None and str(chosen.precision) not in _PRECISIONS:
        raise UserError(
            "trainer.precision", f"is {chosen.precision!r}; it must be one of {', '.join(_PRECISIONS)}",
            fix="use bf16-mixed with model.dtype: float32, or 32-true",
        )  # fmt: skip
    if chosen.get("barebones") or chosen.get("fast_dev_run"):
        name = "barebones" if chosen.get("barebones") else "fast_dev_run"
        raise UserError(f"trainer.{name}", "forbids the logger and checkpoints that every run has", fix="leave it out")
    for name in ("limit_train_batches", "overfit_batches"):
        value = chosen.get(name)
        if value not in (None, 0.0) and value != 1.0:
            problem = f"is {value}, but counts micro-batches and would end an epoch within an optimizer step"
            raise UserError(f"trainer.{name}", problem, fix="use trainer.max_steps, which counts optimizer steps")
    strategy = chosen.strategy.get("class_path") if hasattr(chosen.strategy, "get") else chosen.strategy
    if isinstance(strategy, str) and (strategy.startswith("fsdp") or strategy.endswith("FSDPStrategy")):
        problem = f"is {strategy}, but reward models are sharded by FSDP2 only"
        raise UserError("trainer.strategy", problem, fix="use --config fsdp2, or strategy: ddp")
    options = (chosen.strategy.get("init_args") or {}) if hasattr(chosen.strategy, "get") else {}
    for name in ("context", "replicas", "expert_parallel"):
        value = options.get(name) or 1
        if value > 1 or value is True:
            problem = f"is {value}, but reward models are only sharded, over all ranks"
            raise UserError(f"trainer.strategy.{name}", problem, fix="use --config fsdp2")
    check_strategy(chosen.strategy)
