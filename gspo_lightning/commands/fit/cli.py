"""LightningCLI with this package's settings and defaults: builds trainer, module and data module from a config."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import torch
from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from gspo_lightning.commands.fit.callbacks import callbacks_of, listed
from gspo_lightning.commands.fit.class_names import prefer_torch
from gspo_lightning.commands.fit.configs import located
from gspo_lightning.commands.fit.defaults import DEFAULTS
from gspo_lightning.commands.fit.explain import refuse_mappings, refuse_nulls
from gspo_lightning.commands.fit.one_writer import agree_first, hand_to_ranks, kept_open
from gspo_lightning.commands.fit.run_folder import check_writable, loggers_of, runs_of
from gspo_lightning.commands.fit.torchrun import follow_torchrun, say_one_device
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say
from gspo_lightning.core.variables import check_settings
from gspo_lightning.data.prompts.hub_revisions import begin, commits_read
from gspo_lightning.loop.update.optimizers import decays
from gspo_lightning.policy.load.cpu_bfloat16 import say_bfloat16
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.load.threads import few_threads, threads_of, width_of
from gspo_lightning.policy.load.trained_dtype import check_dtype
from gspo_lightning.policy.strategies.checks import check_strategy
from gspo_lightning.policy.strategies.sharding_strategy import sharding_of
from gspo_lightning.policy.strategies.slurm import explained
from gspo_lightning.resume import Resumption, Writer, plain, write_text
from gspo_lightning.resume.changes import versions
from gspo_lightning.training.callbacks import AtomicCheckpointIO, show_evaluation
from gspo_lightning.training.callbacks.folder import fresh_folder
from gspo_lightning.training.module import GSPOModule
from gspo_lightning.training.precision_checks import check_precision


def shown_metrics(module: GSPOModule) -> dict[str, float]:
    """Return the last evaluation's metrics, without accuracy and pass@k unless the reward judges correctness."""
    metrics = module.evaluator.last
    if module.shown_by == "accuracy":
        return dict(metrics)
    return {name: value for name, value in metrics.items() if not name.startswith(("val/accuracy", "val/pass@"))}


