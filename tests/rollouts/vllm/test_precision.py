"""An engine in this process computes in its own precision, whatever the trainer's autocast says of the thread."""

from __future__ import annotations

import importlib.machinery
import sys
from collections import deque
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from gspo_lightning.policy.strategies.gathering import Gathering
from tests.runs import runs

Seen = list[tuple[str, bool]]
"""What the engine was asked for, and whether autocast was on then."""


class Core:
    """``LLM.llm_engine``: draws whole responses, one request a step."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._waiting = engine, deque[tuple[str, Any, Any]]()
        self.engine_core = SimpleNamespace(shutdown=lambda: None)

    def add_request(self, name: str, prompt: Any, how: Any, lora_request: Any) -> None:
        """Queue it."""
        self._engine.note("request")
        self._waiting.append((name, prompt["prompt_token_ids"], how))

    def step(self) -> list[Any]:
        """One whole response."""
        self._engine.note("step")
        name, prompt, how = self._waiting.popleft()
        ids, logprobs = self._engine.drawn(list(prompt), how)
        reason = "stop" if ids[-1] in how.stop_token_ids else "length"
        given = [{token: SimpleNamespace(logprob=value)} for token, value in zip(ids, logprobs, strict=True)]
        output = SimpleNamespace(token_ids=ids, logprobs=given, finish_reason=reason)
        return [SimpleNamespace(request_id=name, prompt_token_ids=prompt, outputs=[output], finished=True)]

    def abort_request(self, names: list[str]) -> None:
        """Nothing is under way."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """A float32 model stands in for vLLM, and notes what was on when it was asked."""
    found: Seen = []

    class LLM:
        def __init__(self, model: str, **_: Any) -> None:
            self.note("start")
            self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(Path(model))).float().eval()
            self.llm_engine = Core(self)

        def note(self, what: str) -> None:
            found.append((what, torch.is_autocast_enabled("cpu")))

        def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
            self.note(method)
            missing = self.model.load_state_dict(dict(kwargs["weights_iterator"]), strict=False).missing_keys
            assert set(missing) <= {"lm_head.weight"}

        def reset_prefix_cache(self) -> bool:
            self.note("reset")
            return True

        @torch.no_grad()
        def drawn(self, prompt: list[int], how: Any) -> tuple[list[int], list[float]]:
            ids: list[int] = []
            logprobs: list[float] = []
            while len(ids) < how.max_tokens and (not ids or ids[-1] not in how.stop_token_ids):
                logits: Tensor = self.model(torch.tensor([prompt + ids])).logits[0, -1]
                assert logits.dtype == torch.float32
                known = (logits / how.temperature).log_softmax(-1)
                ids.append(int(torch.multinomial(known.exp(), 1)))
                logprobs.append(float(known[ids[-1]]))
            return ids, logprobs

    fake: Any = ModuleType("vllm")
    fake.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    fake.LLM, fake.SamplingParams = LLM, SimpleNamespace
    fake.sampling_params = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=1, DELTA=2))
    monkeypatch.setitem(sys.modules, "vllm", fake)
    return found


@pytest.mark.thorough
def test_a_run_in_bf16_mixed_leaves_the_engine_its_precision(tmp_path: Path, seen: Seen) -> None:
    mixed = ["--trainer.precision=bf16-mixed", "--data.rollouts=VLLMEngine", "--data.rollouts.dtype=float32"]
    runs.fit(tmp_path, *runs.UNTAUGHT, *mixed, "--data.val=null", "--trainer.num_sanity_val_steps=0")
    assert {what for what, _ in seen} == {"start", "reload_weights", "reset", "request", "step"}
    assert [what for what, autocast in seen if autocast] == []


@pytest.mark.thorough
def test_weights_gathered_for_an_engine_are_freed_before_it_samples(
    tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear = Gathering.clear

    def cleared(self: Gathering) -> None:
        clear(self)
        devices = {p.device.type for p in self.twin.parameters()}
        seen.append((f"gathered on {devices}", False))

    monkeypatch.setattr(Gathering, "clear", cleared)
    options = ["--data.rollouts=VLLMEngine", "--data.val=null", "--trainer.num_sanity_val_steps=0"]
    runs.fit(tmp_path, *runs.UNTAUGHT, *options, "--config=configs/fsdp2.yaml", "--trainer.devices=1")
    said = [what for what, _ in seen]
    freed = said.index("gathered on {'meta'}")
    assert said[:freed].count("step") == 1, "the probe alone: weights are there until it has compared them"
    assert "step" in said[freed:]
