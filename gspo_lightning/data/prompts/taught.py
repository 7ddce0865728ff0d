"""Demonstrations as token ids, with a mask of the tokens that the policy learns to write."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.pictures import Media
from gspo_lightning.core.types import Message, SystemPrompt
from gspo_lightning.data.prompts.dialogue import Dialogue
from gspo_lightning.data.prompts.encode import Encoder, unknown_token
from gspo_lightning.data.prompts.pictures.columns import has_pictures
from gspo_lightning.data.prompts.pictures.reading import BadPictureError
from gspo_lightning.data.prompts.prompt_set import Demonstration, Prompted, Record
from gspo_lightning.data.prompts.specials import Ends, leading, render
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.rewards.chat import tools_of

log = logging.getLogger(__name__)
_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
_BY_TURN = "write each turn as a record of its own: prompt, the messages before it, and completion, the turn"


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """Prompt settings and length limits of the run that follows; demonstrations use the same."""

    system_prompt: SystemPrompt | None = None
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
    prompt_format: PromptFormat,
    where: Callable[[int], str],
    field: str,
) -> list[Taught]:
    """Return the rows to learn, in the order of the demonstrations; too long ones are left out, never cut.

    A completion that is a text is learnt to the letter, with the end token behind it. If prompt and completion are
    messages, the chat template writes the conversation (:mod:`gspo_lightning.data.prompts.taught`). A warning counts
    the demonstrations left out.

    Args:
        pairs: (prompt, completion).
        tokenizer: of the policy.
        ends: ids of the tokens that end a response; None if not known yet.
        prompt_format: prompt settings and limits of the run.
        where: demonstration number, from 0 -> its place, as messages name it.
        field: the setting that the demonstrations come from.

    Raises:
        UserError: messages without a chat template, a template that cannot show what the model wrote, characters that
            the tokenizer does not know, or no demonstration below the limits.
    """
    end_ids = None if ends is None else {*ends, *prompt_format.stop_token_ids}
    rows = dict(_as_rollouts(pairs, tokenizer, prompt_format, where, field))
    for number, pair in enumerate(pairs):
        if _is_rendered(pair):
            rows[number] = _rendered(pair, tokenizer, end_ids, prompt_format, where(number))
    unknown = unknown_token(tokenizer)
    kept = []
    for number in range(len(pairs)):
        row = rows[number]
        if unknown is not None and unknown in (*row.prompt, *row.response):
            raise UserError(
                where(number),
                "the tokenizer does not know every character of the demonstration",
                fix="use a tokenizer that covers the demonstrations, or drop the record",
            )
        _check_placeholders(tokenizer, row, where(number))
        prompt_fits = len(row.prompt) <= prompt_format.max_prompt_tokens
        response_fits = len(row.response) <= prompt_format.max_response_tokens
        if prompt_fits and response_fits:
            kept.append(row)
    _say_dropped(len(pairs), len(kept), prompt_format, field)
    return kept


def _as_rollouts(
    pairs: Sequence[Demonstration],
    tokenizer: PreTrainedTokenizerBase,
    prompt_format: PromptFormat,
    where: Callable[[int], str],
    field: str,
) -> Iterator[tuple[int, Taught]]:
    """Encode demonstrations that no template writes as a whole: prompt as in a rollout, completion as the policy's."""
    numbers = [number for number, pair in enumerate(pairs) if not _is_rendered(pair)]
    encoder = Encoder(tokenizer, prompt_format.system_prompt, prompt_format.chat_template_kwargs, field)
    dialogue = Dialogue(tokenizer, prompt_format.system_prompt, prompt_format.chat_template_kwargs, field)
    begun_and_ended = Ends(tokenizer)
    for i, encoded, _ in encoder.many([_asked(pairs[number][0]) for number in numbers]):
        if isinstance(encoded, BadPictureError):
            raise UserError(where(numbers[i]), str(encoded))
        if not encoded.ids:
            raise UserError(where(numbers[i]), "the prompt has no tokens")
        begun_and_ended.count(encoded.ids)
        _, completion = pairs[numbers[i]]
        response, mask = dialogue.demonstration(completion)
        yield numbers[i], Taught(encoded.ids, response, mask, media=encoded.media)
    begun_and_ended.check(field)


