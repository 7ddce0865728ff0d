"""From records to prompts the policy can read: chat template, special tokens, length limit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gspo_lightning.errors import UserError, first_line
from gspo_lightning.prompts.base import Record
from gspo_lightning.prompts.specials import check_ends
from gspo_lightning.types import Prompt

__all__ = ["encode_prompt", "encode_prompts", "unknown_token"]

log = logging.getLogger(__name__)


def encode_prompts(
    records: Sequence[Record],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_prompt_tokens: int,
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    field: str = "data.train",
) -> list[Prompt]:
    """Prompts in the order of the records; too long ones are counted and dropped with a message, never cut.

    With a chat template, a text becomes one user message (after ``system_prompt``, if any); without one it is encoded
    as it is.

    Raises:
        UserError: chat messages or a system prompt without a chat template, a template that refuses them, characters
            the tokenizer does not know, special tokens that begin a prompt twice or end it, or nothing left below the
            limit.
    """
    prompts: list[Prompt] = []
    too_long = 0
    unknown = unknown_token(tokenizer)
    for i, record in enumerate(records):
        try:
            text, ids = encode_prompt(record["prompt"], tokenizer, system_prompt, chat_template_kwargs or {}, field)
        except TemplateError as error:
            what = f"record {i + 1}: the chat template refuses the prompt: {first_line(error)[:200]}"
            raise UserError(field, what, fix="write messages as the model's template wants them") from error
        if unknown is not None and unknown in ids:
            raise UserError(
                field,
                f"record {i + 1}: the tokenizer does not know every character of the prompt",
                fix="use a tokenizer that covers the prompts, or drop the record",
            )
        if not ids:
            raise UserError(field, f"record {i + 1}: the prompt has no tokens")
        if len(ids) > max_prompt_tokens:
            too_long += 1
            continue
        prompts.append(Prompt(i, text, tuple(ids), {k: v for k, v in record.items() if k != "prompt"}))
    check_ends([prompt.token_ids for prompt in prompts], tokenizer, field)
    if too_long:
        log.warning(
            "%s: dropped %d of %d prompts that are longer than data.max_prompt_tokens = %d (nothing is ever cut)",
            field, too_long, len(records), max_prompt_tokens,
        )  # fmt: skip
    if not prompts:
        raise UserError(
            field,
            f"no prompt is left: all {len(records)} exceed data.max_prompt_tokens = {max_prompt_tokens}"
            if records
            else "holds no records",
            fix="raise data.max_prompt_tokens" if records else "give a set with records",
        )
    return prompts


def unknown_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id that stands for what a tokenizer does not know; None if it has none that says so."""
    unknown: int | None = tokenizer.unk_token_id  # byte-level tokenizers reuse their end token: that one says nothing
    if unknown in (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id):
        return None
    return unknown


def encode_prompt(
    prompt: Any,
    tokenizer: PreTrainedTokenizerBase,
    system_prompt: str | None,
    template_kwargs: Mapping[str, Any],
    field: str,
) -> tuple[str, list[int]]:
    """Text and token ids of one prompt; see :func:`encode_prompts`."""
    if tokenizer.chat_template is None:
        if not isinstance(prompt, str) or system_prompt is not None:
            what = "data.system_prompt" if system_prompt is not None else "a list of chat messages as prompt"
            raise UserError(field, f"{what} needs a chat template, and this tokenizer has none")
        return prompt, tokenizer(prompt)["input_ids"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if system_prompt is not None:
        messages = [{"role": "system", "content": system_prompt}, *messages]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **template_kwargs)
    # the template writes its own special tokens: a tokenizer that adds them again would give a double BOS
    ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    return (prompt if isinstance(prompt, str) else str(rendered)), ids
