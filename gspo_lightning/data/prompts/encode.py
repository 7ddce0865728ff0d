"""Encode records as prompts: chat template, special tokens, length limit."""

from __future__ import annotations

import itertools
import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.types import Prompt, SystemPrompt
from gspo_lightning.data.prompts.on_demand import OnDemand, place_of
from gspo_lightning.data.prompts.pictures.columns import COLUMNS, has_pictures, join_texts
from gspo_lightning.data.prompts.pictures.encode import SeeingEncoder, Seen, check_said
from gspo_lightning.data.prompts.pictures.reading import BadPictureError, Pictures
from gspo_lightning.data.prompts.prompt_set import Record
from gspo_lightning.data.prompts.specials import Ends, leading, render
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.rewards.chat import tools_of

log = logging.getLogger(__name__)

_AT_A_TIME = 256
"""Prompts per tokenizer call: the overhead of a call exceeds the work for a short prompt."""


def encode_prompts(
    records: Sequence[Record],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_prompt_tokens: int,
    system_prompt: SystemPrompt | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    field: str = "data.train",
) -> list[Prompt]:
    """Encode prompts in the order of the records; drop those over the limit with a message, never cut them.

    With a chat template, a text becomes one user message (after ``system_prompt``, if any), and the template gets the
    record's ``tools``. Without one, the text is encoded as it is.

    Raises:
        UserError: as :class:`EncodedPrompts`.
    """
    prompts: list[Prompt] = []
    encoder = Encoder(tokenizer, system_prompt, chat_template_kwargs or {}, field)
    EncodedPrompts(records, encoder, max_prompt_tokens, prompts.append)
    return prompts


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encoder of records as prompts. ``field`` is the setting that messages name as the source of the records."""

    tokenizer: PreTrainedTokenizerBase
    system_prompt: SystemPrompt | None
    template_kwargs: Mapping[str, Any]
    field: str
    pictures: Pictures = Pictures()  # noqa: RUF009 (frozen)

    def many(self, records: Iterable[Record]) -> Iterator[tuple[int, Seen | BadPictureError, Record]]:
        """Yield number, encoded prompt (text, token ids, pictures) and record; the tokenizer is called in batches.

        For a picture that cannot be read, yield the error instead if ``pictures.bad`` is ``drop``.

        Raises:
            UserError: the tokenizer or its template refuses a prompt; names the number of its record.
        """
        numbered = enumerate(map(self._plain, records))
        seeing = self.seeing()
        while batch := list(itertools.islice(numbered, _AT_A_TIME)):
            plain = [(i, record) for i, record in batch if not has_pictures(record)]
            texts = [self._texts(partial(place_of, records, i), record) for i, record in plain]
            rendered = [text for _, text in texts]
            add_special = self.tokenizer.chat_template is None
            ids = self.tokenizer(rendered, add_special_tokens=add_special)["input_ids"] if rendered else []
            encoded = iter([Seen(text, row, (), ()) for (text, _), row in zip(texts, ids, strict=True)])
            for i, record in batch:
                if has_pictures(record):
                    yield i, self._seen(seeing, record, place_of(records, i)), record
                else:
                    yield i, next(encoded), record
        if seeing.counted["scaled"]:
            log.info(
                "%s: %d of %d pictures are scaled down to the limit (%s)",
                self.field, seeing.counted["scaled"], seeing.counted["pictures"],
                "data.pictures.max_pixels, or the processor's own",
            )  # fmt: skip

    def one(self, number: int, record: Record) -> Prompt:
        """Encode one record again after the first pass over all of them."""
        record = self._plain(record)
        if has_pictures(record):
            encoded = self._seen(self.seeing(), record, f"record {number + 1}")
            if isinstance(encoded, BadPictureError):
                raise UserError(self.field, str(encoded), fix="leave the files of a run where they are while it runs")
            return _prompt(number, encoded, record)
        kwargs = self.template_arguments(record)
        content = record["prompt"]
        text, ids = encode_prompt(content, self.tokenizer, self.system_prompt, kwargs, self.field)
        return _prompt(number, Seen(text, ids, (), ()), record)

    def seeing(self) -> SeeingEncoder:
        """Return an encoder for records with pictures."""
        return SeeingEncoder(self.tokenizer, self.system_prompt, self.template_kwargs, self.field, self.pictures)

    def template_arguments(self, record: Record) -> dict[str, Any]:
        """Return the arguments of the chat template for a record."""
        return {**self.template_kwargs, **tools_of(record)}

    def _plain(self, record: Record) -> Record:
        """Join the content parts of each message into one text, for a model without pictures.

        A developer's message is the system's, which all templates write; some leave a developer out silently. Null
        fields are left out, because templates ask whether a field is there; a null content beside calls stays.
        """
        messages = record.get("prompt")
        if isinstance(messages, list) and any(m.get("role") == "developer" or None in m.values() for m in messages):
            record = {**record, "prompt": list(map(_without_null, messages))}
        return record if image_processor_of(self.tokenizer) is not None else join_texts(record)

    def _seen(self, seeing: SeeingEncoder, record: Record, where: str) -> Seen | BadPictureError:
        try:
            return seeing.encode(record, where)
        except BadPictureError as error:
            if self.pictures.bad == "stop":
                fix = "mend or drop the record, or set data.pictures.bad: drop"
                raise UserError(self.field, str(error), fix=fix) from error
            return error

    def _texts(self, where: Callable[[], str], record: Record) -> tuple[str, str]:
        if (image_processor := image_processor_of(self.tokenizer)) is not None:
            content = record["prompt"]
            texts = [content] if isinstance(content, str) else [str(message.get("content")) for message in content]
            check_said(self.tokenizer, image_processor, texts, self.field, where())
        try:
            return _texts(
                record["prompt"], self.tokenizer, self.system_prompt, self.template_arguments(record), self.field
            )
        except TemplateError as error:
            problem = f"{where()}: the chat template refuses the prompt: {first_line(error)[:200]}"
            raise UserError(self.field, problem, fix="write messages as the model's template wants them") from error


class EncodedPrompts(OnDemand[Prompt]):
    """Prompts of a set in the order of its records, each encoded on access.

    All are encoded once before the run, so faults show early. Prompts over the limit are counted and left out with a
    message, never cut.

    Args:
        records: the same at every access.
        encoder: turns records into prompts.
        max_prompt_tokens: longer prompts are left out.
        see: called once with every prompt, in order.

    Raises:
        UserError: chat messages or a system prompt without a chat template, a template that refuses them, characters
            the tokenizer does not know, special tokens that begin a prompt twice or end it, or no prompt below the
            limit.
    """

    def __init__(
        self, records: Sequence[Record], encoder: Encoder, max_prompt_tokens: int, see: Callable[[Prompt], object]
    ) -> None:
        self._records = records
        self._encoder = encoder
        self._numbers: Sequence[int] = self._usable(max_prompt_tokens, see)

    def __len__(self) -> int:
        return len(self._numbers)

    def at(self, place: int) -> Prompt:
        """Return the prompt at a place."""
        return self.by_id(self.number(place))

    def number(self, place: int) -> int:
        """Return the id of the prompt at a place, without encoding it."""
        return self._numbers[place]

    def place_of(self, number: int) -> int:
        """Return the place of the prompt with this id."""
        return bisect_left(self._numbers, number)

    def where(self, number: int) -> str:
        """Return the name that messages use for the record with this id."""
        return place_of(self._records, number)

    def by_id(self, number: int) -> Prompt:
        """Return the prompt with this id (the place of its record)."""
        return self._encoder.one(number, self._records[number])

    def _usable(self, longest: int, see: Callable[[Prompt], object]) -> Sequence[int]:
        """Return the numbers of the records that make a usable prompt."""
        field = self._encoder.field
        tokenizer = self._encoder.tokenizer
        unknown = unknown_token(tokenizer)
        special_ends = Ends(tokenizer)
        kept = array("q")
        unreadable = 0
        with_tools = 0
        for i, encoded, record in self._encoder.many(self._records):
            if isinstance(encoded, BadPictureError):
                log.warning("%s: dropped %s", field, encoded)
                unreadable += 1
                continue
            ids = encoded.ids
            if unknown is not None and unknown in ids:
                raise UserError(
                    field,
                    f"{self.where(i)}: the tokenizer does not know every character of the prompt",
                    fix="use a tokenizer that covers the prompts, or drop the record",
                )
            if not _is_limit(record.get("max_response_tokens")):
                problem = f"{self.where(i)}: 'max_response_tokens' is not a whole number above 0"
                raise UserError(field, problem, fix="write one, or null for data.max_response_tokens")
            if not ids:
                raise UserError(field, f"{self.where(i)}: the prompt has no tokens")
            if len(ids) <= longest:
                kept.append(i)
                special_ends.count(ids)
                with_tools += "tools" in self._encoder.template_arguments(record)
                see(_prompt(i, encoded, record))
        special_ends.check(field)
        if with_tools and "tools" not in str(tokenizer.chat_template):
            log.warning(
                "%s: %d prompts have tools, but the chat template does not write tools: the policy is not told "
                "of them; describe them in a message (ToolUse does so with instructions: null)",
                field, with_tools,
            )  # fmt: skip
        count = len(self._records)
        if too_long := count - unreadable - len(kept):
            log.warning(
                "%s: dropped %d of %d prompts that are longer than data.max_prompt_tokens = %d (nothing is ever cut)",
                field, too_long, count, longest,
            )  # fmt: skip
        if not kept:
            if not count:
                raise UserError(field, "holds no records", fix="give a set with records")
            problem = f"no prompt is left: all {count} exceed data.max_prompt_tokens = {longest}"
            if unreadable:
                problem += f" or have a picture that cannot be read ({unreadable} do)"
            raise UserError(field, problem, fix="raise data.max_prompt_tokens")
        return kept if too_long or unreadable else range(count)


def _is_limit(value: object) -> bool:
    """True if the column ``max_response_tokens`` may hold this value; cells of a table are texts."""
    if isinstance(value, str):
        return value.isdecimal() and int(value) > 0
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0)


def _prompt(number: int, seen: Seen, record: Record) -> Prompt:
    """Build a prompt; its columns leave out pictures, so rewards and messages do not carry them."""
    content = record["prompt"]
    messages = seen.messages or (() if isinstance(content, str) else tuple(content))
    taken = ("prompt", *COLUMNS) if seen.media else ("prompt",)
    columns = {k: v for k, v in record.items() if k not in taken}
    return Prompt(number, seen.text, tuple(seen.ids), columns, messages, seen.media)


def _without_null(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if value is not None or name == "content"}
    return kept | ({"role": "system"} if message.get("role") == "developer" else {})


def unknown_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id that a tokenizer uses for unknown characters only; None if it has none."""
    unknown: int | None = tokenizer.unk_token_id  # byte-level tokenizers reuse their end token
    if unknown in (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id):
        return None
    return unknown


