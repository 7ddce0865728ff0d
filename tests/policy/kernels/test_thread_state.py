"""What a thread of PyTorch brings along: its current device, and autocast."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.kernels.thread_state import on_device
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.decode_batch import CARRIERS


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The current CUDA devices of a thread, the newest last."""
    devices = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: devices[-1])
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    return devices


def test_a_device_is_current_until_the_block_ends(current: list[int]) -> None:
    with on_device(torch.device("cuda", 1)):
        assert current == [0, 1]
    assert current == [0, 1, 0]


def test_also_by_an_error(current: list[int]) -> None:
    with pytest.raises(RuntimeError, match="lost"), on_device(torch.device("cuda", 1)):
        raise RuntimeError("lost")
    assert current == [0, 1, 0]


def test_a_cpu_and_a_device_without_a_number_are_left(current: list[int]) -> None:
    for name in ("cpu", "cuda", "meta"):
        with on_device(torch.device(name)):
            pass
    assert current == [0]


def test_a_number_is_waited_for_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the current one, where the event would be over before the number has been copied."""
    event = MagicMock()
    monkeypatch.setattr(torch, "empty", MagicMock())
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    value: Any = SimpleNamespace(shape=(), dtype=torch.int64, device=torch.device("cuda", 1))
    CARRIERS["cuda"](value)
    event.record.assert_called_once_with("stream of cuda:1")


def test_adapters_are_merged_in_the_precision_of_their_factors(policy: Policy) -> None:
    """Also within a rollout of bf16-mixed, where weights are handed to servers and engines."""
    add_adapters(policy.model, LoRA(r=2), seed=0)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.linspace(-1.0, 1.0, weight.numel()).view_as(weight))
    exact = policy.merged_model().state_dict()
    with torch.autocast("cpu", torch.bfloat16):
        merged = policy.merged_model().state_dict()
    assert all(torch.equal(merged[name], exact[name]) for name in exact)
