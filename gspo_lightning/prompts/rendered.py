"""Conversations as a chat template writes them: token ids, and a mask of those the model writes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gspo_lightning.errors import UserError, first_line
from gspo_lightning.prompts.template import render
from gspo_lightning.types import Message

__all__ = ["render_taught"]

_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
_BY_TURN = "write each turn as a record of its own: prompt, the messages before it, and completion, the turn"


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
        for place in run if ends is None else _to_its_end(tokenizer, ids, run, ends, where):
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
        shown = list(self.messages[:count])
        options = {**self.template_kwargs, "add_generation_prompt": asks}
        return render(self.tokenizer, shown, **options)

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
    found = texts.tokenizer.apply_chat_template(
        list(texts.messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
        **texts.template_kwargs,
    )  # fmt: skip
    runs, place = [], 0
    for own, run in itertools.groupby(found["assistant_masks"]):
        length = len(list(run))
        runs += [range(place, place + length)] if own else []
        place += length
    every = sum(message["role"] == "assistant" for message in texts.messages)
    if len(runs) != every:
        raise _RewrittenError(f"the chat template marks {len(runs)} of {every} turns of the assistant as generated")
    return list(found["input_ids"]), runs[every - len(turns) :]


def _by_prefixes(texts: _Texts, turns: Sequence[int]) -> tuple[list[int], list[range]]:
    """Encode the text between two turns by itself, as a rollout does: no token spans their border."""
    ids: list[int] = []
    runs: list[range] = []
    at = 0
    for turn in turns:
        before, through = texts.render(turn, asks=True), texts.through(turn)
        if not (through.startswith(before) and at <= len(before) < len(through)):
            raise _RewrittenError(
                f"the chat template does not begin message {turn + 1}, a turn of the assistant, as it asks for one"
            )
        ids += texts.ids(through[at : len(before)])
        said = texts.ids(through[len(before) :])
        runs.append(range(len(ids), len(ids) + len(said)))
        ids += said
        at = len(through)
    return ids, runs


def _to_its_end(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], run: range, ends: Collection[int], where: str
) -> range:
    """Return a turn up to its end token, which may follow the marked part; a template may add a line feed after it."""
    found = [place for place in run if ids[place] in ends]
    if not found and run.stop < len(ids) and ids[run.stop] in ends:
        found = [run.stop]
    if not found:
        names = ", ".join(tokenizer.convert_ids_to_tokens(sorted(ends)))
        raise UserError(
            where,
            f"the chat template does not end a turn of the assistant with a token that ends a response ({names})",
            fix="name the token that it writes in data.stop_token_ids",
        )
    if len(found) > 1:
        raise UserError(
            where, "a turn of the assistant holds an end token in its middle", fix="take it out of the text"
        )
    return range(run.start, found[-1] + 1)
