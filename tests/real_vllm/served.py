"""A real vLLM server that tests share: what it costs is its start."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.policy import ModelSettings, Policy, load_policy
from gspo_lightning.rollouts.vllm import guard
from gspo_lightning.rollouts.vllm.process import LocalServer, command, free_port
from gspo_lightning.rollouts.vllm.server import CPU_DEFAULTS, CPU_ENVIRONMENT, DEFAULTS

VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: make test-vllm"),
]
OVERRIDES = {"head_dim": 32}
"""Of the tiny model: vLLM's attention on a CPU takes no smaller heads."""
HEADS = f"--model.config_overrides={json.dumps(OVERRIDES)}"
QUICK_START: dict[str, Any] = {
    "options": {"distributed_executor_backend": "uni"},
    "environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
}
"""One process fewer imports vLLM: a third of a start."""
BLOCK = 32
"""Tokens of a block of the key-value cache; only whole ones are found again by the prefix cache."""


def tiny_policy() -> Policy:
    """The quickstart's model, untaught."""
    return load_policy(ModelSettings(config_overrides=OVERRIDES)).eval()


def start_server(folder: Path) -> tuple[str, LocalServer]:
    """A server with other weights than anybody's, on loopback; returns its URL when it answers."""
    tiny_policy().save_pretrained(folder)
    port = free_port("127.0.0.1")
    options = {**DEFAULTS, **CPU_DEFAULTS, "dtype": "float32", "max_model_len": 128, "block_size": BLOCK}
    line = command(sys.executable, folder, "127.0.0.1", port, options | QUICK_START["options"])
    environment = {"VLLM_SERVER_DEV_MODE": "1", **CPU_ENVIRONMENT, **QUICK_START["environment"]}
    process, url = LocalServer(line, environment), f"http://127.0.0.1:{port}"
    while not _answers(url):
        assert process.running, process.tail()
        time.sleep(0.2)
    return url, process


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def processes_of(server: LocalServer) -> list[int]:
    """The server and its children, without their guard."""
    return guard._descendants(server.process.pid)
