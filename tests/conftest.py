"""Shared by all tests: one thread, no network, a tiny policy and a few prompts."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before huggingface_hub is imported: a test never waits for the network
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of child processes, too: their threads would wait for each other
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from gspo_lightning.policy import Policy
from gspo_lightning.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.types import Prompt

torch.set_num_threads(1)

RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")


@pytest.fixture(autouse=True)
def no_rendezvous_of_an_earlier_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning leaves them behind in the environment; ranks that a test starts would want the same port."""
    for name in RENDEZVOUS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return character_tokenizer()


@pytest.fixture
def policy(tokenizer: PreTrainedTokenizerFast) -> Policy:
    """A fresh, untrained ``tiny-qwen3`` in eval mode."""
    return Policy(build_tiny_model("tiny-qwen3", seed=0), tokenizer).eval()


@pytest.fixture
def prompts(tokenizer: PreTrainedTokenizerFast) -> list[Prompt]:
    """Four prompts of different lengths, with ids that are not their positions."""
    texts = ["7+5*3-4:", "1:", "9-9:", "2*2*2*2*2:"]
    return [Prompt(10 + 3 * i, text, tuple(tokenizer(text)["input_ids"]), {}) for i, text in enumerate(texts)]