def _check_placeholders(tokenizer: PreTrainedTokenizerBase, row: Taught, where: str) -> None:
    """Refuse placeholders of pictures and videos: a completion has none, a prompt only those of its own pictures."""
    image_processor = image_processor_of(tokenizer)
    if image_processor is None:
        return
    placeholders = set(image_processor.unsaid)
    of_pictures = {image_processor.image, image_processor.mark} if row.media else set()
    parts = (
        ("completion", row.response, placeholders),
        ("prompt", row.prompt, placeholders - of_pictures),
    )
    for name, ids, refused in parts:
        if token := next((token for token in ids if token in refused), None):
            raise UserError(
                where,
                f"the {name} holds {tokenizer.convert_ids_to_tokens(token)}, which stands for a picture or a video",
                fix="take it out of the text; a record's picture is in the column image",
            )


def _rendered(
    pair: Demonstration,
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int] | None,
    prompt_format: PromptFormat,
    where: str,
) -> Taught:
    if tokenizer.chat_template is None:
        fix = "write prompt and completion as texts"
        raise UserError(where, "messages need a chat template, and this tokenizer has none", fix=fix)
    record = _asked(pair[0])
    completion = pair[1]
    assert not isinstance(completion, str)
    messages: list[Message] = [*record["prompt"], *completion]
    if messages[0]["role"] != "system":
        messages = [*leading(prompt_format.system_prompt), *messages]
    first = len(messages) - len(completion)
    kwargs = {**prompt_format.chat_template_kwargs, **tools_of(record)}
    ids, mask = render_taught(tokenizer, messages, first, ends, kwargs, where)
    begin = mask.index(True)
    return Taught(ids[:begin], ids[begin:], mask[begin:])


def _say_dropped(count: int, kept: int, prompt_format: PromptFormat, field: str) -> None:
    limits = (
        f"data.max_prompt_tokens = {prompt_format.max_prompt_tokens} or "
        f"data.max_response_tokens = {prompt_format.max_response_tokens}"
    )
    if not count:
        raise UserError(field, "holds no demonstrations")
    if not kept:
        raise UserError(
            field,
            f"no demonstration is left: all {count} are longer than {limits}",
            fix="raise these limits, or give shorter demonstrations",
        )
    if kept < count:
        log.warning(
            "%s: dropped %d of %d demonstrations that are longer than %s (nothing is ever cut)",
            field, count - kept, count, limits,
        )  # fmt: skip


def render_taught(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    first: int,
    ends: Collection[int] | None,
    template_kwargs: Mapping[str, Any],
    where: str,
) -> tuple[list[int], list[bool]]:
    """Return the token ids [T] of a conversation up to its last taught token, and the mask of taught ones [T].

    Taught are the tokens that the model writes in assistant turns from message ``first`` on: from behind the turn's
    header to its end token, inclusive. If the template marks generated text (``{% generation %}``), its marks decide.
    Else the conversation is rendered up to the start of every turn, as a rollout would prompt for it, and up to its
    end. This is right only if the longer text begins with the shorter one, which is checked. In either case the
    template must write a turn as if it were the last one: text that a template leaves out is never lost silently.

    Args:
        tokenizer: has a chat template.
        messages: the whole conversation.
        first: number of the message from which on the assistant's turns are taught.
        ends: ids of the tokens that end a response; None if not known yet: then whole turns are taught.
        template_kwargs: passed to the template.
        where: place of the conversation, as messages name it.

    Raises:
        UserError: the template refuses the conversation, ends a turn with no end token, or rewrites turns (some drop
            the thinking of earlier ones), so that the tokens the model wrote cannot be told apart.
    """
    turns = [n for n, message in enumerate(messages) if message["role"] == "assistant" and n >= first]
    try:
        texts = _Texts(tokenizer, messages, template_kwargs)
        marked = tokenizer.is_fast and _MARKED.search(tokenizer.get_chat_template()) is not None
        ids, runs = (_by_marks if marked else _by_prefixes)(texts, turns)
    except TemplateError as error:
        problem = f"the chat template refuses the conversation: {first_line(error)[:200]}"
        raise UserError(where, problem, fix="write messages as the model's template wants them") from error
    except _RewrittenError as error:
        raise UserError(where, str(error), fix=_BY_TURN) from None
    taught = [False] * len(ids)
    for run in runs:
        places = run if ends is None else _to_its_end(tokenizer, ids, run, ends, where)
        for place in places:
            taught[place] = True
    length = len(ids) - taught[::-1].index(True)
    return ids[:length], taught[:length]


