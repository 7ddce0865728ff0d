"""Tool use: answer tool calls until the policy gives its answer."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import whole_values
from gspo_lightning.core.parsing import load_json
from gspo_lightning.core.turn import Turn
from gspo_lightning.core.types import Message, Prompt
from gspo_lightning.rewards.chat import answer_text
from gspo_lightning.rollouts.environments.environment import Environment, Messages, Step
from gspo_lightning.rollouts.environments.tools import Tool, ToolError

CallStyle = Literal["auto", "template", "tags", "line"]
"""Format of tool calls.

``template``: the chat template shows the tools and decides how calls are written. ``auto`` is ``template`` if the
template knows tools, else ``tags``.
``tags``: ``<tool_call>{"name": "calculator", "arguments": {"expression": "2*3"}}</tool_call>``, the format that Qwen
and Hermes models are trained on. ``line``, for tiny models: a turn that begins with ``?`` calls the only tool,
``?2*3``, and the result comes back as ``=6;``.
"""

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class ToolUse(Environment):
    """Tool use: a turn with calls gets their results; a turn without a call is the answer and ends the conversation.

    The environment gives no reward itself: rewards score the policy's text. A wrong call gets its error as result.

    Args:
        tools: name -> tool.
        style: how calls are written.
        instructions: system message; None writes one about the tools for ``tags``, and none for ``template``.
        wrong_call: the reply to a wrong call; None explains the error.
        max_calls: maximum number of calls answered per turn; further ones are ignored.

    >>> from gspo_lightning.rollouts.environments.tools import Calculator
    >>> box = ToolUse({"calculator": Calculator()}, style="line")
    >>> asyncio.run(box.step("?37*46")), asyncio.run(box.step("#1702"))
    (([{'role': 'tool', 'content': '=1702;'}], 0.0, False), ([], 0.0, True))
    """

    def __init__(
        self,
        tools: dict[str, Tool],
        style: CallStyle = "auto",
        instructions: str | None = None,
        wrong_call: str | None = None,
        max_calls: int = 4,
    ) -> None:
        if not tools:
            raise UserError("ToolUse.tools", "is empty", fix="name at least one: tools: {calculator: Calculator}")
        if style == "line" and len(tools) > 1:
            raise UserError("ToolUse.tools", f"has {len(tools)} tools, but style: line calls the only one")
        if style == "line" and not all(tool.takes_text for tool in tools.values()):
            raise UserError("ToolUse.tools", "has a tool with several arguments, but style: line writes one text")
        if max_calls < 1:
            raise UserError("ToolUse.max_calls", f"is {max_calls}; it must be at least 1")
        self.tools = tools
        self.style = style
        self.wrong_call = wrong_call
        self.max_calls = max_calls
        self.max_concurrent = min(tool.max_concurrent for tool in tools.values())
        self.schemas = [tool.schema(name) for name, tool in tools.items()]
        self._given = instructions or ""
        self.instructions = self._given
        if instructions is None and style != "line":
            self.instructions = _describe(tools)
        self._by_template = style == "template"

    async def reset(self, prompt: Prompt) -> Messages:
        """Tell the policy which tools it has."""
        instructions = self._given if self._by_template else self.instructions
        if not instructions:
            return []
        messages = prompt.messages or ({"role": "user", "content": prompt.text},)
        if messages[0]["role"] == "system":
            return [
                {"role": "system", "content": f"{instructions}\n\n{answer_text(messages[0]['content'])}"},
                *messages[1:],
            ]
        return [{"role": "system", "content": instructions}, *messages]

    def offer(self, template_knows_tools: bool) -> Sequence[Mapping[str, Any]]:
        """Return the tools if the chat template is to show them.

        Raises:
            UserError: it does not know tools, and ``style: template`` wants it to.
        """
        if self.style == "template" and not template_knows_tools:
            fix = "use style: tags, which describes the tools in a system message"
            problem = "is template, but the chat template shows no tools, or has a format of calls that is not read"
            raise UserError("ToolUse.style", problem, fix=fix)
        self._by_template = self.style == "template" or (self.style == "auto" and template_knows_tools)
        return self.schemas if self._by_template else ()

    async def step(self, completion: str) -> Step:
        """Run all calls of the turn concurrently and return their results."""
        if self.style == "line":
            if not completion.startswith("?"):
                return [], 0.0, True
            name, tool = next(iter(self.tools.items()))
            result = await self._call(name, {tool.argument: completion[1:].strip()})
            return [{"role": "tool", "content": f"={result};"}], 0.0, False
        calls = _TAGGED.findall(completion)[: self.max_calls]
        results = await asyncio.gather(*(self._tagged(text) for text in calls))
        messages: list[Message] = [{"role": "tool", "content": result} for result in results]
        return messages, 0.0, not calls

    async def act(self, turn: Turn) -> Step:
        """Run all calls of a turn concurrently and return their results."""
        if turn.malformed:
            return [{"role": "tool", "content": self._wrong("a call that cannot be read")}], 0.0, False
        calls = turn.calls[: self.max_calls]
        results = await asyncio.gather(*(self._call(call.name, call.arguments) for call in calls))
        messages: list[Message] = [
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result}
            for call, result in zip(calls, results, strict=True)
        ]
        return messages, 0.0, not calls

    @override
    def release(self) -> None:
        for tool in self.tools.values():
            tool.close()

    def fresh(self) -> ToolUse:
        """Return a copy that shares the tools, which keep no state between calls."""
        return copy.copy(self)

    async def _tagged(self, text: str) -> str:
        try:
            call: Any = load_json(text)
            name = call["name"]
            arguments = dict(call["arguments"].items())
            tool = self.tools[name]
            if tool.takes_text and tool.argument not in arguments:
                (_,) = arguments
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return self._wrong(f"not a call of {' or '.join(self.tools)}: {type(error).__name__}")
        return await self._call(name, arguments)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name not in self.tools:
            return self._wrong(f"not a call of {' or '.join(self.tools)}")
        try:
            return await self.tools[name].answer(whole_values(arguments))
        except RecursionError:
            return self._wrong("its arguments are nested too deeply")
        except ToolError as error:
            return self._wrong(str(error))

    def _wrong(self, problem: str) -> str:
        return f"error: {problem}" if self.wrong_call is None else self.wrong_call


def _describe(tools: dict[str, Tool]) -> str:
    lines = []
    for name, tool in tools.items():
        function = tool.schema(name)["function"]
        arguments = ", ".join(function["parameters"].get("properties", ()))
        lines.append(f"- {name}({arguments}): {function['description']}")
    name, tool = next(iter(tools.items()))
    call = {"name": name, "arguments": dict.fromkeys(tool.parameters.get("properties", ()), "...")}
    example = json.dumps(call, ensure_ascii=False)
    return "\n".join(
        ["You may call these tools:", *lines, f"To call one, write <tool_call>{example}</tool_call> and end your turn."]
    )
