"""Rollouts by vLLM servers over HTTP."""

from gspo_lightning.rollouts.vllm.server import VLLMServer

__all__ = ["VLLMServer"]
