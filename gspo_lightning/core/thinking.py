"""Thoughts of a policy: where they begin and end, and what comes after them.

A thought stands between ``<think>`` and ``</think>``, or between the marks of another family (:data:`MARKS`). The
opening mark may end the prompt, because many chat templates write it, and both may be special tokens, which decoding
drops. So whether a thought has ended is decided here, from tokens, once for all sources; a thought that has not ended
has no answer (:func:`after_thinking`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gspo_lightning.core.types import Rollout

OPENING = "<think>"
CLOSING = "</think>"
MARKS = (
    (OPENING, CLOSING),  # DeepSeek, Qwen, GLM, MiniMax, OLMo and most others
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi-VL
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
)
"""Opening and closing marks of thoughts by families."""
OPENS, CLOSES = (re.compile("|".join(map(re.escape, marks))) for marks in zip(*MARKS, strict=True))
UNFINISHED = "the thinking has no end"
"""Detail of the score of an answer whose thought has not ended."""
_OPEN = re.compile(rf"(?:{OPENS.pattern})\s*\Z")
_TAIL = 32
"""Tokens at the end of a context in which an opening mark and the white space after it fit."""
_CHANNELS = ("<|start|>", "<|channel|>", "<|message|>")
_ANALYSIS = re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>analysis[^<]*<\|message\|>")
_FINAL = re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>final[^<]*<\|message\|>")
"""Headers of gpt-oss, which has channels in the place of marks, of special tokens and words between them."""
_DROPPED: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[frozenset[int], bool, bool]] = WeakKeyDictionary()


def split_thinking(text: str) -> tuple[str, str, str]:
    """Split a text at the closing mark of its last thought, as ``rpartition`` does.

    >>> split_thinking("[THINK]41?[/THINK]42")
    ('[THINK]41?', '[/THINK]', '42')
    """
    closing = [match[0] for match in CLOSES.finditer(text)]
    return text.rpartition(closing[-1]) if closing else ("", "", text)


def after_thinking(text: str, unfinished: bool = False) -> str | None:
    """Return the text after the last ``</think>``, or another family's mark; None while the thinking has not ended.

    Args:
        text: a completion.
        unfinished: its thought was opened before the text, and has not ended (:func:`unfinished_thought`).

    >>> after_thinking("<think>41?</think> 42"), after_thinking("<think> 42"), after_thinking("42", unfinished=True)
    (' 42', None, None)
    """
    _, _, rest = split_thinking(text)
    return None if unfinished or OPENS.search(rest) else rest


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
    """Return the text of tokens of the policy, without special tokens other than the marks of thoughts.

    The channels of gpt-oss become ``<think>`` and ``</think>``: without their special tokens a thought and the answer
    after it would be one text, and its chat template takes no turn that holds them.
    """
    if tokenizer not in _DROPPED:
        _DROPPED[tokenizer] = _dropped(tokenizer)
    dropped, marks, channels = _DROPPED[tokenizer]
    if not marks:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))
    text = str(tokenizer.decode([i for i in ids if i not in dropped], skip_special_tokens=False))
    if channels:
        text = _FINAL.sub(CLOSING, _ANALYSIS.sub(OPENING, text))
        for name in _CHANNELS:
            text = text.replace(name, "")
    return text


def _dropped(tokenizer: PreTrainedTokenizerBase) -> tuple[frozenset[int], bool, bool]:
    """Return the special tokens that no text shows, and whether marks of thoughts and of channels are among others."""
    special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    marks = {mark for pair in MARKS for mark in pair}
    kept = {i for i, content in special.items() if content.strip() in marks}
    has_channels = set(_CHANNELS) <= set(special.values())
    if has_channels:
        kept |= {i for i, content in special.items() if content in _CHANNELS}
    dropped = frozenset((*special, *tokenizer.all_special_ids)) - kept
    return dropped, bool(kept), has_channels


def unfinished_thought(tokenizer: PreTrainedTokenizerBase, rollout: Rollout) -> bool:
    """True if a response ends inside a thought that its prompt, or its newest turn, has opened.

    Only the newest turn of the policy counts: a conversation goes on after a thought that was cut.

    Args:
        tokenizer: of the policy.
        rollout: a response, a conversation, or an agent's rows, of which the last was sampled last.
    """
    first = rollout.rows[-1].start if rollout.rows else 0
    own = rollout.response_mask[first:].tolist()
    ids = rollout.token_ids[first:].tolist()
    if not any(own):
        return False
    end = len(own) - own[::-1].index(True)
    begin = end
    while begin and own[begin - 1]:
        begin -= 1
    before = rollout.rows[-1].context if rollout.rows else rollout.prompt.token_ids
    said = decode_response(tokenizer, ids[begin:end])
    _, closed, rest = split_thinking(said)
    if closed or OPENS.search(rest):
        return OPENS.search(rest) is not None
    return context_opens_thought(tokenizer, (*before[-_TAIL:], *ids[:begin]))
