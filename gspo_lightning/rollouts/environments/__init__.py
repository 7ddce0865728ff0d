"""Environments: multi-turn conversations and tools."""

from gspo_lightning.core.types import Message
from gspo_lightning.rollouts.environments.environment import Environment, Messages, Step
from gspo_lightning.rollouts.environments.guess import GuessNumber
from gspo_lightning.rollouts.environments.mcp_tool import McpTool
from gspo_lightning.rollouts.environments.open_env import OpenEnvEnvironment
from gspo_lightning.rollouts.environments.tool_use import ToolUse
from gspo_lightning.rollouts.environments.tools import Calculator, PythonTool, Tool

__all__ = [
    "Calculator", "Environment", "GuessNumber", "McpTool", "Message", "Messages", "OpenEnvEnvironment", "PythonTool",
    "Step", "Tool", "ToolUse",
]  # fmt: skip
