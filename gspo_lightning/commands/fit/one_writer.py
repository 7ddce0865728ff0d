"""Agreement of all ranks on the run folder, its lock, and the checkpoint to start from."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from gspo_lightning.core.distributed import all_gather_objects, fail_together, rank_and_world
from gspo_lightning.core.errors import UserError
from gspo_lightning.resume import Resumption, Writer, claim_version


def agree_first(trainer: Trainer, resumption: Resumption, writer: Writer | None) -> None:
    """Make the ranks agree as soon as they can communicate, just before Lightning creates loggers and folders.

    Args:
        trainer: trainer of the run; its strategy sets up the process group.
        resumption: resume state found by this rank.
        writer: lock of the run folder; None for commands that only read it.
    """
    logger = trainer.loggers[0] if trainer.loggers else None
    unnamed = logger if isinstance(logger, TensorBoardLogger) and logger._version is None else None
    set_up = trainer.strategy.setup_environment

    def then_agree() -> None:
        set_up()
        with fail_together():
            if writer is not None and rank_and_world()[0] == 0:
                _settle(writer, trainer, unnamed)
        agree_on_checkpoint(resumption)
        versions = all_gather_objects(None if unnamed is None else unnamed._version)
        if unnamed is not None:
            unnamed._version = versions[0]

    trainer.strategy.setup_environment = then_agree


def agree_on_checkpoint(resumption: Resumption) -> None:
    """Refuse ranks that would start from different checkpoints; the path may differ, as where nodes mount a folder.

    Raises:
        UserError: their content differs.
    """
    checkpoints = all_gather_objects((resumption.content_id, resumption.path))
    if len({content for content, _ in checkpoints}) == 1:
        return
    paths = sorted({str(path or "none") for _, path in checkpoints})
    raise UserError(
        "ckpt_path",
        f"the ranks found different checkpoints: {', '.join(paths)}",
        fix="name one by its path: the run was being written while they looked",
    )


def hand_to_ranks(resumption: Resumption) -> None:
    """Make the ranks that this process starts with its own arguments take the same checkpoint."""
    if resumption.path is not None:
        sys.argv.append(f"--ckpt_path={resumption.path}")


def _settle(writer: Writer, trainer: Trainer, unnamed: TensorBoardLogger | None) -> None:
    """Lock the folder that the first rank will write; an unnamed run gets a new folder."""
    if unnamed is not None and unnamed._version is None:  # a trainer may run more than once
        unnamed._version = claim_version(Path(unnamed.root_dir), unnamed._get_next_version)
    logger = trainer.loggers[0] if trainer.loggers else None
    writer.settle(Path(logger.log_dir if isinstance(logger, TensorBoardLogger) else trainer.default_root_dir))


def kept_open(path: str, until: ExitStack) -> str:
    """Return a path of a checkpoint that stays valid if the training run deletes the file.

    Args:
        path: checkpoint file; a folder of shards is returned as it is.
        until: closes the file.

    Raises:
        UserError: the file is already gone.
    """
    if os.path.isdir(path):
        return path
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise UserError("ckpt_path", f"{path} was removed by the run meanwhile", fix="repeat this command") from error
    until.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"
