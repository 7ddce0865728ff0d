"""Settings about records from a training config, and lengths of prompts in a model's tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gspo_lightning.commands.data.setting import Setting
from gspo_lightning.commands.evaluate.configured import configured
from gspo_lightning.commands.fit.cli import TrainingCLI
from gspo_lightning.core.types import SystemPrompt
from gspo_lightning.data.corpus.text import prompt_text
from gspo_lightning.data.prompts.encode import Encoder
from gspo_lightning.data.prompts.on_demand import OnDemand
from gspo_lightning.data.prompts.pictures.columns import has_pictures, join_texts
from gspo_lightning.data.prompts.pictures.reading import BadPictureError
from gspo_lightning.data.prompts.prompt_set import Record
from gspo_lightning.policy.load.loading import load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings


def of_config(files: Sequence[str], rest: Sequence[str]) -> Setting:
    """Return columns, rewards, prompt lengths and prompt limit of a ``gspo fit`` config; no weights are loaded."""
    settings: list[Setting] = []

    def read(cli: TrainingCLI) -> None:
        config = cli.config[cli.subcommand].data
        data = cli.datamodule
        lengths = lengths_in(cli.model.settings, config.system_prompt, dict(config.chat_template_kwargs or {}))
        settings.append(Setting(dict(config.columns or {}), data.rewards, lengths, data.settings.max_prompt_tokens))

    arguments = []
    for file in files:
        arguments += ["--config", file]
    configured([*arguments, *rest], read)
    [setting] = settings
    return setting


@dataclass(frozen=True)
class _Batch(OnDemand[Record]):
    """Records of a file, which messages name by file and line."""

    pairs: Sequence[tuple[str, Record]]

    def __len__(self) -> int:
        return len(self.pairs)

    def at(self, place: int) -> Record:
        return self.pairs[place][1]

    def place(self, number: int) -> str:
        return self.pairs[number][0]


def lengths_in(
    model: ModelSettings, system_prompt: SystemPrompt | None = None, template_kwargs: Mapping[str, Any] | None = None
) -> Callable[[Sequence[tuple[str, Record]]], list[int]]:
    """Return a function that counts the tokens of prompts with system prompt and chat template.

    It takes (place, record) pairs. Pictures are not counted.
    """
    tokenizer = load_tokenizer(model)
    encoder = Encoder(tokenizer, system_prompt, template_kwargs or {}, "FILE")
    takes_messages = tokenizer.chat_template is not None

    def lengths(records: Sequence[tuple[str, Record]]) -> list[int]:
        plain = _Batch([(where, _without_pictures(record, takes_messages)) for where, record in records])
        return [len(prompt.ids) for _, prompt, _ in encoder.many(plain) if not isinstance(prompt, BadPictureError)]

    return lengths


def _without_pictures(record: Record, takes_messages: bool) -> Record:
    """Return prompt and tools of a record; messages become one text if they hold pictures or cannot be taken."""
    plain = join_texts({"prompt": record["prompt"], "tools": record.get("tools")})
    return plain if takes_messages and not has_pictures(plain) else {**plain, "prompt": prompt_text(plain["prompt"])}
