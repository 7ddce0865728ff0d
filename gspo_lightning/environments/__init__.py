"""Environments: multi-turn conversations and tools."""

from gspo_lightning.environments.environment import Environment, Messages, Step
from gspo_lightning.environments.guess import GuessNumber
from gspo_lightning.environments.mcp_tool import McpTool
from gspo_lightning.environments.open_env import OpenEnvEnvironment
from gspo_lightning.environments.tool_use import ToolUse
from gspo_lightning.environments.tools import Calculator, PythonTool, Tool
from gspo_lightning.types import Message

__all__ = [
    "Calculator", "Environment", "GuessNumber", "McpTool", "Message", "Messages", "OpenEnvEnvironment", "PythonTool",
    "Step", "Tool", "ToolUse",
]  # fmt: skip
