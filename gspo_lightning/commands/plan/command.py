"""``gspo plan``: estimate memory, batch arithmetic and compute of a config, before you pay for a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from gspo_lightning.commands.fit.cli import TrainingCLI, keep_inputs
from gspo_lightning.commands.fit.command import run
from gspo_lightning.commands.fit.unknown import refuse_unknown
from gspo_lightning.commands.plan.advice import options_that_fit
from gspo_lightning.commands.plan.devices import CARDS, Device, device_of
from gspo_lightning.commands.plan.job import Job, job_of
from gspo_lightning.commands.plan.memory import Memory, memory_of
from gspo_lightning.commands.plan.models import config_of, skeleton
from gspo_lightning.commands.plan.show import show
from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.experience.sources import check_context
from gspo_lightning.policy.load.trained_dtype import check_stored_dtype
from gspo_lightning.policy.strategies.checks import check_experts
from gspo_lightning.training.precision_checks import check_precision


def main(argv: Sequence[str]) -> int:
    """Plan a run, with the arguments of ``gspo fit``; return 1 if it does not fit into memory, else 0.

    Raises:
        UserError: the config is wrong, or no known option would make the run fit.
    """
    parser = argparse.ArgumentParser(
        "gspo plan",
        description="Estimate memory, batches and compute of a config before you rent a GPU. Loads no weights.",
        epilog="Everything else is passed on as to gspo fit: --config FILE.yaml [--config OVERLAY.yaml] [--a.b VALUE]",
    )
    parser.add_argument(
        "--device",
        help=f"memory of a device such as 80GB, cpu, or a card: {', '.join(CARDS)}; default: H100, or the config's cpu",
    )
    parser.add_argument(
        "--mean-response",
        type=int,
        metavar="TOKENS",
        help="also print the peak if responses have this many tokens on average, and not data.max_response_tokens each",
    )
    parser.add_argument("--time", action="store_true", help="print the time of each phase, and all assumptions")
    options, rest = parser.parse_known_args(list(argv))
    refuse_unknown(rest)

    class PlanCLI(TrainingCLI):
        """CLI of ``gspo fit`` that prints a plan instead of starting a run."""

        def before_instantiate_classes(self) -> None:
            """Resume and write nothing."""
            keep_inputs(self.config[self.subcommand], fit=True)

        def instantiate_classes(self) -> None:
            """Instantiate only the model and data modules: a trainer would look for devices that this machine lacks."""
            instances = self.parser.instantiate_classes(self.config)[self.subcommand]
            self.model = instances.model
            self.datamodule = instances.data

        def _run_subcommand(self, subcommand: str) -> None:
            raise SystemExit(0 if plan(self, options.device, options.time, options.mean_response) else 1)

    return run(["fit", *rest], PlanCLI)


def plan(cli: TrainingCLI, device_word: str | None, phases: bool = False, mean: int | None = None) -> bool:
    """Print the plan of a parsed config; return True if it fits into memory."""
    config = cli.config[cli.subcommand]
    device = device_of(device_word, str(config.trainer.accelerator))
    job = job_of(cli.model, cli.datamodule, config, packed=device.cpu)  # a GPU run may fall back to padding
    check_precision(str(config.trainer.precision))
    cli.model.check_dtype()
    check_stored_dtype(job.model, config_of(job.model))
    cli.datamodule.settings.check_ranks(job.world)
    if job.expert_parallel:
        check_experts(skeleton(config_of(job.model), job.lora, job.model.freeze), job.world)
    check_context(cli.datamodule.longest, _positions(job))
    memory = memory_of(job, device)
    fits = memory.peak <= device.memory
    if device_word is None and not device.cpu:
        device = replace(device, name=f"{device.name} (assumed; --device names another)")
    shorter = None if mean is None else _shorter(job, device, mean)
    show(job, device, memory, [] if fits else options_that_fit(job, device), phases, shorter)
    return fits


def _shorter(job: Job, device: Device, mean: int) -> tuple[int, Memory]:
    """Return a mean length of responses, and the memory of as many responses of that length."""
    if not 1 <= mean <= job.max_response:
        raise UserError(
            "--mean-response", f"is {mean}, and data.max_response_tokens is {job.max_response}", fix="give one between"
        )
    return mean, memory_of(replace(job, max_response=mean), device)


def _positions(job: Job) -> int | None:
    limit = getattr(config_of(job.model).get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit else None
