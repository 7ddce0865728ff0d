"""vLLM rollouts: servers over HTTP, or an engine in this process."""

from gspo_lightning.rollouts.vllm.engine import VLLMEngine
from gspo_lightning.rollouts.vllm.server import VLLMServer

__all__ = ["VLLMEngine", "VLLMServer"]
