"""fit, validate, test and predict: LightningCLI with this package's words, defaults and error messages."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from gspo_lightning import callbacks
from gspo_lightning.commands.fit.arguments import DEFAULT_CLASSES, explain, plugin_paths, refuse_mappings
from gspo_lightning.commands.fit.loggers import loggers_of
from gspo_lightning.commands.fit.quiet import quieten
from gspo_lightning.commands.fit.run_folder import DEFAULT_ROOT, check_writable, run_name
from gspo_lightning.distributed import leaves_no_group
from gspo_lightning.errors import InfrastructureError, UserError
from gspo_lightning.registry import import_plugins
from gspo_lightning.resume import Resumption
from gspo_lightning.resume.versions import versions
from gspo_lightning.strategies.checks import check_strategy
from gspo_lightning.training.checks import check_precision
from gspo_lightning.training.data import PromptDataModule
from gspo_lightning.training.module import GSPOModule

__all__ = ["TrainingCLI", "run"]

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
"""What an operating system says when it cannot write."""


def run(arguments: list[str], cli: type[TrainingCLI] | None = None) -> int:
    """Parse and run a training command; ``arguments[0]`` is its name. ``cli`` does something else with the config.

    Raises:
        UserError: anything wrong with the arguments or the config.
    """
    quieten()
    import_plugins(plugin_paths(arguments))
    header = [f"{name} {version}" for name, version in versions().items()]  # of every saved config
    parser = {"exit_on_error": False, "dump_header": header}
    argv, sys.argv = sys.argv, [sys.argv[0], *arguments]  # what Lightning's launcher starts the other ranks with
    try:
        with leaves_no_group(of_many=False):  # the other ranks may be this script, with more to do together
            (cli or TrainingCLI)(
                GSPOModule,
                PromptDataModule,
                args=arguments,
                seed_everything_default=1,
                parser_kwargs={**parser, arguments[0]: dict(parser)},
                parser_class=_Parser,
                save_config_kwargs={"overwrite": True},
                auto_configure_optimizers=False,
            )
    except UserError:
        raise
    except ArgumentError as error:
        raise explain(error, arguments[1:]) from error
    except ValueError as error:  # a constructor refused its arguments, wrapped by jsonargparse
        if "Does not validate against" not in str(error):
            raise
        raise explain(error, arguments[1:]) from error
    except SystemExit as error:
        first = int(os.environ.get("LOCAL_RANK", "0")) == 0  # Lightning kills the first rank when another one fails
        if isinstance(error, callbacks.Terminated):
            return int(error.code or 0) if first else 0
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning turns Ctrl-C into exit(1)
            return 130 if first else 0
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except OSError as error:
        if error.errno not in DISK:
            raise
        raise InfrastructureError(
            f"writing failed: {error.strerror}{f': {error.filename}' if error.filename else ''}; checkpoints that were "
            f"finished are whole.\n  fix: make room (or the folder writable), then go on with --ckpt_path last"
        ) from error
    finally:
        sys.argv = argv
    return 0


class _Parser(LightningArgumentParser):
    """A value is what is written, never what stands in a file of that name: ``data.train: x.csv`` means the file."""

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Without Lightning's ``sub_configs``, which reads any path as YAML and takes a table for a text."""
        added: list[str] = super().add_class_arguments(*args, **{**kwargs, "sub_configs": False})
        return added


