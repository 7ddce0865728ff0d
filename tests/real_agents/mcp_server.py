"""An MCP server, over its standard input and output, or over HTTP at the port that is its argument."""

from __future__ import annotations

import ast
import operator
import sys
from typing import Any

OPERATORS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def multiply(a: int, b: int) -> str:
    """Multiply two numbers."""
    return f"{a * b}, says the server"


def calculate(expression: str) -> str:
    """Compute sums and products."""
    return str(_value(ast.parse(expression, mode="eval").body))


def _value(node: Any) -> int:
    if isinstance(node, ast.Constant):
        return int(node.value)
    return int(OPERATORS[type(node.op)](_value(node.left), _value(node.right)))


if __name__ == "__main__":
    from mcp.server import MCPServer

    server = MCPServer("calculator", log_level="ERROR")
    server.tool()(multiply)
    server.tool()(calculate)
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", port=int(sys.argv[1]))
    server.run(transport="stdio")
