"""Agents: programs that speak to the policy through the gateway."""

from gspo_lightning.rollouts.agents.agent import Agent
from gspo_lightning.rollouts.agents.agent_rollouts import AgentRollouts
from gspo_lightning.rollouts.agents.command_agent import CommandAgent
from gspo_lightning.rollouts.agents.http_agent import HttpAgent
from gspo_lightning.rollouts.agents.python_agent import PythonAgent
from gspo_lightning.rollouts.agents.verifiers_agent import VerifiersAgent

__all__ = ["Agent", "AgentRollouts", "CommandAgent", "HttpAgent", "PythonAgent", "VerifiersAgent"]
