"""A trainer that runs more than once writes one run folder."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from gspo_lightning.commands.fit.one_writer import agree_first
from gspo_lightning.resume import Resumption, Writer


def test_a_second_stage_of_a_trainer_makes_no_folder(tmp_path: Path) -> None:
    trainer = Trainer(
        logger=TensorBoardLogger(tmp_path, "run"), accelerator="cpu", devices=1, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with Writer() as writer:
        agree_first(trainer, Resumption(), writer)
        for _ in range(2):  # Lightning calls it for fit, and again for validate
            trainer.strategy.setup_environment()
            assert [path.name for path in (tmp_path / "run").iterdir()] == ["version_0"]
