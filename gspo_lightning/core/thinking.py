"""Thoughts of a policy: where they begin and end, and what comes after them.

A thought stands between ``<think>`` and ``</think>``. The opening mark may end the prompt, because many chat templates
write it, and both may be special tokens, which decoding drops. So whether a thought has ended is decided here, from
tokens, once for all sources; a thought that has not ended has no answer (:func:`after_thinking`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gspo_lightning.core.types import Rollout

OPENING, CLOSING = "<think>", "</think>"
UNFINISHED = "the thinking has no end"
"""Detail of the score of an answer whose thought has not ended."""
_OPEN = re.compile(r"<think>\s*\Z")
_TAIL = 32
"""Tokens at the end of a context in which an opening mark and the white space after it fit."""
_DROPPED: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[frozenset[int], bool]] = WeakKeyDictionary()


def after_thinking(text: str, unfinished: bool = False) -> str | None:
    """Return the text after the last ``</think>``; None while the thinking has not ended.

    Args:
        text: a completion.
        unfinished: its thought was opened before the text, and has not ended (:func:`unfinished_thought`).

    >>> after_thinking("<think>41?</think> 42"), after_thinking("<think> 42"), after_thinking("42", unfinished=True)
    (' 42', None, None)
    """
    head, closed, rest = text.rpartition(CLOSING)
    if unfinished or OPENING in rest:
        return None
    return rest if closed else head + rest


def opens_thought(prompt: str) -> bool:
    r"""True if a rendered prompt ends inside a thought: what follows is thinking.

    >>> opens_thought("<|Assistant|><think>\n"), opens_thought("assistant\n<think>\n\n</think>\n\n")
    (True, False)
    """
    return _OPEN.search(prompt) is not None


def context_opens_thought(tokenizer: PreTrainedTokenizerBase, context: Sequence[int]) -> bool:
    """True if the tokens before a turn of the policy end inside a thought."""
    return opens_thought(str(tokenizer.decode(list(context[-_TAIL:]), skip_special_tokens=False)))


def decode_response(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of tokens of the policy, without special tokens other than the marks of thoughts."""
    if tokenizer not in _DROPPED:
        special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        kept = {i for i, content in special.items() if content.strip() in (OPENING, CLOSING)}
        _DROPPED[tokenizer] = frozenset((*special, *tokenizer.all_special_ids)) - kept, bool(kept)
    dropped, marks = _DROPPED[tokenizer]
    if not marks:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))
    return str(tokenizer.decode([i for i in ids if i not in dropped], skip_special_tokens=False))


def unfinished_thought(tokenizer: PreTrainedTokenizerBase, rollout: Rollout) -> bool:
    """True if a response ends inside a thought that its prompt, or its newest turn, has opened.

    Only the newest turn of the policy counts: a conversation goes on after a thought that was cut.

    Args:
        tokenizer: of the policy.
        rollout: a response, a conversation, or an agent's rows, of which the last was sampled last.
    """
    first = rollout.row_ends[-2] if len(rollout.row_ends) > 1 else 0
    own = rollout.response_mask[first:].tolist()
    ids = rollout.token_ids[first:].tolist()
    if not any(own):
        return False
    end = len(own) - own[::-1].index(True)
    begin = end
    while begin and own[begin - 1]:
        begin -= 1
    before = rollout.contexts[-1] if rollout.contexts else rollout.prompt.token_ids
    said = decode_response(tokenizer, ids[begin:end])
    _, closed, rest = said.rpartition(CLOSING)
    if closed or OPENING in rest:
        return OPENING in rest
    return context_opens_thought(tokenizer, (*before[-_TAIL:], *ids[:begin]))
