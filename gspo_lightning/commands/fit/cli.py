"""LightningCLI with the words and defaults of this package: a config becomes a trainer, a module and a data module."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from gspo_lightning.callbacks import AtomicCheckpointIO, show_evaluation
from gspo_lightning.commands.fit.allocator import grow_segments
from gspo_lightning.commands.fit.beside import located
from gspo_lightning.commands.fit.callbacks import callbacks_of, listed
from gspo_lightning.commands.fit.defaults import DEFAULTS
from gspo_lightning.commands.fit.explain import refuse_mappings
from gspo_lightning.commands.fit.loggers import loggers_of
from gspo_lightning.commands.fit.one_writer import agree_first, kept_open
from gspo_lightning.commands.fit.result import shown_metrics, write_result
from gspo_lightning.commands.fit.run_folder import check_writable, runs_of
from gspo_lightning.errors import UserError
from gspo_lightning.escape import say
from gspo_lightning.policy.threads import few_threads, width_of
from gspo_lightning.resume import Resumption, Writer
from gspo_lightning.resume.versions import versions
from gspo_lightning.strategies.checks import check_strategy
from gspo_lightning.training.checks import check_precision

__all__ = ["Parser", "TrainingCLI"]


class Parser(LightningArgumentParser):
    """A value is what is written: ``data.train: x.csv`` means the file and not what stands in it, 1 is no 1.0."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start = Path.cwd()

    def parse_string(self, content: str, path: str | os.PathLike[str] = "", *args: Any, **kwargs: Any) -> Any:
        """jsonargparse is in the folder of the file meanwhile; ``start`` is where the command runs."""
        text = located(content, Path.cwd(), self.start) if path else content
        return super().parse_string(text, path, *args, **kwargs)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """What is written was parsed, and is not validated again: that would take a tenth of a short run's time."""
        return str(super().dump(*args, **{"skip_validation": True, **kwargs}))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """As :meth:`dump`."""
        super().save(*args, **{"skip_validation": True, **kwargs})

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Without Lightning's ``sub_configs``, which reads any path as YAML and takes a table for a text."""
        added: list[str] = super().add_class_arguments(*args, **{**kwargs, "sub_configs": False})
        for action in self._actions:
            if (hint := getattr(action, "_typehint", None)) is not None:
                action._typehint = whole_numbers_first(hint)
        return added


def whole_numbers_first(hint: Any) -> Any:
    """``int | float`` however it is spelt: the first of them that takes a value decides, and 1.0 batches are all.

    ``typing`` makes ``Optional[Union[int, float]]`` once and gives the same to who asks for ``Optional[Union[float,
    int]]``: which order Lightning's options have depends on who was imported before.
    """
    parts = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else []
    if int not in parts or float not in parts or parts.index(int) < parts.index(float):
        return hint
    parts.remove(int)
    parts.insert(parts.index(float), int)
    return Union[tuple(parts)]  # noqa: UP007 (a tuple of types)


