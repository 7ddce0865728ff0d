"""Conversations as token ids, turn by turn; the policy's own tokens are never tokenised again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Message, SystemPrompt
from gspo_lightning.data.prompts.encode import encode_prompt, unknown_token
from gspo_lightning.data.prompts.id_cache import IdCache
from gspo_lightning.data.prompts.messages import placeholder_calls, plain_messages, variants
from gspo_lightning.data.prompts.prompt_set import Completion
from gspo_lightning.data.prompts.specials import leading, render
from gspo_lightning.data.prompts.tool_calls import knows_format, parse_turn
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.rewards.chat import tools_of

_TURN = "a-turn-of-the-policy"
"""Placeholder for a turn of the policy, to see what a template writes after it."""
_PROBE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "a_tool_to_look_for",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "A text."}}},
    },
}
_ENDS = 24
"""Special tokens behind which a turn with a call is looked for the call."""
KEPT_BYTES = 16 << 20
"""Bytes of the token ids that are kept of messages between turns; about 4,000 answers of a tool with 1,000 tokens."""
_Tools = Sequence[Mapping[str, Any]]


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
        system_prompt: SystemPrompt | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        field: str = "data.rollouts",
    ) -> None:
        self.tokenizer = tokenizer
        self.system_prompt = system_prompt
        self.field = field
        self.template_kwargs = dict(chat_template_kwargs or {})
        image_processor = image_processor_of(tokenizer)
        self._unsaid = frozenset(() if image_processor is None else image_processor.unsaid)
        self._ids = IdCache(KEPT_BYTES)  # environments repeat themselves, and tokenizers are slow to call

    def opening(self, messages: Sequence[Message], columns: Mapping[str, Any] | None = None) -> list[int]:
        """Return the token ids of a prompt given as messages.

        Args:
            messages: at least one, in OpenAI's shape: text, text parts or null as content, ``tool_calls``, role
                ``tool`` with ``tool_call_id``.
            columns: of the record; its ``tools`` go to the template.

        Raises:
            UserError: the template refuses the messages or leaves out the tools, a message is not text, or the
                tokenizer does not know every character.
        """
        plain = self._plain(messages)
        tools = tools_of(columns or {}).get("tools", ())
        self._check_tools(tools)
        if self.tokenizer.chat_template is None:
            text = "".join(m["content"] for m in plain)
            return self._known(text, encode_prompt(text, self.tokenizer, None, {}, self.field)[1])
        if plain[0]["role"] != "system":
            plain = [*map(dict, leading(self.system_prompt)), *plain]
        try:
            text = self._render(plain, tools, add_generation_prompt=True)
        except TemplateError as error:
            raise self._refused(messages, error) from error
        return self._known(text, self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def reply(
        self,
        messages: Sequence[Message],
        last: int,
        tools: Sequence[Mapping[str, Any]] = (),
        calls: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the token ids between the end of a turn, whose last token was ``last``, and the beginning of the next.

        An end-of-turn token that the policy has already written is not repeated.

        Args:
            messages: as in :meth:`opening`; results of tools come first.
            last: id of the last token of the turn.
            tools: JSON schemas of the tools, as in the opening: templates write other things with tools.
            calls: ``tool_calls`` of the turn that has ended, if known: they name and order the results.

        Raises:
            UserError: as :meth:`opening`.
        """
        plain = self._plain([{"role": "assistant", "content": "", "tool_calls": list(calls)}, *messages])[1:]
        self._check_tools(tools)
        if self.tokenizer.chat_template is None:
            text = "".join(m["content"] for m in plain)
            return self._known(text, self._tokens(text))
        text, ids = self._after_turn(plain, last, tools, calls)
        return self._known(text, ids)

    def demonstration(self, completion: Completion) -> tuple[list[int], list[bool]]:
        """Return the token ids of a text or conversation to learn from, and a mask of those the policy writes.

        Every turn of the policy ends with the end token; the messages in between are tokenised as in a rollout.
        """
        if isinstance(completion, str):
            completion = [{"role": "assistant", "content": completion}]
        ids: list[int] = []
        taught: list[bool] = []
        for is_policy, group in itertools.groupby(completion, lambda message: message["role"] == "assistant"):
            turn = list(group)
            if is_policy:
                if any(message.get("tool_calls") for message in turn):
                    fix = "write each call into the content, as the policy is to write it"
                    raise UserError(self.field, "a demonstration has tool_calls, which are no text to learn", fix=fix)
                text = "".join(m["content"] for m in turn)
                turn_ids = [*self._tokens(text), self.tokenizer.eos_token_id]
            else:
                turn_ids = self.reply(turn, ids[-1])
            ids += turn_ids
            taught += [is_policy] * len(turn_ids)
        return ids, taught

    @cached_property
    def knows_tools(self) -> bool:
        """True if the chat template shows tools to the policy."""
        if self.tokenizer.chat_template is None:
            return False
        try:
            return _PROBE["function"]["name"] in self._render([{"role": "user", "content": "."}], [_PROBE])
        except TemplateError:
            return False

    @cached_property
    def reads_calls(self) -> bool:
        """True if a call that the chat template writes is read back as that call.

        If the template leaves calls out, the mark of a known format decides.
        """
        name = _PROBE["function"]["name"]
        arguments = {"a": "b"}
        call = {"id": "probe0000", "type": "function", "function": {"name": name, "arguments": arguments}}
        question: list[dict[str, Any]] = [{"role": "user", "content": "."}]
        result = {"role": "tool", "tool_call_id": call["id"], "name": name, "content": _TURN}
        try:
            before = self._render(question, [_PROBE])
            turn = {"role": "assistant", "content": "", "tool_calls": [call]}
            after = self._render([*question, turn, result], [_PROBE])
        except TemplateError:
            return knows_format(self.tokenizer)
        written = after.removeprefix(before).partition(_TURN)[0]
        if name not in written:
            return knows_format(self.tokenizer)
        ids = self._tokens(written)
        ends = [i + 1 for i, token in enumerate(ids) if token in self._special][:_ENDS]
        for end in (*ends, len(ids)):
            calls = parse_turn(self.tokenizer, self.tokenizer.decode(ids[:end]), [_PROBE]).calls
            if [(c.name, c.arguments) for c in calls] == [(name, arguments)]:
                return True
        return False

    @cached_property
    def _special(self) -> frozenset[int]:
        added = (i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special)
        return frozenset((*self.tokenizer.all_special_ids, *added))

    def _tokens(self, text: str) -> list[int]:
        return self._ids.get(text, lambda: self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _after_turn(
        self, messages: list[dict[str, Any]], last: int, tools: _Tools, calls: _Tools
    ) -> tuple[str, list[int]]:
        """Return what the template writes after a placeholder turn, as text and from the end of that turn as ids."""
        refusal: TemplateError | None = None
        turn_shown = False
        for turn in _placeholders(messages, tools, calls):
            context = [{"role": "user", "content": "."}, turn]
            try:
                rendered = self._render([*context, *messages], tools, add_generation_prompt=True)
            except TemplateError as error:
                refusal = refusal or error
                continue
            _, mark_found, after = rendered.partition(_TURN)
            if not mark_found:
                continue
            turn_shown = True
            ids = self._from_end(self._tokens(after), self._closing(context, tools), last, "tool_calls" in turn)
            if ids is not None and self._shows(ids, messages):
                return after, ids
        if refusal is not None:
            raise self._refused(messages, refusal) from refusal
        missing = "the results of tools" if turn_shown else "what the policy said"
        raise UserError(self.field, f"the chat template leaves out {missing}: no conversation is possible")

    def _shows(self, ids: list[int], messages: list[dict[str, Any]]) -> bool:
        """True if the ids have the texts of all results of tools, which some templates leave out silently."""
        texts = [m["content"].strip() for m in messages if m["role"] == "tool"]
        rendered = self.tokenizer.decode(ids) if texts else ""
        for text in texts:
            as_json = json.dumps(text, ensure_ascii=False)[1:-1]  # some templates write results as JSON
            if text not in rendered and as_json not in rendered:
                return False
        return True

    def _closing(self, messages: list[dict[str, Any]], tools: _Tools) -> list[int]:
        """Return the ids after a placeholder turn that is the last message; none if the template refuses that."""
        try:
            return self._tokens(self._render(messages, tools).partition(_TURN)[2])
        except TemplateError:
            return []

    def _from_end(self, ids: list[int], closing: list[int], last: int, called: bool) -> list[int] | None:
        """Return ``ids`` from the end of the turn on; None if no end is found after a call.

        A turn ends with the last special token that is written both before a next message and at the end of a
        conversation, else with the first special one. It is left out if ``last`` is it, or is what ends a conversation
        (gpt-oss ends its last turn with another token than all before).
        """
        pairs = zip(ids, closing, strict=False)
        common = next((i for i, (token, closing_token) in enumerate(pairs) if token != closing_token), len(closing))
        ends = [i for i in range(min(common, len(ids))) if ids[i] in self._special]
        first = next((i for i, token in enumerate(ids) if token in self._special), None)
        end = ends[-1] if ends else first
        if not called:
            if end is None or self.tokenizer.decode(ids[:end]).strip():
                return ids
            return ids[end + 1 :] if last in self._turn_ends(ids[end], closing) else ids
        if end is None:
            return None
        if ids[end + 1 : end + 2] == [last]:  # Gemma's policy also begins the result
            return ids[end + 2 :]
        return ids[end + 1 :] if last in self._turn_ends(ids[end], closing) else ids[end:]

    def _turn_ends(self, end: int, closing: list[int]) -> set[int]:
        return {end, *[i for i in closing if i in self._special][:1]}

    def _render(self, messages: list[dict[str, Any]], tools: _Tools, **options: Any) -> str:
        """Render messages in the first of their shapes that the template takes.

        Raises:
            TemplateError: it takes none; this is what it said of the first.
        """
        kwargs = {**self.template_kwargs, **({"tools": list(tools)} if tools else {}), **options}
        first: TemplateError | None = None
        for shape in variants(messages):
            try:
                return render(self.tokenizer, shape, **kwargs)
            except TemplateError as error:
                first = first or error
        assert first is not None
        raise first

    def _plain(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        try:
            return plain_messages(messages)
        except ValueError as error:
            raise UserError(
                self.field, str(error), fix="send texts; the policy sees pictures of a prompt only"
            ) from error

    def _check_tools(self, tools: _Tools) -> None:
        if tools and not self.knows_tools:
            has_template = self.tokenizer.chat_template is not None
            cause = "has a chat template without tools" if has_template else "has no chat template"
            raise UserError(
                self.field,
                f"the model {cause}, so the policy would not see them",
                fix="describe the tools in a system message (ToolUse: style: tags), or use a template that shows tools",
            )

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
            raise UserError(
                self.field,
                f"the environment said {token}, which stands for a picture or a video",
                fix="let it leave this out; environments cannot show pictures",
            )
        return ids

    def _refused(self, messages: Sequence[Message], error: TemplateError) -> UserError:
        roles = ", ".join(m["role"] for m in messages)
        return UserError(
            self.field,
            f"the chat template refuses the environment's messages (roles: {roles}): {error}",
            fix="let the environment answer with role: user, or use a template that knows these roles",
        )


def _placeholders(messages: list[dict[str, Any]], tools: _Tools, calls: _Tools) -> Iterator[dict[str, Any]]:
    """Yield turns to put before messages, the best first: with calls that match results, or with a content only.

    Results without an id or a name come from environments that do not tell which call they answer.
    """
    results = list(itertools.takewhile(lambda m: m["role"] == "tool", messages))
    content: dict[str, Any] = {"role": "assistant", "content": _TURN}
    if results:
        matching = placeholder_calls(results, calls, tools, _TURN)
        turns: list[dict[str, Any]] = []
        for turn_calls in (matching, matching[-1:]):
            turns.append({"role": "assistant", "content": "", "tool_calls": turn_calls})
        names_calls = any("tool_call_id" in m or "name" in m for m in results)
        yield from ([*turns, content] if names_calls else [content, *turns])
    else:
        yield content
