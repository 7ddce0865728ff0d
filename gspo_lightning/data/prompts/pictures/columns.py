"""Find the pictures of a record: in its columns, or among the parts of its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Message
from gspo_lightning.data.prompts.prompt_set import Record

COLUMNS = ("image", "images")
MARK = "<image>"
"""Mark for a picture of the columns in a prompt; without marks, pictures stand before its first text."""

_TEXTS = ("text", "input_text", "output_text")
"""Types of a part that is a text: of chat completions, and of OpenAI's Responses (NeMo-Gym)."""

Part = Mapping[str, Any]
"""``{"type": "text", "text": ...}`` or ``{"type": "image", "image": <the record's value>}``."""


def has_pictures(record: Record) -> bool:
    """True if a record has pictures, in its columns or in its messages."""
    if any(record.get(name) is not None and not _is_empty(record[name]) for name in COLUMNS):
        return True
    prompt = record.get("prompt")
    return isinstance(prompt, list) and any(isinstance(m.get("content"), list) for m in prompt)


def join_texts(record: Record) -> Record:
    """Return the record with one text a message, for messages made of texts only."""
    prompt = record.get("prompt")
    if not isinstance(prompt, list) or not any(_is_texts(message.get("content")) for message in prompt):
        return record
    messages = [{**m, "content": _text(m)} if _is_texts(m.get("content")) else m for m in prompt]
    return {**record, "prompt": messages}


def _is_texts(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") in _TEXTS and isinstance(part.get("text"), str)
        for part in content
    )


def parts_of(record: Record) -> list[dict[str, Any]]:
    """Return the prompt as messages whose ``content`` is a list of parts, every picture in its place.

    Raises:
        UserError: the numbers of marks and pictures differ, or a part is of another kind.
    """
    prompt = record["prompt"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    given = _given(record)
    marks = sum(_text(m).count(MARK) for m in messages)
    if given and marks and marks != len(given):
        problem = f"the prompt has {marks} marks {MARK}, but the record has {len(given)} pictures"
        raise UserError("data", problem, fix="write one mark for each picture, or none")
    left = list(given)
    converted = []
    first_user = next((i for i, m in enumerate(messages) if m["role"] == "user"), 0)
    for number, message in enumerate(messages):
        parts: list[Part] = []
        if left and not marks and number == first_user:
            parts = [{"type": "image", "image": value} for value in left]
            left = []
        content = message["content"]
        content_parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in content_parts:
            parts += _split(part, left) if given and marks else [_known(part)]
        converted.append({**message, "content": parts})
    return converted


def shown_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return messages with parts as people and rewards read them: texts, with a mark for each picture."""
    readable = []
    for message in messages:
        texts = [MARK if part["type"] == "image" else str(part["text"]) for part in message["content"]]
        readable.append({**message, "content": "".join(texts)})
    return tuple(readable)


def _given(record: Record) -> list[Any]:
    """Return the pictures of the columns; ``image`` may hold one or a list, as ``images`` may."""
    pictures: list[Any] = []
    for name in COLUMNS:
        value = record.get(name)
        if value is None or _is_empty(value):
            continue
        pictures += value if isinstance(value, list | tuple) else [value]
    return pictures


def _is_empty(value: Any) -> bool:
    return isinstance(value, list | tuple | str | bytes) and len(value) == 0


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _split(part: Mapping[str, Any], rest: list[Any]) -> list[Part]:
    """Replace the marks in a text by the next pictures of the columns."""
    part = _known(part)
    if part["type"] != "text":
        return [part]
    first, *others = str(part["text"]).split(MARK)
    parts: list[Part] = [{"type": "text", "text": first}]
    for text in others:
        parts += [{"type": "image", "image": rest.pop(0)}, {"type": "text", "text": text}]
    return [p for p in parts if p["type"] == "image" or p["text"]]


def _known(part: Any) -> Part:
    """Normalise one part: OpenAI's ``image_url`` and ``input_image`` become ``image``."""
    if isinstance(part, Mapping):
        kind = part.get("type")
        if kind in _TEXTS and isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        for name in ("image", "image_url", "url", "path", "bytes"):
            if kind in ("image", "image_url", "input_image") and part.get(name) is not None:
                return {"type": "image", "image": part[name]}
    fix = 'use {"type": "text", "text": ...} and {"type": "image", "image": ...}'
    raise UserError("data", "a message has a part that is neither a text nor a picture", fix=fix)
