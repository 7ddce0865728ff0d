"""LightningDataModule of preference pairs: training pairs and held-out pairs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError, check_choice
from gspo_lightning.core.randomness import Purpose, permutation, stream
from gspo_lightning.core.types import Prompt
from gspo_lightning.data.prompts import PromptSet, open_prompts
from gspo_lightning.data.prompts.files import HubPrompts, PromptFile
from gspo_lightning.data.prompts.preferences import Preferences, read_preferences
from gspo_lightning.resume.resumption import Fingerprint
from gspo_lightning.training.reward_models.pair_batches import Dropped, PairLoader, Row, Text, encode_pairs

log = logging.getLogger(__name__)

_HELD_OUT_SHARE = 10
"""Without held-out pairs, those of one prompt in so many are held out."""
_HELD_OUT_MOST = 1000
"""Most prompts whose pairs are held out."""


class PreferenceDataModule(LightningDataModule):
    """Preference pairs in TRL's format, from files or from the hub.

    Args:
        train: pairs to learn from: a file (.jsonl, .json, .csv, .tsv, .parquet), a hub id, or a prompt set. Records
            hold ``chosen`` and ``rejected``, and may hold ``prompt`` and ``margin``.
        val: held-out pairs; None holds out the pairs of one prompt in ten, of at most 1,000 prompts.
        columns: our name -> the data's name: ``{chosen: preferred, rejected: other}``.
        text: what the model reads: ``joined`` (prompt and answer as one text) or ``chat`` (as the tokenizer's chat
            template writes them). None takes ``chat`` if records hold messages, else ``joined``. The reward must be
            used the same way: ``SequenceClassificationReward`` refuses another one.
        batch_size: pairs per optimizer step, over all ranks.
        micro_batch_size: pairs per forward pass on one rank: affects memory only, never results.
        max_tokens: most tokens of an answer with its prompt; pairs with a longer one are dropped and counted, never
            cut.
            None takes the model's limit.
        seed: seed of the order of the pairs; the command line sets it from ``seed_everything``.
    """

    def __init__(
        self,
        train: PromptSet | str,
        val: PromptSet | str | None = None,
        columns: dict[str, str] | None = None,
        text: Text | None = None,
        batch_size: int = 64,
        micro_batch_size: int = 8,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("batch_size", batch_size), ("micro_batch_size", micro_batch_size)):
            if value < 1:
                raise UserError(f"data.{name}", f"is {value}; it must be at least 1")
        if max_tokens is not None and max_tokens < 1:
            raise UserError("data.max_tokens", f"is {max_tokens}; it must be at least 1")
        if text is not None:
            check_choice("data.text", text, ("joined", "chat"))
        self.train = train
        self.val = val
        self.columns = dict(columns or {})
        self.text = text
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.max_tokens = max_tokens
        self.seed = seed
        self.rows: dict[str, list[Row]] = {}
        """Rows of ``train`` and ``val``, once they have been read."""
        self.dropped: dict[str, Dropped] = {}
        self.reads: Text = "joined"
        """Text format that the model reads, once pairs have been read."""
        self._fingerprints: dict[str, dict[str, Any]] = {}
        self._tokenizer: PreTrainedTokenizerBase | None = None

    def read(self, tokenizer: PreTrainedTokenizerBase, longest: int | None) -> None:
        """Read and encode all pairs, once.

        Args:
            tokenizer: of the model.
            longest: the model's limit of tokens; None if unknown.

        Raises:
            UserError: a malformed record, too few pairs, or a format that the tokenizer cannot write.
        """
        if self.rows:
            return
        self._tokenizer = tokenizer
        limit = self.max_tokens or longest or 1 << 30
        if longest is not None and limit > longest:
            problem = f"is {limit}, but the model was built for {longest} tokens"
            raise UserError("data.max_tokens", problem, fix=f"use {longest} or less")
        sets = {"train": self._pairs("train", self.train)}
        if self.val is not None:
            sets["val"] = self._pairs("val", self.val)
        self.reads = self._choose_text(tokenizer, sets)
        for name, pairs in sets.items():
            field = f"data.{name}"
            self.rows[name], self.dropped[name] = encode_pairs(pairs, tokenizer, self.reads, limit, field)
        if self.val is None:
            self.rows["train"], self.rows["val"] = self._split(self.rows["train"])
            log.info(
                "data.val is not set: %d of %d pairs are held out, those of one prompt in %d",
                len(self.rows["val"]), len(self.rows["val"]) + len(self.rows["train"]), _HELD_OUT_SHARE,
            )  # fmt: skip

    def fingerprints(self) -> dict[str, dict[str, Any]]:
        """Return number and SHA-256 of the pairs that were read, by name of their set; for checkpoints."""
        return dict(self._fingerprints)

    def micro_batches(self, world: int) -> int:
        """Return the number of forward passes per optimizer step on each of ``world`` ranks."""
        return self._loader("train", 0, world).micro_batches

    def steps(self, world: int) -> int:
        """Return the number of optimizer steps per epoch."""
        return self._loader("train", 0, world).steps

    def train_dataloader(self) -> PairLoader:
        """Return this rank's micro-batches of an epoch, from the current position of the run."""
        trainer = self.trainer
        assert trainer is not None
        return self._loader("train", trainer.global_rank, trainer.world_size, lambda: trainer.global_step)

    def val_dataloader(self) -> PairLoader:
        """Return this rank's part of the held-out pairs."""
        trainer = self.trainer
        assert trainer is not None
        return self._loader("val", trainer.global_rank, trainer.world_size)

    def _loader(self, name: str, rank: int, world: int, begun: Callable[[], int] = lambda: 0) -> PairLoader:
        rows = self.rows[name]
        assert self._tokenizer is not None

        def shuffled(epoch: int) -> Sequence[int]:
            return permutation(stream(self.seed, Purpose.PAIR_ORDER, epoch), len(rows)).tolist()

        def in_order(epoch: int) -> Sequence[int]:
            return range(len(rows))

        if name == "val":
            order: Callable[[int], Sequence[int]] = in_order
            batch_size = self.micro_batch_size * world
        else:
            order = shuffled
            batch_size = self.batch_size
        return PairLoader(rows, order, batch_size, self.micro_batch_size, rank, world, self._tokenizer, begun)

    def _pairs(self, name: str, source: PromptSet | str) -> Preferences:
        field = f"data.{name}"
        try:
            opened = open_prompts(source, self.columns)
            if isinstance(opened, PromptFile | HubPrompts):
                pairs = opened.preferences()
            else:
                pairs = read_preferences(opened.records(), lambda number: f"{field}, record {number + 1}")
        except UserError as error:
            raise UserError(field, error.problem, fix=error.fix) if error.field == "data" else error from None
        digest = Fingerprint()
        for number, pair in enumerate(pairs):
            columns: Mapping[str, Any] = {
                "chosen": pair.chosen,
                "rejected": pair.rejected,
                "margin": pair.margin,
                **pair.tools,
            }
            digest.add(Prompt(number, pair.key, (0,), columns))
        self._fingerprints[name] = digest.value()
        return pairs

    def _choose_text(self, tokenizer: PreTrainedTokenizerBase, sets: Mapping[str, Preferences]) -> Text:
        messages = any(pair.conversational for pairs in sets.values() for pair in pairs)
        chosen: Text = self.text or ("chat" if messages else "joined")
        if messages and chosen == "joined":
            problem = "is joined, but the pairs are lists of messages"
            raise UserError("data.text", problem, fix="set data.text: chat, or give texts")
        if chosen == "chat" and tokenizer.chat_template is None:
            problem = "pairs that are messages" if messages else "data.text: chat"
            fix = "use a model with a chat template, or give texts with data.text: joined"
            raise UserError("data.train", f"{problem}: the tokenizer has no chat template", fix=fix)
        return chosen

    def _split(self, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Split training and held-out rows, with all pairs of a prompt on one side."""
        prompts = sorted({row.prompt for row in rows})
        order = permutation(stream(self.seed, Purpose.PAIRS_HELD_OUT), len(prompts)).tolist()
        count = min(len(prompts) // _HELD_OUT_SHARE, _HELD_OUT_MOST)
        held_out = {prompts[i] for i in order[:count]}
        if not held_out:
            problem = f"is not set, and {len(prompts)} prompts are too few to hold out one in {_HELD_OUT_SHARE}"
            raise UserError("data.val", problem, fix="give held-out pairs")
        train_rows = [row for row in rows if row.prompt not in held_out]
        return train_rows, [row for row in rows if row.prompt in held_out]