def encode_prompt(
    prompt: Any,
    tokenizer: PreTrainedTokenizerBase,
    system_prompt: SystemPrompt | None,
    template_kwargs: Mapping[str, Any],
    field: str,
) -> tuple[str, list[int]]:
    """Return text and token ids of one prompt; see :func:`encode_prompts`."""
    text, rendered = _texts(prompt, tokenizer, system_prompt, template_kwargs, field)
    # the template writes its own special tokens: a tokenizer that adds them again would give a double BOS
    return text, tokenizer(rendered, add_special_tokens=tokenizer.chat_template is None)["input_ids"]


def _texts(
    prompt: Any,
    tokenizer: PreTrainedTokenizerBase,
    system_prompt: SystemPrompt | None,
    template_kwargs: Mapping[str, Any],
    field: str,
) -> tuple[str, str]:
    """Return a prompt as shown to a person, and as given to the tokenizer."""
    if tokenizer.chat_template is None:
        if not isinstance(prompt, str) or system_prompt is not None:
            cause = "data.system_prompt" if system_prompt is not None else "a list of chat messages as prompt"
            raise UserError(field, f"{cause} needs a chat template, and this tokenizer has none")
        return prompt, prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    messages = [*leading(system_prompt), *messages]
    rendered = render(tokenizer, messages, add_generation_prompt=True, **template_kwargs)
    return (prompt if isinstance(prompt, str) else rendered), rendered
