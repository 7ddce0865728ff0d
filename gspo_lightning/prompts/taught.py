"""Demonstrations as token ids, with a mask of the tokens that the policy learns to write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from gspo_lightning.errors import UserError
from gspo_lightning.pictures import Media
from gspo_lightning.policy.vision.sight import sight_of
from gspo_lightning.prompts.base import Demonstration, Prompted, Record
from gspo_lightning.prompts.dialogue import Dialogue
from gspo_lightning.prompts.encode import Encoder, unknown_token
from gspo_lightning.prompts.pictures.columns import has_pictures
from gspo_lightning.prompts.pictures.reading import BadPictureError
from gspo_lightning.prompts.rendered import render_taught
from gspo_lightning.prompts.specials import Ends
from gspo_lightning.rewards.chat import tools_of
from gspo_lightning.types import Message

__all__ = ["Asking", "Taught", "teach"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asking:
    """Prompt settings and length limits of the run that follows; demonstrations use the same."""

    system_prompt: str | None = None
    """System message put before every prompt that has none."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for the chat template."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a response, besides the end-of-sequence tokens."""
    max_prompt_tokens: int = 1 << 30
    """Limit for the prompt of a demonstration from a file; a longer one is dropped."""
    max_response_tokens: int = 1 << 30
    """Limit for the completion of a demonstration from a file, all turns together; a longer one is dropped."""


@dataclass(frozen=True, slots=True)
class Taught:
    """One demonstration: ``prompt`` and ``response`` token ids, and a mask of the response tokens to learn."""

    prompt: list[int]
    response: list[int]
    mask: list[bool]
    media: Media = ()
    """Pictures of the prompt."""


def _asked(prompt: Prompted) -> Record:
    """Return the prompt of a demonstration as a record; one with pictures or tools is a record already."""
    return prompt if isinstance(prompt, Mapping) else {"prompt": prompt}


def _is_rendered(pair: Demonstration) -> bool:
    """True if the chat template writes prompt and completion together: both are messages, without pictures."""
    record = _asked(pair[0])
    return not (isinstance(record["prompt"], str) or isinstance(pair[1], str) or has_pictures(record))


def teach(
    pairs: Sequence[Demonstration],
    tokenizer: PreTrainedTokenizerBase,
    ends: Iterable[int] | None,
    asking: Asking,
    where: Callable[[int], str],
    field: str,
) -> list[Taught]:
    """Return the rows to learn, in the order of the demonstrations; too long ones are left out, never cut.

    A completion that is a text is learnt to the letter, with the end token behind it. If prompt and completion are
    messages, the chat template writes the conversation (:mod:`gspo_lightning.prompts.rendered`). A warning counts the
    demonstrations left out.

    Args:
        pairs: (prompt, completion).
        tokenizer: of the policy.
        ends: ids of the tokens that end a response; None if not known yet.
        asking: prompt settings and limits of the run.
        where: demonstration number, from 0 -> its place, as messages name it.
        field: the setting that the demonstrations come from.

    Raises:
        UserError: messages without a chat template, a template that cannot show what the model wrote, characters that
            the tokenizer does not know, or no demonstration below the limits.
    """
    known = None if ends is None else {*ends, *asking.stop_token_ids}
    rows = dict(_as_rollouts(pairs, tokenizer, asking, where, field))
    for number, pair in enumerate(pairs):
        if _is_rendered(pair):
            rows[number] = _rendered(pair, tokenizer, known, asking, where(number))
    unknown, kept = unknown_token(tokenizer), []
    for number in range(len(pairs)):
        row = rows[number]
        if unknown is not None and unknown in (*row.prompt, *row.response):
            raise UserError(
                where(number),
                "the tokenizer does not know every character of the demonstration",
                fix="use a tokenizer that covers the demonstrations, or drop the record",
            )
        _check_placeholders(tokenizer, row, where(number))
        if len(row.prompt) <= asking.max_prompt_tokens and len(row.response) <= asking.max_response_tokens:
            kept.append(row)
    _say_dropped(len(pairs), len(kept), asking, field)
    return kept


def _as_rollouts(
    pairs: Sequence[Demonstration],
    tokenizer: PreTrainedTokenizerBase,
    asking: Asking,
    where: Callable[[int], str],
    field: str,
) -> Iterator[tuple[int, Taught]]:
    """Encode demonstrations that no template writes as a whole: prompt as in a rollout, completion as the policy's."""
    mine = [number for number, pair in enumerate(pairs) if not _is_rendered(pair)]
    encoder = Encoder(tokenizer, asking.system_prompt, asking.chat_template_kwargs, field)
    dialogue = Dialogue(tokenizer, asking.system_prompt, asking.chat_template_kwargs, field)
    begun_and_ended = Ends(tokenizer)
    for i, seen, _ in encoder.many([_asked(pairs[number][0]) for number in mine]):
        if isinstance(seen, BadPictureError):
            raise UserError(where(mine[i]), str(seen))
        if not seen.ids:
            raise UserError(where(mine[i]), "the prompt has no tokens")
        begun_and_ended.count(seen.ids)
        yield mine[i], Taught(seen.ids, *dialogue.demonstration(pairs[mine[i]][1]), media=seen.media)
    begun_and_ended.check(field)


def _check_placeholders(tokenizer: PreTrainedTokenizerBase, row: Taught, where: str) -> None:
    """Refuse placeholders of pictures and videos: a completion has none, a prompt only those of its own pictures.

    Raises:
        UserError: there is another one.
    """
    if (sight := sight_of(tokenizer)) is None:
        return
    own = () if not row.media else (sight.image, sight.mark)
    parts = (("completion", row.response, set(sight.unsaid)), ("prompt", row.prompt, set(sight.unsaid).difference(own)))
    for name, ids, wrong in parts:
        if token := next((token for token in ids if token in wrong), None):
            what = f"the {name} holds {tokenizer.convert_ids_to_tokens(token)}, which stands for a picture or a video"
            raise UserError(where, what, fix="take it out of the text; a record's picture is in the column image")


def _rendered(
    pair: Demonstration,
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int] | None,
    asking: Asking,
    where: str,
) -> Taught:
    if tokenizer.chat_template is None:
        fix = "write prompt and completion as texts"
        raise UserError(where, "messages need a chat template, and this tokenizer has none", fix=fix)
    record, completion = _asked(pair[0]), pair[1]
    assert not isinstance(completion, str)
    said: list[Message] = [*record["prompt"], *completion]
    if asking.system_prompt is not None and said[0]["role"] != "system":
        said.insert(0, {"role": "system", "content": asking.system_prompt})
    first = len(said) - len(completion)
    kwargs = {**asking.chat_template_kwargs, **tools_of(record)}
    ids, mask = render_taught(tokenizer, said, first, ends, kwargs, where)
    begin = mask.index(True)
    return Taught(ids[:begin], ids[begin:], mask[begin:])


def _say_dropped(count: int, kept: int, asking: Asking, field: str) -> None:
    limits = (
        f"data.max_prompt_tokens = {asking.max_prompt_tokens} or "
        f"data.max_response_tokens = {asking.max_response_tokens}"
    )
    if not kept:
        what = f"no demonstration is left: all {count} are longer than {limits}" if count else "holds no demonstrations"
        raise UserError(field, what, fix="raise these limits, or give shorter demonstrations" if count else None)
    if kept < count:
        log.warning(
            "%s: dropped %d of %d demonstrations that are longer than %s (nothing is ever cut)",
            field, count - kept, count, limits,
        )  # fmt: skip