class _RewrittenError(ValueError):
    """Error: the template changes a turn when the conversation goes on."""


@dataclass(frozen=True, slots=True)
class _Texts:
    """Renderings of a conversation and its prefixes."""

    tokenizer: PreTrainedTokenizerBase
    messages: Sequence[Message]
    template_kwargs: Mapping[str, Any]

    def render(self, count: int, *, asks: bool = False) -> str:
        """Render the first ``count`` messages; ``asks`` adds the header of the next assistant turn."""
        messages = list(self.messages[:count])
        options = {**self.template_kwargs, "add_generation_prompt": asks}
        return render(self.tokenizer, messages, **options)

    def through(self, turn: int) -> str:
        """Render the conversation up to the end of a turn; refuse a template that changes it later."""
        through = self.render(turn + 1)
        if not self.render(len(self.messages)).startswith(through):
            raise _RewrittenError(
                f"the chat template writes message {turn + 1}, a turn of the assistant, differently when the "
                "conversation goes on (some leave out earlier thinking)"
            )
        return through

    def ids(self, text: str) -> list[int]:
        """Encode a part of a rendering; the template has written all special tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _by_marks(texts: _Texts, turns: Sequence[int]) -> tuple[list[int], list[range]]:
    for turn in turns:
        texts.through(turn)
    encoded = texts.tokenizer.apply_chat_template(
        list(texts.messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
        **texts.template_kwargs,
    )  # fmt: skip
    runs = []
    place = 0
    for is_marked, run in itertools.groupby(encoded["assistant_masks"]):
        length = len(list(run))
        if is_marked:
            runs.append(range(place, place + length))
        place += length
    turn_count = sum(message["role"] == "assistant" for message in texts.messages)
    if len(runs) != turn_count:
        raise _RewrittenError(
            f"the chat template marks {len(runs)} of {turn_count} turns of the assistant as generated"
        )
    return list(encoded["input_ids"]), runs[turn_count - len(turns) :]


def _by_prefixes(texts: _Texts, turns: Sequence[int]) -> tuple[list[int], list[range]]:
    """Encode the text between two turns by itself, as a rollout does: no token spans their border."""
    ids: list[int] = []
    runs: list[range] = []
    end = 0
    for turn in turns:
        before = texts.render(turn, asks=True)
        through = texts.through(turn)
        if not (through.startswith(before) and end <= len(before) < len(through)):
            raise _RewrittenError(
                f"the chat template does not begin message {turn + 1}, a turn of the assistant, as it asks for one"
            )
        ids += texts.ids(through[end : len(before)])
        turn_ids = texts.ids(through[len(before) :])
        runs.append(range(len(ids), len(ids) + len(turn_ids)))
        ids += turn_ids
        end = len(through)
    return ids, runs


def _to_its_end(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], run: range, ends: Collection[int], where: str
) -> range:
    """Return a turn up to its end token, which may follow the marked part; a template may add a line feed after it."""
    end_places = [place for place in run if ids[place] in ends]
    if not end_places and run.stop < len(ids) and ids[run.stop] in ends:
        end_places = [run.stop]
    if not end_places:
        names = ", ".join(tokenizer.convert_ids_to_tokens(sorted(ends)))
        raise UserError(
            where,
            f"the chat template does not end a turn of the assistant with a token that ends a response ({names})",
            fix="name the token that it writes in data.stop_token_ids",
        )
    if len(end_places) > 1:
        raise UserError(
            where, "a turn of the assistant holds an end token in its middle", fix="take it out of the text"
        )
    return range(run.start, end_places[-1] + 1)
