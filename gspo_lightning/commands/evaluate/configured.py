"""``gspo evaluate --config``: the model, the rollout source and the prompt format of a training config."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from gspo_lightning.commands.evaluate.answers import Answers
from gspo_lightning.commands.evaluate.model import DEVICE, Sampled
from gspo_lightning.commands.export import checkpoint_policy
from gspo_lightning.commands.fit.cli import TrainingCLI, keep_inputs
from gspo_lightning.commands.fit.command import run
from gspo_lightning.commands.fit.run_folder import root_of, runs_of
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.threads import few_threads, width_of
from gspo_lightning.resume import Resumption, plain
from gspo_lightning.training.cold_start import prompt_format_of


def with_config(arguments: Sequence[str], work: Callable[[Answers], None]) -> int:
    """Run :func:`configured` with work that needs only a source of answers."""
    return configured(arguments, lambda cli: work(sampled(cli)))


def configured(arguments: Sequence[str], work: Callable[[TrainingCLI], None]) -> int:
    """Parse a config as ``gspo fit`` does and pass the CLI to ``work``; nothing is trained or resumed.

    Args:
        arguments: ``--config FILE ...`` and any options of ``gspo fit``; ``--ckpt_path last`` is the newest checkpoint
            of the config's newest run.
        work: called with the CLI, which has the model and data modules; no weights or data are loaded yet.

    Returns:
        The exit code.

    Raises:
        UserError: a mistake in the config, or no such checkpoint.
    """

    class ConfiguredCLI(TrainingCLI):
        """CLI of ``gspo fit`` that calls ``work`` instead of starting a run."""

        def before_instantiate_classes(self) -> None:
            """Resolve the checkpoint; nothing is written."""
            config = self.config[self.subcommand]
            keep_inputs(config, fit=False)
            settings = plain(config.as_dict())
            self.resumption = Resumption.of(config.get("ckpt_path"), runs_of(config), writer=None, config=settings)
            self.resumption.check_model(settings)

        def instantiate_classes(self) -> None:
            """Instantiate only the model and data modules."""
            instances = self.parser.instantiate_classes(self.config)[self.subcommand]
            self.model = instances.model
            self.datamodule = instances.data

        def _run_subcommand(self, subcommand: str) -> None:
            with few_threads(width_of(self.model.settings), DEVICE):
                work(self)

    return run(["fit", *arguments], ConfiguredCLI)


def sampled(cli: TrainingCLI) -> Sampled:
    """Return the policy of a config with its rollout source."""
    module = cli.model
    data = cli.datamodule
    path = cli.resumption.path
    config = cli.config[cli.subcommand]
    if path is not None:
        policy = checkpoint_policy(Path(path), trust_remote_code=module.settings.trust_remote_code)
    else:
        settings = module.settings
        if module.cold_start is not None:  # training starts from it
            settings = module.cold_start.ensure(settings, root_of(config), data.longest, prompt_format_of(data))
        policy = load_policy(settings)
    return Sampled(
        policy,
        {"model": module.settings.name_or_path, "checkpoint": path},
        data.rollouts,
        config.data.system_prompt,
        config.data.chat_template_kwargs,
        _autocast(str(config.trainer.precision)),
    )


def _autocast(precision: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return the autocast context that evaluations during training use."""
    if precision not in ("16", "16-mixed", "bf16", "bf16-mixed"):
        return nullcontext
    dtype = torch.float16 if precision.startswith("16") else torch.bfloat16
    return functools.partial(torch.autocast, "cuda" if torch.cuda.is_available() else "cpu", dtype=dtype)
