"""Tool calls in the text of a turn: read what a policy wrote into content, reasoning and calls.

The parser is that of transformers (``response_template``). The formats below are data for it, as the families' chat
templates write them and vLLM's parsers read them; a tokenizer's own ``response_template`` comes first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_parsing import parse_response

from gspo_lightning.core.escape import whole_values
from gspo_lightning.core.thinking import CLOSES, MARKS, OPENS
from gspo_lightning.core.turn import ToolCall as ToolCall
from gspo_lightning.core.turn import Turn as Turn

_NEVER = "\x00"
"""Start anchor of a format: a turn is parsed alone, without the prompt before it."""


def _thinking(opening: str, closing: str) -> dict[str, str]:
    first = re.escape(opening)
    last = re.escape(closing)
    pattern = rf"{first}|\A(?=(?:(?!{first})[\s\S])*{last})"
    return {"open_pattern": pattern, "close": closing, "content": "text"}


_FAMILIES = {marks: _thinking(*marks) for marks in MARKS}
_THINKING = _FAMILIES[MARKS[0]]
"""Reasoning; where the template begins it, the turn has the closing tag only."""
_CONTENT = {"content": "text", "content_args": {"strip": False}, "repeats": True, "join": ""}
_NAMED = {"function": {"name": "{name}", "arguments": "{content}"}}
_LOOSE = {"allow_non_json": True}


def _format(calls: Mapping[str, Any], **fields: Mapping[str, Any]) -> dict[str, Any]:
    call = {"repeats": True, "content": "json", "content_args": _LOOSE, "transform": {"function": "{content}"}}
    kinds = fields or {"thinking": _THINKING, "content": _CONTENT}
    return {"start_anchor": _NEVER, "fields": {**kinds, "tool_calls": {**call, **calls}}}


_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_xml": (  # Qwen3-Coder, Qwen3.5, Seed-OSS
        r"<function=",
        _format({
            "open_pattern": r"<(?:seed:)?tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</(?:seed:)?tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
            "transform": _NAMED,
        }),
    ),
    "minimax": (  # M2: one block of tags around all calls
        r"<minimax:tool_call>",
        _format({
            "open_pattern": r"(?:<minimax:tool_call>\s*)?<invoke name=\"(?P<name>[^\">\n]+)\">",
            "close_pattern": r"</invoke>\s*(?:</minimax:tool_call>)?",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter name=\"(?P<key>[^\">\n]+)\">(?P<value>.*?)</parameter>"},
            "transform": _NAMED,
        }),
    ),
    "deepseek_dsml": (  # V3.2 and V4
        r"｜DSML｜",
        _format({
            "open_pattern": r"(?:<｜DSML｜(?:function|tool)_calls>\s*)?<｜DSML｜invoke name=\"(?P<name>[^\">\n]+)\">",
            "close_pattern": r"</｜DSML｜invoke>\s*(?:</｜DSML｜(?:function|tool)_calls>)?",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<｜DSML｜parameter name=\"(?P<key>[^\">]+)\"[^>]*>(?P<value>.*?)</｜DSML｜parameter>",
            },
            "transform": _NAMED,
        }),
    ),
    "kimi": (
        r"<\|tool_call_argument_begin\|>",
        _format({
            "open_pattern": r"(?:<\|tool_calls_section_begin\|>)?\s*<\|tool_call_begin\|>\s*"
            r"(?P<id>(?:functions\.)?(?P<name>[^\s<:]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>",
            "close_pattern": r"<\|tool_call_end\|>\s*(?:<\|tool_calls_section_end\|>)?",
            "transform": {"function": {"name": "{name}", "arguments": "{content}", "id": "{id}"}},
        }),
    ),
    "command_r": (  # Command R7B and A
        r"<\|START_ACTION\|>",
        _format(
            {"open": "<|START_ACTION|>", "close": "<|END_ACTION|>"},
            thinking=_FAMILIES["<|START_THINKING|>", "<|END_THINKING|>"],
            content={"open_pattern": r"<\|START_(?:RESPONSE|TEXT)\|>",
                     "close_pattern": r"<\|END_(?:RESPONSE|TEXT)\|>", **_CONTENT},
        ),
    ),
    "granite": (r"<\|tool_call\|>", _format({"open": "<|tool_call|>"})),
    "glm": (
        r"<arg_key>",
        _format({
            "open_pattern": r"<tool_call>(?P<name>[^\s<]+)",
            "close": "</tool_call>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
            },
            "transform": _NAMED,
        }),
    ),
    "hermes": (r"<tool_call>", _format({"open": "<tool_call>", "close": "</tool_call>"})),
    "gpt_oss": (
        r"<\|channel\|>",
        _format(
            {
                "open_pattern": r"to=functions\.(?P<name>[^\s<]+)<\|channel\|>(?:commentary|analysis)[^<]*"
                r"(?:<\|constrain\|>[^<]*)?<\|message\|>|<\|channel\|>(?:commentary|analysis)\s+to=functions\."
                r"(?P<name>[^\s<]+)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>",
                "close": "<|call|>",
                "transform": _NAMED,
            },
            thinking={
                "open": "<|channel|>analysis<|message|>", "close": "<|end|>", "content": "text",
                "repeats": True, "join": "\n",
            },
            content={
                "open_pattern": r"<\|channel\|>(?:final|commentary)(?:[ ]?<\|constrain\|>[^<]*)?<\|message\|>",
                "close_pattern": r"<\|return\|>|<\|end\|>", **_CONTENT,
            },
        ),
    ),
    "deepseek": (  # V3 and R1 write the arguments in a fence, V3.1 bare
        r"<｜tool▁calls▁begin｜>",
        _format({
            "open_pattern": r"(?:<｜tool▁calls▁begin｜>)?\s?<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>"
            r"(?P<name>[^\n<]+)\n```(?:json)?\n|(?P<name>[^\n<]+)<｜tool▁sep｜>)",
            "close_pattern": r"(?:\n```)?<｜tool▁call▁end｜>\s*(?:<｜tool▁calls▁end｜>)?",
            "transform": _NAMED,
        }),
    ),
    "mistral": (  # from version 11 of its tokenizer on
        r"\[ARGS\]",
        _format({
            "open_pattern": r"\[TOOL_CALLS\]\s*(?P<name>[^\[{\s]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?",
            "close_pattern": r"(?=\[TOOL_CALLS\])",
            "transform": _NAMED,
        }),
    ),
    "mistral_list": (r"\[TOOL_CALLS\]", _format({"open": "[TOOL_CALLS]"})),
    "llama3": (
        r"<\|python_tag\|>|\"parameters\": ",
        _format({
            "open_pattern": r"<\|python_tag\|>|(?=\{\s*\"(?:type|name)\"[^{}]*\"(?:parameters|arguments)\"\s*:)",
            "close_pattern": r";\s*(?=\{)",
        }),
    ),
}  # fmt: skip
"""Formats by the mark of their chat template, the most special first."""
_CHANNELS = ("gpt_oss", "command_r")
"""Formats that mark the content, too."""
_MARKS = (
    "<tool_call>",
    "<parameter=",
    "<arg_key>",
    "<invoke name=",
    "<｜DSML｜invoke",
    "<|tool_call_begin|>",
    "<|tool_call|>",
    "<|START_ACTION|>",
    "<｜tool▁call▁begin｜>",
    "[TOOL_CALLS]",
    "<|channel|>",
    *(closing for _, closing in MARKS),
)
_MOST_MARKS = 500
"""A turn with more marks is not parsed: the parser looks at the rest of the text again after each."""
_SPECIAL: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[str, ...]] = WeakKeyDictionary()
_PLAIN = {"start_anchor": _NEVER, "fields": {"thinking": _THINKING, "content": _CONTENT}}


def parse_turn(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    opened: bool = False,
) -> Turn:
    """Return the parts of a turn; never fails.

    A turn with a call that cannot be read has no calls, and its text stays content, as in vLLM. A turn that ends inside
    its thought is reasoning only, as with vLLM's reasoning parsers. Half a character in the JSON of a call becomes its
    escape (:func:`~gspo_lightning.core.escape.whole`).

    Args:
        tokenizer: its chat template, or its ``response_template``, decides the format of calls.
        text: the turn, decoded with its special tokens: in some families they are the marks of calls.
        tools: JSON schemas; without any, no calls are looked for. Texts become numbers where a schema says so.
        opened: the template has opened a thought before the text.
    """
    name = _format_of(_template(tokenizer))
    own_format = getattr(tokenizer, "response_template", None)
    plain = _of_family(_PLAIN, text)
    if own_format:
        spec = own_format
    elif name and (tools or name in _CHANNELS):
        spec = _of_family(_FORMATS[name][1], text)
    else:
        spec = plain
    turn_text = _without_end(tokenizer, text, spec)
    if opened and not (CLOSES.search(turn_text) or OPENS.search(turn_text)):
        return Turn("", turn_text.strip() or None)
    if sum(turn_text.count(mark) for mark in _MARKS) > _MOST_MARKS:
        return Turn(turn_text, malformed=1)
    try:
        parsed = whole_values(parse_response(turn_text, spec, prefix="", tools=[dict(tool) for tool in tools] or None))
    except (ValueError, LookupError, TypeError, RecursionError):
        return Turn(turn_text, malformed=1)
    calls = [_call(entry) for entry in _flat(parsed.get("tool_calls"))] if tools else []
    malformed = sum(call is None for call in calls)
    if malformed:
        parts = _parsed(turn_text, plain) if name not in _CHANNELS else {}
        return Turn(parts.get("content", turn_text).strip(), parts.get("thinking"), malformed=malformed)
    content = parsed.get("content") or ""
    thinking = parsed.get("thinking") or parsed.get("reasoning_content") or None
    if not (content or thinking or calls):
        content = turn_text
    return Turn(content.strip(), thinking, tuple(call for call in calls if call is not None))


def knows_format(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the tokenizer says how calls are written, or its chat template has the mark of a known format."""
    return bool(getattr(tokenizer, "response_template", None) or _format_of(_template(tokenizer)))


