"""What an engine in this process is asked for, and in which order: a recording stands in for vLLM."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import VLLMEngine
from gspo_lightning.rollouts.vllm import in_process
from gspo_lightning.rollouts.vllm.in_process import InProcessEngine

Calls = list[tuple[Any, ...]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What ``vllm.LLM`` was asked for."""
    asked: Calls = []

    class LLM:
        def __init__(self, model: str, **arguments: Any) -> None:
            asked.append(("start", arguments, {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK")}))
            core = SimpleNamespace(shutdown=lambda: asked.append(("end",)))
            self.llm_engine = SimpleNamespace(engine_core=core, add_lora=self._add_lora)

        def _add_lora(self, given: Any) -> None:
            asked.append(("adapters", given, load_file(Path(given.path) / "adapter_model.safetensors")))

        def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
            weights = kwargs.get("weights_iterator")
            read = dict(weights) if weights is not None else load_file(f"{kwargs['weights_path']}/model.safetensors")
            asked.append((method, *kwargs, read))

        def sleep(self, level: int) -> None:
            asked.append(("sleep", level))

        def wake_up(self, tags: list[str]) -> None:
            asked.append(("wake", *tags))

        def reset_prefix_cache(self) -> bool:
            asked.append(("reset",))
            return True

    def lora_request(name: str, number: int, path: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, number=number, path=path)

    fake: Any = ModuleType("vllm")
    fake.LLM, fake.SamplingParams = LLM, type("SamplingParams", (), {})
    fake.lora = SimpleNamespace(request=SimpleNamespace(LoRARequest=lora_request))
    monkeypatch.setitem(sys.modules, "vllm", fake)
    return asked


def names(calls: Calls) -> list[Any]:
    return [call[:2] if call[0] in ("sleep", "wake") else call[0] for call in calls]


def test_an_engine_that_sleeps_discards_its_weights_and_gets_new_ones_before_its_cache(
    calls: Calls, policy: Policy
) -> None:
    engine = InProcessEngine(policy, {"enable_sleep_mode": True})
    engine.load(policy)
    assert names(calls) == ["start", "reload_weights", "reset"]
    engine.sleep()
    engine.sleep()
    engine.load(policy)
    engine.load(policy)
    assert names(calls)[3:] == [
        ("sleep", 2), ("wake", "weights"), "reload_weights", ("wake", "kv_cache"), "reset", "reload_weights", "reset",
    ]  # fmt: skip
    engine.close()
    assert names(calls)[-1] == "end"


def test_an_engine_that_was_not_started_for_it_does_not_sleep(calls: Calls, policy: Policy) -> None:
    engine = InProcessEngine(policy, {})
    engine.load(policy)
    engine.sleep()
    engine.load(policy)
    assert names(calls) == ["start", "reload_weights", "reset", "reload_weights", "reset"]
    engine.close()


def test_engines_on_a_gpu_sleep_unless_they_are_told_not_to(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> None:
    assert "enable_sleep_mode" not in VLLMEngine()._arguments(policy, 8)
    monkeypatch.setattr(Policy, "device", torch.device("cuda", 1))
    assert VLLMEngine()._arguments(policy, 8)["enable_sleep_mode"] is True
    assert VLLMEngine(options={"enable_sleep_mode": False})._arguments(policy, 8)["enable_sleep_mode"] is False


def test_the_same_weights_are_copied_again_after_a_rest(
    calls: Calls, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VLLMEngine, "_weight_sync", lambda self, given: self._engine.load(given))
    with closing(VLLMEngine()) as source:
        source.sleep()  # nothing has started
        source._engine = InProcessEngine(policy, {"enable_sleep_mode": True})
        source.sync_weights(policy, 3)
        source.sync_weights(policy, 3)
        source.sleep()
        source.sync_weights(policy, 3)
    assert names(calls) == [
        "start", "reload_weights", "reset", ("sleep", 2), ("wake", "weights"), "reload_weights", ("wake", "kv_cache"),
        "reset", "end",
    ]  # fmt: skip


def test_an_engine_that_stays_awake_keeps_its_weights(
    calls: Calls, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VLLMEngine, "_weight_sync", lambda self, given: self._engine.load(given))
    with closing(VLLMEngine()) as source:
        source._engine = InProcessEngine(policy, {})
        source.sync_weights(policy, 3)
        source.sleep()
        source.sync_weights(policy, 3)
    assert names(calls) == ["start", "reload_weights", "reset", "end"]


def test_adapters_go_alone_and_the_frozen_weights_stay(calls: Calls, policy: Policy) -> None:
    frozen = {name: value.clone() for name, value in policy.model.state_dict().items()}
    add_adapters(policy.model, LoRA(r=9), seed=0)
    engine = InProcessEngine(policy, {"enable_sleep_mode": True, "enable_lora": True})
    engine.load(policy)
    engine.sleep()
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.5)
    engine.load(policy)
    assert names(calls) == [
        "start", "reload_weights", "adapters", "reset",
        ("sleep", 1), ("wake", "weights"), "adapters", ("wake", "kv_cache"), "reset",
    ]  # fmt: skip
    assert calls[0][1]["max_lora_rank"] == 16
    assert all(torch.equal(value, frozen[name]) for name, value in calls[1][-1].items())
    first, second = (call for call in calls if call[0] == "adapters")
    assert first[1].name != second[1].name
    assert second[2]["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"].unique().tolist() == [0.5]
    assert not Path(first[1].path).exists()
    engine.close()
    assert not Path(second[1].path).exists()


def test_workers_in_processes_of_their_own_read_weights_from_files(calls: Calls, policy: Policy) -> None:
    engine = InProcessEngine(policy, {"tensor_parallel_size": 2})
    engine.load(policy)
    assert calls[0][1]["distributed_executor_backend"] == "mp"
    assert calls[0][1]["load_format"] == "auto"
    assert calls[1][:2] == ("reload_weights", "weights_path")
    assert {name: tuple(value.shape) for name, value in calls[1][-1].items()} == {
        name: tuple(value.shape) for name, value in policy.model.state_dict().items()
    }
    engine.close()


def test_each_rank_starts_an_engine_on_its_own_device(
    calls: Calls, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "rank_and_world", lambda: (1, 2))
    monkeypatch.setattr(Policy, "device", torch.device("cuda", 1))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "7")
    engine = InProcessEngine(policy, {})
    assert calls[0][1]["distributed_executor_backend"] == "external_launcher"
    assert calls[0][2] == {"RANK": "0", "LOCAL_RANK": "1"}
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("1", "7")
    engine.close()