class TrainingCLI(LightningCLI):
    """The YAML tree: seed_everything, plugins, trainer, model, data."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with ExitStack() as self.until_over:  # LightningCLI does all it does in its constructor
            self.writer = self.until_over.enter_context(Writer())
            super().__init__(*args, **kwargs)

    def subcommands(self) -> dict[str, set[str]]:
        """The one that was asked for: parsers of the others take half of the seconds before a command begins."""
        known: dict[str, set[str]] = super().subcommands()
        return {name: skipped for name, skipped in known.items() if name in self.parser_kwargs}

    def _parse_ckpt_path(self) -> None:
        """Not as in Lightning: no setting comes out of a checkpoint, least of all which model's code is trusted."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Words of our own, and defaults that work."""
        parser.add_argument(
            "--plugins",
            type=list[str] | str,
            default=[],
            help="Files, folders or modules that add rewards, objectives ...",
        )
        parser.add_argument(
            "--allow_changed_config",
            type=bool,
            default=False,
            help="Resume although the config, the prompts or the plug-ins have changed their meaning.",
        )
        parser.link_arguments("seed_everything", "model.seed", compute_fn=_seed)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=_seed)
        parser.link_arguments("plugins", "data.plugins")
        parser.set_defaults(DEFAULTS)

    def before_instantiate_classes(self) -> None:
        """Refuse what Lightning would silently replace, and find the checkpoint that ``last`` means."""
        config = self.config[self.subcommand]
        components = {name: config.data.get(name) for name in ("train", "val", "test", "predict", "rewards")}
        refuse_mappings(sys.argv[2:], components | {"demonstrations": config.model.get("cold_start.demonstrations")})
        if str(config.trainer.precision) == "bf16-true":  # the same weights, but inputs stay as they are
            config.trainer.precision, config.model.dtype = "32-true", "bfloat16"
        grow_segments(config.data.get("rollouts"))
        accelerator = str(config.trainer.accelerator)
        cpu = accelerator == "cpu" or (accelerator in ("auto", "gpu", "cuda") and not torch.cuda.is_available())
        check_precision(str(config.trainer.precision), cpu=cpu)
        check_strategy(config.trainer.strategy)
        if config.trainer.get("barebones"):
            raise UserError(
                "trainer.barebones",
                "is true, which forbids the logger, the checkpoints and the first evaluation that every run has here",
                fix="leave it out, and switch off what you do not need: trainer.logger: false, "
                "enable_checkpointing: false, enable_progress_bar: false, model.metrics: off",
            )
        fit = self.subcommand == "fit"
        given = config.get("ckpt_path")
        if fit and not given:
            check_writable(runs_of(config))
        self.resumption = Resumption.of(given, runs_of(config), writer=self.writer if fit else None)
        config.ckpt_path = path = self.resumption.path
        if given == "last" and path is not None:
            sys.argv.append(f"--ckpt_path={path}")  # the ranks that this process starts take the same
        if fit:
            check_writable(self.resumption.run or runs_of(config))
            plugins = [config.plugins] if isinstance(config.plugins, str) else list(config.plugins or [])
            self.resumption.check_config(config.as_dict(), versions(), plugins)
        elif path is not None:
            config.ckpt_path = kept_open(path, self.until_over)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Checkpoints hold tensors and primitives only: loading one never runs code from it."""
        kwargs: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        return kwargs | ({"weights_only": True} if kwargs.get("ckpt_path") else {})

    def _run_subcommand(self, subcommand: str) -> None:
        """Check everything that can be checked before Lightning creates loggers and folders."""
        self.model.weights_from_checkpoint = self.resumption.path is not None
        self.until_over.enter_context(few_threads(width_of(self.model.settings), self.trainer.strategy.root_device))
        try:
            self.model.prepare(subcommand, self.datamodule, self.trainer)
            if subcommand == "fit":
                prompts = self.datamodule.fingerprints() | self.model.fingerprints(self.datamodule)
                self.model.run.provenance = self.resumption.check_prompts(prompts)
            with warnings.catch_warnings():
                if subcommand != "fit":  # what keeps, shows and watches a training has no part in an evaluation
                    warnings.filterwarnings("ignore", message=".*callbacks used to create the checkpoint.*")
                super()._run_subcommand(subcommand)
            if subcommand in ("validate", "test") and self.trainer.is_global_zero:
                self._show_and_keep(subcommand)
        except MisconfigurationException as error:
            raise UserError("trainer", " ".join(str(error).split())) from error
        finally:
            self.datamodule.teardown(subcommand)  # also when preparing failed: no worker outlives the command

    def _show_and_keep(self, subcommand: str) -> None:
        """What an evaluation found, on the terminal and as a file."""
        module, config = self.model, self.config[subcommand]
        show_evaluation(shown_metrics(module))
        name = {"validate": "val"}.get(subcommand, subcommand)
        limited = range(len(self.datamodule.sets.read[name]))[: self.datamodule.evaluation.limit]
        prompts = len(module.evaluator.examples) if self.trainer.world_size == 1 else len(limited)
        run = self.resumption.run or runs_of(config)
        path = write_result(subcommand, run, module, prompts, self.resumption.path, config.as_dict())
        say(f"result: {path}")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the logger of the run folder, the callbacks and the atomic checkpoint writer to what the user chose."""
        config = self.config[self.subcommand]
        chosen = self._get(self.config_init, "trainer")
        fit = self.subcommand == "fit"
        kwargs["logger"] = loggers_of(chosen.get("logger"), config, fit, self.resumption)
        run, evaluates = self.resumption.run or runs_of(config), self.datamodule.val is not None
        kwargs["callbacks"] = callbacks_of(chosen, self.subcommand, run, self.resumption, evaluates)
        kwargs["plugins"] = [*listed(chosen.get("plugins")), AtomicCheckpointIO()]
        if not fit:
            self.save_config_callback = None
        elif self.resumption.path is not None:
            kwargs["num_sanity_val_steps"] = 0  # Lightning would evaluate again where an iteration was complete
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError, ImportError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError("trainer", " ".join(str(error).split())) from error  # Lightning's own words name the field
        agree_first(trainer, self.resumption, self.writer if fit else None)
        return trainer


def _seed(value: bool | int) -> int:
    if isinstance(value, bool):
        raise UserError(
            "seed_everything", f"is {str(value).lower()}; a run has a seed that can be repeated", fix="give a number"
        )
    return value
