"""Prompts and completions as lists of chat messages, for functions that were written for them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from gspo_lightning.rewards.types import Sample

__all__ = ["completion_messages", "prompt_messages", "wants_messages"]

_MESSAGES = re.compile(r"(list|Sequence)\[\s*(list|Sequence)\b|(list|Sequence)\[\s*\w*[Mm]essages?\b", re.IGNORECASE)


def wants_messages(function: Callable[..., Any]) -> bool:
    """Whether the annotations of a function say that ``completions`` (or else ``prompts``) are lists of messages.

    >>> def conversational(completions: list[list[dict[str, str]]]) -> list[float]: ...
    >>> def plain(completions: list[str]) -> list[float]: ...
    >>> wants_messages(conversational), wants_messages(plain), wants_messages(lambda completions: [0.0])
    (True, False, False)
    """
    parameters = inspect.signature(function).parameters
    for name in ("completions", "prompts"):
        if name in parameters and (said := parameters[name].annotation) is not inspect.Parameter.empty:
            return _MESSAGES.search(said if isinstance(said, str) else repr(said).replace("typing.", "")) is not None
    return False


def prompt_messages(sample: Sample) -> list[dict[str, Any]]:
    """The messages of a record's prompt; a prompt that is a text is one user message."""
    if sample.prompt_messages:
        return [dict(message) for message in sample.prompt_messages]
    return [{"role": "user", "content": sample.prompt}]


def completion_messages(sample: Sample) -> list[dict[str, Any]]:
    """One message of the assistant; of a conversation with an environment everything from its first one on.

    >>> completion_messages(Sample("0", "1+1?", "2"))
    [{'role': 'assistant', 'content': '2'}]
    """
    if "environment_reward" in sample.columns and isinstance(said := sample.columns.get("messages"), list | tuple):
        first = next((i for i, message in enumerate(said) if message["role"] == "assistant"), len(said))
        return [dict(message) for message in said[first:]]
    return [{"role": "assistant", "content": sample.completion}]