def write_result(
    command: str, run: Path, module: GSPOModule, prompts: int, checkpoint: str | None, config: Mapping[str, Any]
) -> Path:
    """Write ``<run>/<command>/<time>/<command>.json`` and return its path.

    Args:
        command: validate or test.
        run: folder of the evaluated run.
        module: module after its evaluation.
        prompts: number of answered prompts.
        checkpoint: loaded checkpoint; None if the weights come from the config's model.
        config: config of the command; its hash excludes the config file's path and the checkpoint.

    Raises:
        OSError: the folder cannot be written.
        UserError: a file is in place of the folder.
    """
    settings = {name: value for name, value in config.items() if name not in ("config", "ckpt_path")}
    finite = {name: value if math.isfinite(value) else None for name, value in shown_metrics(module).items()}
    content = {
        "command": command,
        "metrics": finite,
        "prompts": prompts,
        "samples_per_prompt": module.data.evaluation.samples,
        "data": module.data.fingerprints(),
        "model": module.settings.name_or_path,
        "checkpoint": checkpoint,
        "update": module.version,
        "seed": module.data.settings.seed,
        "config_sha256": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest(),
        "versions": versions(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    path = fresh_folder(run / command) / f"{command}.json"
    write_text(path, json.dumps(content, indent=2) + "\n")
    return path


ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"


def allocator_settings(environment: Mapping[str, str], rollouts: Any) -> dict[str, str]:
    """Return the environment variables to set; expandable segments avoid fragmentation by rows of many lengths.

    Empty if the user has set one already, or if vLLM sleeps in this process, as it does without
    ``enable_sleep_mode: false``: its own allocator, which frees the memory, refuses expandable segments.

    Args:
        environment: environment variables of this process.
        rollouts: ``data.rollouts``, a class path with its arguments.
    """
    if any(name in environment for name in ALLOCATOR):
        return {}
    options = _setting(_setting(rollouts, "init_args"), "options")
    is_engine = str(_setting(rollouts, "class_path") or "").endswith("VLLMEngine")
    sleeps = is_engine and (options is None or options.get("enable_sleep_mode", True))
    return {} if sleeps else {ALLOCATOR[1]: EXPANDABLE}


def grow_segments(rollouts: Any) -> None:
    """Set :func:`allocator_settings` if there is a GPU; ranks started by this process inherit them."""
    if torch.cuda.is_available():
        os.environ.update(allocator_settings(os.environ, rollouts))


def _setting(config: Any, name: str) -> Any:
    return None if config is None else config.get(name)


def keep_inputs(config: Any, *, fit: bool) -> None:
    """Turn ``bf16-true`` into bfloat16 weights without a cast of inputs; the policy computes the same.

    Raises:
        UserError: ``fit``, and all weights would be trained in bfloat16.
    """
    if str(config.trainer.precision) == "bf16-true":
        if fit and config.model.get("lora") is None:
            check_dtype(ModelSettings(dtype="bfloat16"), "trainer.precision", "bf16-true")
        config.trainer.precision = "32-true"
        config.model.dtype = "bfloat16"


class Parser(LightningArgumentParser):
    """Parser that takes values literally: ``data.train: x.csv`` is the path, not the file's content; 1 is not 1.0."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        prefer_torch()
        super().__init__(*args, **kwargs)
        self.start = Path.cwd()
        self._dumps = False

    def parse_string(self, content: str, path: str | os.PathLike[str] = "", *args: Any, **kwargs: Any) -> Any:
        """Resolve paths from ``start``: jsonargparse changes to the folder of the config file while it parses."""
        text = located(content, Path.cwd(), self.start) if path else content
        return super().parse_string(text, path, *args, **kwargs)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """Dump without validating again what was just parsed: that takes a tenth of a short run's time."""
        self._dumps = True
        try:
            return str(super().dump(*args, **{"skip_validation": True, **kwargs}))
        finally:
            self._dumps = False

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save without validating again, as in :meth:`dump`."""
        super().save(*args, **{"skip_validation": True, **kwargs})

    def get_defaults(self, *args: Any, **kwargs: Any) -> Namespace:
        """Return all defaults; of a component only its class, so that another class starts from its own arguments.

        jsonargparse would add the arguments of the default class here, before it reads the settings, and carry those
        over to a class that the settings choose: AdamW's weight decay to Adam. It adds the arguments of the class that
        is left at the end in any case. A dump without defaults (``--print_config=skip_default``) compares with all.
        """
        defaults: Namespace = super().get_defaults(*args, **kwargs)
        for action in () if self._dumps else self._actions:
            if _is_class(action.default):
                defaults[action.dest] = Namespace(copy.deepcopy(dict(action.default)))
        return defaults

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add arguments without Lightning's ``sub_configs``, which reads any path as YAML, and a table as a string.

        An optimizer decays no weights by default, whatever its class: decay moves the policy where no reward does.
        """
        added: list[str] = super().add_class_arguments(*args, **{**kwargs, "sub_configs": False})
        for action in self._actions:
            hint = getattr(action, "_typehint", None)
            if hint is not None:
                action._typehint = whole_numbers_first(hint)
        if decays(args[0]):
            self.set_defaults(weight_decay=0.0)
        return added


def _is_class(default: Any) -> bool:
    """True if the default of a setting is a component: the path of a class."""
    return isinstance(default, Mapping | Namespace) and "class_path" in default


def whole_numbers_first(hint: Any) -> Any:
    """Put ``int`` before ``float`` in a union: the first type that accepts a value wins, and 1.0 batches means all.

    ``typing`` caches ``Optional[Union[int, float]]`` and returns it for ``Optional[Union[float, int]]`` too, so the
    order of types in Lightning's options depends on which modules were imported before.
    """
    parts = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else []
    if int not in parts or float not in parts or parts.index(int) < parts.index(float):
        return hint
    parts.remove(int)
    parts.insert(parts.index(float), int)
    return Union[tuple(parts)]  # noqa: UP007 (a tuple of types)


class TrainingCLI(LightningCLI):
    """LightningCLI of training; top-level settings: seed_everything, plugins, trainer, model, data."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with ExitStack() as self.until_over:  # LightningCLI runs the command in its constructor
            self.writer = self.until_over.enter_context(Writer())
            super().__init__(*args, **kwargs)

    def subcommands(self) -> dict[str, set[str]]:
        """Return only the requested subcommand: building the other parsers takes half of a command's startup time."""
        commands: dict[str, set[str]] = super().subcommands()
        return {name: skipped for name, skipped in commands.items() if name in self.parser_kwargs}

    def _parse_ckpt_path(self) -> None:
        """Do nothing: unlike Lightning, read no setting from a checkpoint, least of all ``trust_remote_code``."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the package's own options and default values."""
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
        """Refuse settings that Lightning would silently replace, and resolve the checkpoint ``last``."""
        config = self.config[self.subcommand]
        refuse_nulls(sys.argv[2:])
        components = {name: config.data.get(name) for name in ("train", "val", "test", "predict", "rewards")}
        refuse_mappings(sys.argv[2:], components | {"demonstrations": config.model.get("cold_start.demonstrations")})
        keep_inputs(config, fit=self.subcommand == "fit")
        follow_torchrun(config.trainer, os.environ)
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
        writer = self.writer if fit else None
        settings = plain(config.as_dict())
        self.resumption = Resumption.of(given, runs_of(config), writer=writer, config=settings)
        begin(self.resumption.before.get("datasets", {}))
        config.ckpt_path = path = self.resumption.path
        hand_to_ranks(self.resumption)
        if fit:
            check_writable(self.resumption.run or runs_of(config))
            plugins = [config.plugins] if isinstance(config.plugins, str) else list(config.plugins or [])
            self.resumption.check_config(config.as_dict(), versions(), plugins)
        elif path is not None:
            config.ckpt_path = kept_open(path, self.until_over)
        self.resumption.check_model(settings)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Load checkpoints with ``weights_only``: they hold tensors and primitives, and loading runs no code."""
        kwargs: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        return kwargs | ({"weights_only": True} if kwargs.get("ckpt_path") else {})

    def _run_subcommand(self, subcommand: str) -> None:
        """Run all checks that are possible before Lightning creates loggers and folders, then the subcommand."""
        self.model.weights_from = self.resumption.model
        self.model.run.may_change = self.resumption.allowed
        if subcommand == "fit":
            self.resumption.check_layout(sharded=sharding_of(self.trainer.strategy) is not None)
        device = self.trainer.strategy.root_device
        width = width_of(self.model.settings)
        self.until_over.enter_context(few_threads(width, device))
        if subcommand == "fit":
            say_bfloat16(width, device, str(self.trainer.precision))
        try:
            self.model.prepare(subcommand, self.datamodule, self.trainer)
            if subcommand == "fit":
                prompts = self.datamodule.fingerprints() | self.model.fingerprints(self.datamodule)
                self.model.run.provenance = self.resumption.check_prompts(prompts, commits_read(), threads_of(device))
            with warnings.catch_warnings():
                if subcommand != "fit":  # training callbacks are not needed in an evaluation
                    warnings.filterwarnings("ignore", message=".*callbacks used to create the checkpoint.*")
                super()._run_subcommand(subcommand)
            if subcommand in ("validate", "test") and self.trainer.is_global_zero:
                self._show_and_keep(subcommand)
        except MisconfigurationException as error:
            raise UserError("trainer", " ".join(str(error).split())) from error
        finally:
            self.datamodule.teardown(subcommand)  # also when preparing failed: no worker outlives the command

    def _show_and_keep(self, subcommand: str) -> None:
        """Print the metrics of an evaluation and write them to a file."""
        module = self.model
        config = self.config[subcommand]
        show_evaluation(shown_metrics(module))
        if self.trainer.world_size == 1:
            prompts = len(module.evaluator.examples)
        else:  # a rank knows the answers to its own share only
            name = {"validate": "val"}.get(subcommand, subcommand)
            prompts = len(range(len(self.datamodule.sets.read[name]))[: self.datamodule.evaluation.limit])
        run = self.resumption.run or runs_of(config)
        path = write_result(subcommand, run, module, prompts, self.resumption.path, config.as_dict())
        say(f"result: {path}")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the run folder's logger, default callbacks and the atomic checkpoint writer to the user's settings."""
        config = self.config[self.subcommand]
        chosen = self._get(self.config_init, "trainer")
        fit = self.subcommand == "fit"
        if fit:
            check_settings(plain(config.as_dict()))  # after components, whose own checks of URLs know the fix
        kwargs["logger"] = loggers_of(chosen.get("logger"), config, fit, self.resumption)
        run = self.resumption.run or runs_of(config)
        evaluates = self.datamodule.val is not None
        kwargs["callbacks"] = callbacks_of(chosen, self.subcommand, run, self.resumption, evaluates)
        kwargs["plugins"] = [*listed(chosen.get("plugins")), AtomicCheckpointIO()]
        if not fit:
            self.save_config_callback = None
        elif self.resumption.path is not None:
            kwargs["num_sanity_val_steps"] = 0  # else Lightning would repeat the evaluation of a complete iteration
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, TypeError, ValueError, ImportError, RuntimeError, KeyError) as error:
            refusal = explained(error)
            if refusal is not None:
                raise refusal from error
            if isinstance(error, UserError | RuntimeError | KeyError):
                raise
            raise UserError("trainer", " ".join(str(error).split())) from error  # Lightning's message names the field
        agree_first(trainer, self.resumption, self.writer if fit else None)
        say_one_device(trainer, config.trainer)
        return trainer


def _seed(value: bool | int) -> int:
    if isinstance(value, bool):
        raise UserError(
            "seed_everything", f"is {str(value).lower()}; a run has a seed that can be repeated", fix="give a number"
        )
    return value