def _of_family(spec: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a format with the marks of thoughts that a text has."""
    in_text = (thinking for marks, thinking in _FAMILIES.items() if any(mark in text for mark in marks))
    thinking = next(in_text, _THINKING)
    if thinking is _THINKING or spec["fields"]["thinking"] is not _THINKING:
        return spec
    return {**spec, "fields": {**spec["fields"], "thinking": thinking}}


def _parsed(text: str, spec: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = parse_response(text, spec, prefix="")
    return parsed


def _call(entry: Any) -> ToolCall | None:
    call = entry.get("function") if isinstance(entry, dict) else None
    name = call.get("name", call.get("tool_name")) if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(name, str) or not name:
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    call_id = call.get("id", call.get("tool_call_id", ""))
    if not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments, call_id if isinstance(call_id, str) else "")


def _flat(calls: Any) -> list[Any]:
    """Return calls one by one: some formats write a list of them."""
    flat: list[Any] = []
    for call in calls or []:
        functions = call.get("function") if isinstance(call, dict) else None
        if isinstance(functions, list):
            flat += [{"function": function} for function in functions]
        else:
            flat.append(call)
    return flat


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use", template.get("default", ""))
    return template or ""


@lru_cache(maxsize=64)
def _format_of(template: str) -> str:
    return next((name for name, (mark, _) in _FORMATS.items() if re.search(mark, template)), "")


def _without_end(tokenizer: PreTrainedTokenizerBase, text: str, spec: Mapping[str, Any]) -> str:
    """Return a turn without the tokens that end it: special ones that are no marks of its format.

    What ends a turn is often no end token of the tokenizer: GLM writes ``<|user|>`` or ``<|observation|>``, Phi
    ``<|end|>``.
    """
    ends = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>"}
    ends |= {str(token) for token in (tokenizer.eos_token, tokenizer.pad_token) if token is not None}
    marks = str(spec).replace("\\", "")  # of patterns, too
    ends |= {token for token in _special(tokenizer) if token not in marks}
    while end := next((token for token in ends if text.endswith(token)), None):
        text = text.removesuffix(end)
    return text


def _special(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the special tokens of a tokenizer, the longest first; reading them is slow, so it is done once."""
    if tokenizer not in _SPECIAL:
        added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
        tokens = {*tokenizer.all_special_tokens, *added} - {""}
        _SPECIAL[tokenizer] = tuple(sorted(tokens, key=len, reverse=True))
    return _SPECIAL[tokenizer]
