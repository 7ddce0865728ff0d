"""An MCP server with one tool, over its standard input and output, for the client ``openai_agents_mcp``."""

from __future__ import annotations


def multiply(a: int, b: int) -> str:
    """Multiply two numbers."""
    return f"{a * b}, says the server"


if __name__ == "__main__":
    from mcp.server import MCPServer

    server = MCPServer("calculator")
    server.tool()(multiply)
    server.run(transport="stdio")
