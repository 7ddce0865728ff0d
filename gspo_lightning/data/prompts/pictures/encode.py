"""Encode records with pictures as token ids: the template writes one placeholder a picture, which is then expanded."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.pictures import Media, Picture
from gspo_lightning.core.types import Message, SystemPrompt
from gspo_lightning.data.prompts.pictures.columns import Part, parts_of, shown_messages
from gspo_lightning.data.prompts.pictures.reading import BadPictureError, Pictures, picture_file, picture_size
from gspo_lightning.data.prompts.prompt_set import Record
from gspo_lightning.data.prompts.specials import leading, render
from gspo_lightning.policy.vision.families import SAID
from gspo_lightning.policy.vision.image_processor import ImageProcessorAdapter, Shown, image_processor_of
from gspo_lightning.rewards.chat import tools_of


@dataclass(frozen=True, slots=True)
class Seen:
    """A prompt with pictures: text as shown to a person, token ids, pictures, and its messages if it has any."""

    text: str
    ids: list[int]
    media: Media
    messages: tuple[Message, ...]


@dataclass(slots=True)
class SeeingEncoder:
    """Encoder of records with pictures; counts pictures and those scaled down."""

    tokenizer: PreTrainedTokenizerBase
    system_prompt: SystemPrompt | None
    template_kwargs: Mapping[str, Any]
    field: str
    how: Pictures
    counted: dict[str, int] = dataclasses.field(default_factory=lambda: {"pictures": 0, "scaled": 0})

    def encode(self, record: Record, where: str) -> Seen:
        """Encode one record.

        Raises:
            BadPictureError: a picture cannot be read.
            UserError: the model reads no pictures, the template does not place them, or a text holds their tokens.
        """
        image_processor = image_processor_of(self.tokenizer)
        if image_processor is None:
            fix = f"use a model that reads pictures ({SAID}), or drop the columns image and images"
            raise UserError(self.field, f"{where} has a picture, and the model reads text only", fix=fix)
        image_processor = image_processor.limited(self.how.max_pixels)
        try:
            messages = parts_of(record)
        except UserError as error:
            raise UserError(self.field, f"{where}: {error.problem}", fix=error.fix) from None
        parts = [part for message in messages for part in message["content"]]
        texts = [str(part["text"]) for part in parts if part["type"] == "text"]
        check_said(self.tokenizer, image_processor, texts, self.field, where)
        files = [self._file(part, image_processor, where) for part in parts if part["type"] == "image"]
        mark = str(self.tokenizer.convert_ids_to_tokens(image_processor.mark))
        first, *rest = self._rendered(record, messages, image_processor, where).split(mark)
        ids: list[int] = []
        if len(rest) == len(files):
            text = first
            for (_, placeholder), following in zip(files, rest, strict=True):
                text += placeholder.text + following
            ids = self.tokenizer(text, add_special_tokens=self._plain)["input_ids"]
        image_token = self.tokenizer.convert_ids_to_tokens(image_processor.image)
        tiles = [placeholder.text.count(image_token) for _, placeholder in files]
        others = set(image_processor.unsaid) - {image_processor.image, image_processor.mark}
        if len(rest) != len(files) or ids.count(image_processor.image) != sum(tiles) or others & set(ids):
            problem = f"{where}: the chat template writes {len(rest)} placeholders for {len(files)} pictures"
            raise UserError(self.field, problem, fix="use the chat template that belongs to the model")
        widened_ids, media = _widened(ids, files, tiles, image_processor.image)
        prompt = record["prompt"]
        if isinstance(prompt, str):
            return Seen(prompt, widened_ids, media, ())
        readable = shown_messages(messages)
        return Seen("\n".join(message["content"] for message in readable), widened_ids, media, readable)

    @property
    def _plain(self) -> bool:
        return self.tokenizer.chat_template is None

    def _file(self, part: Part, image_processor: ImageProcessorAdapter, where: str) -> tuple[bytes, Shown]:
        """Return a picture's file, and the placeholder text that stands for it."""
        try:
            data = picture_file(part["image"], urls=self.how.urls)
            size = picture_size(data)
            placeholder = image_processor.shown(*size, self.tokenizer)
        except ValueError as error:
            bad = error if isinstance(error, BadPictureError) else f"of {size[0]} x {size[1]} pixels is too long"
            raise BadPictureError(f"{where}: a picture {bad}") from error
        self.counted["pictures"] += 1
        self.counted["scaled"] += image_processor.shrinks(*size)
        return data, placeholder

    def _rendered(
        self, record: Record, messages: Sequence[Mapping[str, Any]], image_processor: ImageProcessorAdapter, where: str
    ) -> str:
        """Render with the template's own placeholders; without a template, write the tokens around a picture here."""
        if self._plain:
            if len(messages) > 1 or self.system_prompt is not None:
                raise UserError(self.field, "chat messages need a chat template, and this tokenizer has none")
            around = "".join(self.tokenizer.convert_ids_to_tokens(list(image_processor.around)))
            parts = messages[0]["content"]
            return "".join(around if part["type"] == "image" else str(part["text"]) for part in parts)
        conversation: list[Message] = []
        for message in leading(self.system_prompt):
            conversation.append({**message, "content": [{"type": "text", "text": message["content"]}]})
        for message in messages:
            conversation.append({**message, "content": [_bare(part) for part in message["content"]]})
        try:
            options = {"add_generation_prompt": True, **self.template_kwargs, **tools_of(record)}
            return render(self.tokenizer, conversation, **options)
        except TemplateError as error:
            problem = f"{where}: the chat template refuses the prompt: {first_line(error)[:200]}"
            raise UserError(self.field, problem, fix="write messages as the model's template wants them") from error


def _widened(
    ids: Sequence[int], files: Sequence[tuple[bytes, Shown]], tiles: Sequence[int], placeholder: int
) -> tuple[list[int], Media]:
    """Repeat every placeholder once for each token of its tile."""
    widened: list[int] = []
    starts: list[list[int]] = [[] for _ in files]
    owners = iter([number for number, count in enumerate(tiles) for _ in range(count)])
    for token in ids:
        if token != placeholder:
            widened.append(token)
            continue
        owner = next(owners)
        _, tile = files[owner]
        starts[owner].append(len(widened))
        widened += [token] * (tile.rows * tile.columns)
    media = []
    for (data, tile), (first, *more) in zip(files, starts, strict=True):
        digest = hashlib.sha256(data).hexdigest()
        media.append(Picture(data, digest, first, tile.rows, tile.columns, tuple(more)))
    return widened, tuple(media)


def check_said(
    tokenizer: PreTrainedTokenizerBase,
    image_processor: ImageProcessorAdapter,
    texts: Sequence[str],
    field: str,
    where: str,
) -> None:
    """Refuse texts that hold the placeholder of a picture or a video without one behind it.

    Raises:
        UserError: a text holds one.
    """
    for token in tokenizer.convert_ids_to_tokens(list(image_processor.unsaid)):
        if any(token in text for text in texts):
            problem = f"{where}: a text holds {token}, which stands for a picture or a video"
            raise UserError(field, problem, fix="take it out of the text; pictures come in the column image or images")


def _bare(part: Part) -> Part:
    """Return a part as templates read it: only the processor needs the picture itself."""
    return {"type": "image"} if part["type"] == "image" else part
