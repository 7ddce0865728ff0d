"""Tool use: answer tool calls until the policy gives its answer."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from typing import Any, Literal

from gspo_lightning.environments.environment import Environment, Messages, Step, result_of
from gspo_lightning.environments.tools import Tool, ToolError
from gspo_lightning.errors import UserError
from gspo_lightning.parsing import load_json
from gspo_lightning.types import Message, Prompt

CallStyle = Literal["tags", "line"]
"""Format of tool calls.

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
        instructions: system message that tells the policy about its tools; None writes one for ``tags`` (leave it empty
            if the chat template gets ``tools``, from each record or through ``data.chat_template_kwargs``).
        wrong_call: the reply to a wrong call; None explains the error.
        max_calls: maximum number of calls answered per turn; further ones are ignored.

    >>> from gspo_lightning.environments.tools import Calculator
    >>> box = ToolUse({"calculator": Calculator()}, style="line")
    >>> asyncio.run(box.step("?37*46")), asyncio.run(box.step("#1702"))
    (([{'role': 'tool', 'content': '=1702;'}], 0.0, False), ([], 0.0, True))
    """

    def __init__(
        self,
        tools: dict[str, Tool],
        style: CallStyle = "tags",
        instructions: str | None = None,
        wrong_call: str | None = None,
        max_calls: int = 4,
    ) -> None:
        if not tools:
            raise UserError("ToolUse.tools", "is empty", fix="name at least one: tools: {calculator: Calculator}")
        if style == "line" and len(tools) > 1:
            raise UserError("ToolUse.tools", f"has {len(tools)} tools, but style: line calls the only one")
        if max_calls < 1:
            raise UserError("ToolUse.max_calls", f"is {max_calls}; it must be at least 1")
        self.tools, self.style, self.wrong_call, self.max_calls = tools, style, wrong_call, max_calls
        self.max_concurrent = min(tool.max_concurrent for tool in tools.values())
        self.instructions = instructions if instructions is not None else _describe(tools) if style == "tags" else ""

    async def reset(self, prompt: Prompt) -> Messages:
        """Tell the policy which tools it has."""
        if not self.instructions:
            return []
        return [{"role": "system", "content": self.instructions}, {"role": "user", "content": prompt.text}]

    async def step(self, completion: str) -> Step:
        """Run all calls of the turn concurrently and return their results."""
        if self.style == "line":
            if not completion.startswith("?"):
                return [], 0.0, True
            name = next(iter(self.tools))
            result = await self._call(name, completion[1:].strip())
            return [{"role": "tool", "content": f"={result};"}], 0.0, False
        calls = _TAGGED.findall(completion)[: self.max_calls]
        results = await asyncio.gather(*(self._tagged(text) for text in calls))
        messages: list[Message] = [{"role": "tool", "content": result} for result in results]
        return messages, 0.0, not calls

    def fresh(self) -> ToolUse:
        """Return a copy that shares the tools, which keep no state between calls."""
        return copy.copy(self)

    async def _tagged(self, text: str) -> str:
        try:
            call: Any = load_json(text)
            name, arguments = call["name"], call["arguments"]
            tool = self.tools[name]
            (value,) = arguments.values() if tool.argument not in arguments else (arguments[tool.argument],)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return self._wrong(f"not a call of {' or '.join(self.tools)}: {type(error).__name__}")
        return await self._call(name, value if isinstance(value, str) else json.dumps(value))

    async def _call(self, name: str, text: str) -> str:
        try:
            return str(await result_of(self.tools[name].call, text))
        except ToolError as error:
            return self._wrong(str(error))

    def _wrong(self, what: str) -> str:
        return f"error: {what}" if self.wrong_call is None else self.wrong_call


def _describe(tools: dict[str, Tool]) -> str:
    lines = [f"- {name}({tool.argument}): {tool.description}" for name, tool in tools.items()]
    name, tool = next(iter(tools.items()))
    example = json.dumps({"name": name, "arguments": {tool.argument: "..."}})
    return "\n".join(
        ["You may call these tools:", *lines, f"To call one, write <tool_call>{example}</tool_call> and end your turn."]
    )
