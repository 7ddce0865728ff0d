"""Render messages with a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

__all__ = ["render"]


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Return the text of a conversation.

    Args:
        tokenizer: has a chat template.
        messages: the conversation.
        options: passed to the template.

    Raises:
        TemplateError: the template refuses the messages, or fails on a value of another type than it expects.
    """
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise TemplateError(f"{type(error).__name__}: {error}") from error
