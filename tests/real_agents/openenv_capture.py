"""OpenEnv's capture in front of an endpoint: a loop with a tool talks through it, and its count of roots is printed.

Runs in the environment of OpenEnv. URL and key of the endpoint are in the environment.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import openai
from openenv.core.harness.capture import CaptureServer, validate_llm

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "multiply", "description": "x", "parameters": PARAMETERS}}]


def main() -> dict[str, Any]:
    """Talk until the policy calls no tool."""
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    report = validate_llm(os.environ["PROBE_URL"], "policy", api_key=os.environ["PROBE_KEY"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = CaptureServer(llm_url=url, model="policy", api_key=key, port=port, capture_level=report.capture_level)
    server.start()
    session = server.registry.create("one")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=session.session_id)
    messages: list[Any] = [{"role": "user", "content": "What is 6 times 7?"}]
    while True:
        said = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message
        messages.append(said)
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            result = str(json.loads(call.function.arguments).get("a"))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    found = {"level": report.capture_level, "stats": session.graph.stats(), "answer": said.content}
    server.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
