"""What a chat template makes of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

__all__ = ["render"]


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The text of a conversation.

    Args:
        tokenizer: has a chat template.
        messages: the conversation.
        options: passed to the template.

    Raises:
        TemplateError: it refuses them, or stumbles over a value that is not of the type it takes for granted.
    """
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise TemplateError(f"{type(error).__name__}: {error}") from error
