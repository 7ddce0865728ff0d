"""Check special tokens: one at the beginning of a prompt, none at its end, and a stop token that ends a turn."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Message, SystemPrompt

log = logging.getLogger(__name__)
_ANSWER = "An answer."


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Return the text of a conversation.

    Raises:
        TemplateError: the template refuses the messages, or fails on a value of another type than it expects.
    """
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise TemplateError(f"{type(error).__name__}: {error}") from error


def leading(system_prompt: SystemPrompt | None) -> list[Message]:
    """Return the messages that precede a prompt.

    >>> leading("Think."), leading([{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}])[1:]
    ([{'role': 'system', 'content': 'Think.'}], [{'role': 'assistant', 'content': '2'}])
    """
    if system_prompt is None:
        return []
    return [{"role": "system", "content": system_prompt}] if isinstance(system_prompt, str) else list(system_prompt)


class Ends:
    """Counter of prompts that begin with no begin token or with two, or end with the end token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        # kept here: a tokenizer computes them at every access, which is slow
        self._begin = tokenizer.bos_token_id
        self._end = tokenizer.eos_token_id
        self._prompts = 0
        self._begun = 0
        """Prompts that begin with the begin token."""
        self._twice = 0
        """Prompts that begin with two."""
        self._over = 0
        """Prompts that end with the end token."""

    def count(self, ids: Sequence[int]) -> None:
        """Count one prompt by its token ids, at least one."""
        begin = self._begin
        end = self._end
        self._prompts += 1
        self._begun += ids[0] == begin
        self._twice += begin is not None and ids[0] == begin and list(ids[:2]) == [begin, begin]
        self._over += end is not None and end != begin and ids[-1] == end

    def check(self, field: str) -> None:
        """Refuse prompts with two begin tokens or an end, and warn if the template writes no begin token.

        Raises:
            UserError: with the number of prompts, the token and the change to make.
        """
        if self._twice:
            raise UserError(
                field,
                f"{self._twice} of {self._prompts} prompts begin with {self._tokenizer.bos_token!r} twice",
                fix="take it out of the prompts: the tokenizer, or its chat template, writes it",
            )
        if self._over and self._tokenizer.chat_template is None:  # a template may put it between two turns
            raise UserError(
                field,
                f"{self._over} of {self._prompts} prompts end with {self._tokenizer.eos_token!r}, "
                "which ends a response",
                fix="take it out of the prompts, or save the tokenizer with add_eos_token=False",
            )
        if self._prompts and not self._begun and self._tokenizer.chat_template is not None and self._adds_begin():
            _say(
                f"{field}: prompts begin without {self._tokenizer.bos_token!r}: the tokenizer puts it before other "
                "texts, but the chat template does not write it"
            )

    def _adds_begin(self) -> bool:
        """True if the tokenizer puts a begin token before a text that no template wrote."""
        return self._begin is not None and list(self._tokenizer("a")["input_ids"][:1]) == [self._begin]


@functools.cache
def _say(line: str) -> None:
    """Log a line once: training and evaluation have prompts of the same kind."""
    log.warning(line)


def check_stop_strings(stops: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse stop strings that no response can contain: the text of a response has no special tokens.

    Raises:
        UserError: with the token, and the id to use instead.
    """
    silent = {*tokenizer.all_special_ids, *(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)}
    for stop in stops:
        if not stop:
            raise UserError("data.stop_strings", "holds an empty text, which every response contains")
        never_in_text = [i for i in tokenizer(stop, add_special_tokens=False)["input_ids"] if i in silent]
        if tokenizer.unk_token_id in never_in_text:
            raise UserError(
                "data.stop_strings",
                f"{stop!r} holds characters that the tokenizer cannot write, so no response ever contains it",
            )
        if never_in_text:
            names = ", ".join(repr(tokenizer.convert_ids_to_tokens(i)) for i in never_in_text)
            raise UserError(
                "data.stop_strings",
                f"{stop!r} never stops a response: {names} is a special token, which is left out of its text",
                fix=f"use data.stop_token_ids: {never_in_text}"
                + (" (or nothing: it ends every response)" if tokenizer.eos_token_id in never_in_text else ""),
            )


def check_stop_tokens(stops: Sequence[int], unsaid: Collection[int]) -> None:
    """Refuse stop tokens that a policy never says.

    Raises:
        UserError: with the token.
    """
    for stop in stops:
        if stop in unsaid:
            raise UserError(
                "data.stop_token_ids",
                f"holds {stop}, which never stops a response: no token of the tokenizer has this id, or it stands for "
                "a picture, so it is never sampled",
                fix="leave it out; if the model writes it, add it to eos_token_id of its generation_config.json",
            )


def check_turn_end(tokenizer: PreTrainedTokenizerBase, stops: Sequence[int]) -> None:
    """Warn if the chat template ends an answer with a special token that ends no response."""
    if tokenizer.chat_template is None:
        return
    messages = [{"role": "user", "content": "A question."}, {"role": "assistant", "content": _ANSWER}]
    try:
        rendered = render(tokenizer, messages)
    except TemplateError:  # a template without these roles; reading the prompts reports the fault
        return
    tail = tokenizer(rendered.rpartition(_ANSWER)[2], add_special_tokens=False)["input_ids"]
    special = next((i for i in tail if i in tokenizer.all_special_ids or i in tokenizer.added_tokens_decoder), None)
    if special is not None and special not in stops:
        names = ", ".join(repr(tokenizer.convert_ids_to_tokens(i)) for i in stops)
        log.warning(
            "the chat template ends an answer with %r, which ends no response here (%s do): if the policy was taught "
            "to write it, set data.stop_token_ids: [%d]",
            tokenizer.convert_ids_to_tokens(special), names, special,
        )  # fmt: skip
