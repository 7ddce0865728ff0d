"""Agents of real clients as a service: ``POST /NAME`` plays the calculator task with the client of that name.

Runs in the environment of the clients, and prints its URL. The tiny policy of the tests knows texts only, so calls of
the calculator are texts, too: "?37*46" asks for a result, and "#1702" is the answer.
"""

from __future__ import annotations

import ast
import asyncio
import json
import operator
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

warnings.filterwarnings("ignore")
LOOP = asyncio.new_event_loop()
"""For clients that share connections between calls."""
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def openai(told: Any, talk: list[Any]) -> str:
    """One turn over chat completions."""
    import openai as sdk

    with sdk.OpenAI(base_url=told["base_url"], api_key=told["api_key"]) as client:
        return str(client.chat.completions.create(model="m", messages=talk).choices[0].message.content)


def anthropic(told: Any, talk: list[Any]) -> str:
    """One turn over messages, streamed."""
    import anthropic as sdk

    with (
        sdk.Anthropic(base_url=told["anthropic_url"], api_key=told["api_key"]) as client,
        client.messages.stream(model="m", max_tokens=40, messages=talk) as events,
    ):
        return "".join(block.text for block in events.get_final_message().content if block.type == "text")


def openai_agents(told: Any, talk: list[Any]) -> str:
    """One turn over responses."""
    import agents

    agents.set_tracing_disabled(True)
    provider = agents.OpenAIProvider(base_url=told["base_url"], api_key=told["api_key"])
    settings = agents.RunConfig(model_provider=provider)
    agent = agents.Agent(name="a", model="m")
    work = asyncio.run_coroutine_threadsafe(agents.Runner.run(agent, talk, run_config=settings), LOOP)
    return str(work.result().final_output)


def play(turn: Any, told: Any) -> float:
    """The whole task; 1 for the right answer."""
    talk: list[Any] = [{"role": "user", "content": told["record"]["prompt"]}]
    for _ in range(4):
        said = turn(told, talk)
        if not said.startswith("?"):
            return float(said.rpartition("#")[2] == told["record"]["answer"])
        talk += [{"role": "assistant", "content": said}, {"role": "user", "content": f"={result(said[1:])};"}]
    return 0.0


def result(expression: str) -> str:
    """The value of sums and products of numbers; "?" for anything else."""
    try:
        return str(_value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError, KeyError, AttributeError, RecursionError):
        return "?"


def _value(node: Any) -> int:
    if isinstance(node, ast.Constant):
        return int(node.value)
    return int(OPERATORS[type(node.op)](_value(node.left), _value(node.right)))


class Handler(BaseHTTPRequestHandler):
    """One rollout per request, each in a thread of its own."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer with the reward."""
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, answer = 200, json.dumps({"reward": play(globals()[self.path[1:]], told)})
        except Exception as error:
            full = "context_length_exceeded" in str(error) or "maximum context length" in str(error)
            status, answer = (200, '{"reward": 0}') if full else (422, f"{type(error).__name__}: {error}")
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer.encode())))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Takes as many rollouts as come at once."""

    request_queue_size, daemon_threads = 512, True


if __name__ == "__main__":
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    server = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
