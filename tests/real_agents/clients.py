"""Programs with real clients, unmodified: ``python clients.py NAME`` asks for 6*7 with a tool, and prints the answer.

Runs in the environment of the clients, which has neither torch nor this package. URL and key are in the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from typing import Any

warnings.filterwarnings("ignore")
QUESTION = "What is 6 times 7?"
PARAMETERS = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
}  # fmt: skip
FUNCTION = {"name": "multiply", "description": "Multiplies.", "parameters": PARAMETERS}


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: one number.
        b: the other.
    """
    return a * b


def openai_chat(stream: bool = False) -> str:
    """The loop that most people write, with or without a stream."""
    import openai

    client = openai.OpenAI()
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"type": "function", "function": FUNCTION}]
    while True:
        if stream:
            with client.chat.completions.stream(model="m", messages=messages, tools=tools) as events:
                said = events.get_final_completion().choices[0].message
        else:
            said = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
        messages.append(said.model_dump(exclude_none=True, exclude={"parsed"}) if stream else said)
        if not said.tool_calls:
            return str(said.content)
        for call in said.tool_calls:
            result = str(multiply(**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def openai_stream() -> str:
    """The same, streamed."""
    return openai_chat(stream=True)


def openai_responses() -> str:
    """Responses, whose items go back as they came."""
    import openai

    client = openai.OpenAI()
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        made = client.responses.create(
            model="m", input=items, tools=[{"type": "function", "strict": False, **FUNCTION}]
        )
        items += made.output
        calls = [item for item in made.output if item.type == "function_call"]
        if not calls:
            return made.output_text
        for call in calls:
            result = str(multiply(**json.loads(call.arguments)))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def anthropic_messages(stream: bool = False) -> str:
    """Blocks, which go back as they came."""
    import anthropic

    client = anthropic.Anthropic()
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"name": "multiply", "description": "Multiplies.", "input_schema": PARAMETERS}]
    while True:
        asked = {"model": "m", "max_tokens": 500, "messages": messages, "tools": tools}
        if stream:
            with client.messages.stream(**asked) as events:
                made = events.get_final_message()
        else:
            made = client.messages.create(**asked)
        messages.append({"role": "assistant", "content": made.content})
        uses = [block for block in made.content if block.type == "tool_use"]
        if not uses:
            return "".join(block.text for block in made.content if block.type == "text")
        results = [{"type": "tool_result", "tool_use_id": u.id, "content": str(multiply(**u.input))} for u in uses]
        messages.append({"role": "user", "content": results})


def anthropic_stream() -> str:
    """The same, streamed."""
    return anthropic_messages(stream=True)


def openai_agents(api: str = "responses") -> str:
    """Its default is the API of responses."""
    import agents

    agents.set_tracing_disabled(True)
    agents.set_default_openai_api(api)  # type: ignore[arg-type]
    agent = agents.Agent(name="a", instructions="Use the tool.", tools=[agents.function_tool(multiply)], model="m")
    return str(agents.Runner.run_sync(agent, QUESTION).final_output)


def openai_agents_chat() -> str:
    """The same over chat completions."""
    return openai_agents("chat_completions")


def openai_agents_mcp() -> str:
    """Its tool is that of an MCP server, in a process of its own."""
    import agents
    from agents.mcp import MCPServerStdio

    agents.set_tracing_disabled(True)
    server = {"command": sys.executable, "args": [os.path.join(os.path.dirname(__file__), "mcp_server.py")]}

    async def ask() -> str:
        async with MCPServerStdio(params=server, client_session_timeout_seconds=60) as tools:  # type: ignore[arg-type]
            agent = agents.Agent(name="a", instructions="Use the tool.", mcp_servers=[tools], model="m")
            return str((await agents.Runner.run(agent, QUESTION)).final_output)

    return asyncio.run(ask())


def langgraph() -> str:
    """A ready-made agent."""
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    graph = create_react_agent(ChatOpenAI(model="m"), [multiply])
    return str(graph.invoke({"messages": [("user", QUESTION)]})["messages"][-1].content)


def pydantic_ai() -> str:
    """An agent with a plain tool."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    agent = Agent(OpenAIChatModel("m"))
    agent.tool_plain(multiply)
    return str(agent.run_sync(QUESTION).output)


def smolagents() -> str:
    """It rewrites calls as text, and forces a tool."""
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    model = OpenAIServerModel(model_id="m", api_base=base, api_key=key)
    return str(ToolCallingAgent(tools=[tool(multiply)], model=model, max_steps=4, verbosity_level=0).run(QUESTION))


if __name__ == "__main__":
    print(json.dumps({"answer": globals()[sys.argv[1]]()}))
