"""Settings about records from a training config, and loading of tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspo_lightning.commands.data.setting import Setting
from gspo_lightning.commands.evaluate.configured import configured
from gspo_lightning.commands.fit.cli import TrainingCLI
from gspo_lightning.policy.loading import load_tokenizer
from gspo_lightning.policy.settings import ModelSettings

__all__ = ["of_config", "tokenizer_of"]


def of_config(files: Sequence[str], rest: Sequence[str]) -> Setting:
    """Return columns, rewards, tokenizer and prompt limit of a ``gspo fit`` config; no weights are loaded."""
    found: list[Setting] = []

    def look(cli: TrainingCLI) -> None:
        config, data = cli.config[cli.subcommand], cli.datamodule
        columns = dict(config.data.columns or {})
        tokenizer = load_tokenizer(cli.model.settings)
        found.append(Setting(columns, data.rewards, tokenizer, data.settings.max_prompt_tokens))

    configured([*(word for file in files for word in ("--config", file)), *rest], look)
    return found[0]


def tokenizer_of(name: str) -> Any:
    """Load the tokenizer of a hub id, a folder or a tiny model."""
    return load_tokenizer(ModelSettings(name))