class TrainingCLI(LightningCLI):
    """The YAML tree: seed_everything, plugins, trainer, model, data."""

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
            help="Resume although the config, the prompts or the plug-ins mean something else than before.",
        )
        parser.link_arguments("seed_everything", "model.seed", compute_fn=_seed)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=_seed)
        parser.link_arguments("plugins", "data.plugins")
        parser.set_defaults(
            {
                **{field: {"class_path": path} for field, path in DEFAULT_CLASSES.items()},
                "trainer.default_root_dir": DEFAULT_ROOT,
                "trainer.gradient_clip_val": 1.0,
                "trainer.num_sanity_val_steps": -1,  # the evaluation before the first update
                "trainer.log_every_n_steps": 1,
                "trainer.max_epochs": 100,
                "trainer.accelerator": "auto",
                "trainer.enable_model_summary": False,
            }
        )

    def before_instantiate_classes(self) -> None:
        """Refuse what Lightning would silently replace, and find the checkpoint that ``last`` means."""
        config = self.config[self.subcommand]
        refuse_mappings(sys.argv[2:], {name: config.data.get(name) for name in ("train", "val", "test", "predict")})
        if str(config.trainer.precision) == "bf16-true":  # the same weights, but inputs stay as they are
            config.trainer.precision, config.model.dtype = "32-true", "bfloat16"
        check_precision(str(config.trainer.precision))
        check_strategy(config.trainer.strategy)
        if config.trainer.get("barebones"):
            raise UserError(
                "trainer.barebones",
                "is true, which forbids the logger, the checkpoints and the first evaluation that every run has here",
                fix="leave it out, and switch off what you do not need: trainer.logger: false, "
                "enable_checkpointing: false, enable_progress_bar: false, model.metrics: off",
            )
        folder = Path(config.trainer.default_root_dir or DEFAULT_ROOT) / run_name(config)
        self.resumption = Resumption.of(config.get("ckpt_path"), folder, may_start_over=self.subcommand == "fit")
        config.ckpt_path = self.resumption.path
        if self.subcommand == "fit":
            check_writable(Path(config.trainer.default_root_dir or DEFAULT_ROOT))
            plugins = [config.plugins] if isinstance(config.plugins, str) else list(config.plugins or [])
            self.resumption.check_config(config.as_dict(), versions(), plugins)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Checkpoints hold tensors and primitives only: loading one never runs code from it."""
        kwargs: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        return kwargs | ({"weights_only": True} if kwargs.get("ckpt_path") else {})

    def _run_subcommand(self, subcommand: str) -> None:
        """Check everything that can be checked before Lightning creates loggers and folders."""
        self.model.weights_from_checkpoint = self.resumption.path is not None
        try:
            self.datamodule.prepare(subcommand, self.model, self.trainer)
            if subcommand == "fit":
                self.model.provenance = self.resumption.check_prompts(self.datamodule.fingerprints())
            with warnings.catch_warnings():
                if subcommand != "fit":  # what keeps, shows and watches a training has no part in an evaluation
                    warnings.filterwarnings("ignore", message=".*callbacks used to create the checkpoint.*")
                super()._run_subcommand(subcommand)
            if subcommand in ("validate", "test") and self.trainer.is_global_zero:
                callbacks.show_evaluation(self.model.last_evaluation)
        except MisconfigurationException as error:
            raise UserError("trainer", " ".join(str(error).split())) from error
        finally:
            self.datamodule.teardown(subcommand)  # also when preparing failed: no worker outlives the command

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the logger of the run folder, the callbacks and the atomic checkpoint writer to what the user chose."""
        config = self.config[self.subcommand]
        chosen = self._get(self.config_init, "trainer")
        fit = self.subcommand == "fit"
        kwargs["logger"] = loggers_of(chosen.get("logger"), config, fit, self.resumption)
        run = self.resumption.run or Path(config.trainer.default_root_dir or DEFAULT_ROOT) / run_name(config)
        own = [callbacks.PredictionWriter(run)] if self.subcommand == "predict" else []
        if fit:
            own += [callbacks.Collapse(), callbacks.Dashboard(), callbacks.RunSummary()]
            own += [callbacks.NewOptimizerSettings()] if self.resumption.optimizer_changed else []
        given = _listed(chosen.get("callbacks"))
        shown = any(isinstance(callback, ProgressBar) for callback in given)
        if chosen.get("enable_progress_bar") is not False and not shown:
            own += [callbacks.RunProgress()]
        if fit:  # interrupts after what counts updates, checkpoints last: they hold what the others have counted
            own += [callbacks.Interrupts()]
            own += [callbacks.LastCheckpoint()] if chosen.get("enable_checkpointing") is not False else []
        theirs = {type(c) for c in given}
        adapted = callbacks.adapted(given, evaluates=config.data.get("val") is not None)
        kwargs["callbacks"] = [*adapted, *(c for c in own if type(c) not in theirs)]
        kwargs["plugins"] = [*_listed(chosen.get("plugins")), callbacks.AtomicCheckpointIO()]
        if not fit:
            self.save_config_callback = None
        elif self.resumption.path is not None:
            kwargs["num_sanity_val_steps"] = 0  # Lightning would evaluate again where an iteration was complete
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError, ImportError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError("trainer", " ".join(str(error).split())) from error  # Lightning's own words name the field


def _listed(chosen: Any) -> list[Any]:
    """One, several or none, as Lightning takes them."""
    return list(chosen) if isinstance(chosen, list | tuple) else [] if chosen is None else [chosen]


def _seed(value: bool | int) -> int:
    if isinstance(value, bool):
        raise UserError(
            "seed_everything", f"is {str(value).lower()}; a run has a seed that can be repeated", fix="give a number"
        )
    return value
