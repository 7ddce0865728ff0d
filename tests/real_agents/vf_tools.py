"""An environment of verifiers with a tool, for its own chat program: one call, one answer.

Runs in the environment of verifiers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class Times(vf.Toolset[vf.ToolsetConfig, vf.State]):  # type: ignore[misc]
    """A tool, behind an MCP server of its own."""

    @vf.tool
    async def multiply(self, a: int, b: int) -> str:
        """Multiply two numbers."""
        return str(a * b)


class Product(vf.Task[vf.TaskData]):  # type: ignore[misc]
    """The answer is 42."""

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        """Start the server for each rollout."""
        return [Times(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: Any) -> float:
        """The last reply has it."""
        return float("42" in trace.last_reply)


class Products(vf.Taskset[Product, vf.TasksetConfig]):  # type: ignore[misc]
    """One question."""

    def load(self) -> Iterator[Product]:
        """Ask it, with a system prompt."""
        yield Product(vf.TaskData(prompt="What is 6 times 7?", system_prompt="Use the tool."), self.config.task)


__all__ = ["Products"]


if __name__ == "__main__":
    Times.run()
