"""Number of ranks: what torchrun has started, and a word where a strategy for several has one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from lightning.pytorch import Trainer

from gspo_lightning.core.errors import UserError

log = logging.getLogger(__name__)


def follow_torchrun(trainer: MutableMapping[str, Any], environment: Mapping[str, str]) -> None:
    """Take the numbers of nodes and of ranks from torchrun: with ``--nnodes 1:4`` a restart may have fewer.

    Args:
        trainer: config of the trainer; its ``num_nodes`` and ``devices`` are replaced.
        environment: environment variables of this process; unchanged without those of torchrun.

    Raises:
        UserError: torchrun may start the ranks again, but would give them the addresses of the ranks that have ended:
            it shares its own store of addresses, and no longer clears it (pytorch#135712; true of torch 2.13).
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return
    trainer["num_nodes"] = int(environment["GROUP_WORLD_SIZE"])
    trainer["devices"] = int(environment["LOCAL_WORLD_SIZE"])
    restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if restarts != "0" and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise UserError(
            "torchrun --max-restarts",
            f"is {restarts}, but ranks that are started again would connect to addresses of those that have ended, and "
            f"wait for them",
            fix="start torchrun as examples/torchrun.sh does: with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the "
            "environment and --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:PORT in place of --master-addr",
        )


def say_one_device(trainer: Trainer, config: Mapping[str, Any]) -> None:
    """Say in one line that a strategy for several devices has one: overlays of strategies name no number.

    Args:
        trainer: trainer of the command.
        config: its config.
    """
    if trainer.world_size == 1 and config["strategy"] not in (None, "auto", "single_device"):
        devices = config["devices"]
        log.warning(
            "trainer.strategy is that of several devices, but there is one (trainer.devices: %s): nothing is spread; "
            "give --trainer.devices N, or auto for all", devices,
        )  # fmt: skip
