"""Conversations as token ids, turn by turn; the policy's own tokens are never tokenised again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gspo_lightning.errors import UserError
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.prompts.encode import encode_prompt, unknown_token
from gspo_lightning.prompts.prompt_set import Completion
from gspo_lightning.prompts.specials import render
from gspo_lightning.rewards.chat import tools_of
from gspo_lightning.types import Message

_TURN = "a-turn-of-the-policy"
"""Placeholder for a turn of the policy, to see what a template writes after it."""


class Dialogue:
    """Encoder of the tokens between two turns of the policy.

    With a chat template, these are the tokens it writes from the end of one turn to the beginning of the next.
    Without one, they are the contents of the messages, one after another.

    Args:
        tokenizer: of the policy.
        system_prompt: put before an opening without a system message.
        chat_template_kwargs: passed to the chat template.
        field: how messages name the setting.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        system_prompt: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        field: str = "data.rollouts",
    ) -> None:
        self.tokenizer, self.system_prompt, self.field = tokenizer, system_prompt, field
        self.template_kwargs = dict(chat_template_kwargs or {})
        image_processor = image_processor_of(tokenizer)
        self._unsaid = frozenset(() if image_processor is None else image_processor.unsaid)
        self._ids: dict[str, list[int]] = {}  # environments repeat themselves, and tokenizers are slow to call

    def opening(self, messages: Sequence[Message], columns: Mapping[str, Any] | None = None) -> list[int]:
        """Return the token ids of a prompt given as messages.

        Args:
            messages: at least one.
            columns: of the record; its ``tools`` go to the template.

        Raises:
            UserError: the template refuses the messages, or the tokenizer does not know every character.
        """
        if self.tokenizer.chat_template is None:
            text = "".join(m["content"] for m in messages)
            return self._known(text, encode_prompt(text, self.tokenizer, None, {}, self.field)[1])
        system = None if messages[0]["role"] == "system" else self.system_prompt
        try:
            kwargs = {**self.template_kwargs, **tools_of(columns or {})}
            text, ids = encode_prompt(list(messages), self.tokenizer, system, kwargs, self.field)
        except TemplateError as error:
            raise self._refused(messages, error) from error
        return self._known(text, ids)

    def reply(self, messages: Sequence[Message], last: int) -> list[int]:
        """Return the token ids between the end of a turn, whose last token was ``last``, and the beginning of the next.

        An end-of-turn token that the policy has already written is not repeated.
        """
        if self.tokenizer.chat_template is None:
            text = "".join(m["content"] for m in messages)
        else:
            text = self._after_turn(messages)
        ids = self._tokens(text)
        return self._known(text, ids[1:] if ids and ids[0] == last and self.tokenizer.chat_template else ids)

    def demonstration(self, completion: Completion) -> tuple[list[int], list[bool]]:
        """Return the token ids of a text or conversation to learn from, and a mask of those the policy writes.

        Every turn of the policy ends with the end token; the messages in between are tokenised as in a rollout.
        """
        if isinstance(completion, str):
            completion = [{"role": "assistant", "content": completion}]
        ids: list[int] = []
        taught: list[bool] = []
        for own, turn in itertools.groupby(completion, lambda message: message["role"] == "assistant"):
            if own:
                text = "".join(m["content"] for m in turn)
                new = [*self._tokens(text), self.tokenizer.eos_token_id]
            else:
                new = self.reply(list(turn), ids[-1])
            ids += new
            taught += [own] * len(new)
        return ids, taught

    def _tokens(self, text: str) -> list[int]:
        if text not in self._ids:
            self._ids[text] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._ids[text]

    def _after_turn(self, messages: Sequence[Message]) -> str:
        before = [{"role": "user", "content": "."}, {"role": "assistant", "content": _TURN}]
        try:
            said = [*before, *messages]
            rendered = render(self.tokenizer, said, add_generation_prompt=True, **self.template_kwargs)
        except TemplateError as error:
            raise self._refused(messages, error) from error
        _, found, after = rendered.partition(_TURN)
        if not found:
            raise UserError(
                self.field, "the chat template leaves out what the policy said: no conversation is possible"
            )
        return after

    def _known(self, text: str, ids: list[int]) -> list[int]:
        unknown = unknown_token(self.tokenizer)
        if unknown is not None and unknown in ids:
            raise UserError(
                self.field,
                "the tokenizer does not know every character of what the environment said",
                fix="let the environment use other words, or use a tokenizer that covers them",
            )
        if not self._unsaid.isdisjoint(ids):
            token = self.tokenizer.convert_ids_to_tokens(next(i for i in ids if i in self._unsaid))
            what = f"the environment said {token}, which stands for a picture or a video"
            raise UserError(self.field, what, fix="let it leave this out; environments cannot show pictures")
        return ids

    def _refused(self, messages: Sequence[Message], error: TemplateError) -> UserError:
        roles = ", ".join(m["role"] for m in messages)
        return UserError(
            self.field,
            f"the chat template refuses the environment's messages (roles: {roles}): {error}",
            fix="let the environment answer with role: user, or use a template that knows these roles",
        )
