"""What is random in train mode is switched off, and nothing else: what a model computes in evaluation stays."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from tests.policy.test_policy import ROWS, pack
from tests.support.exact_families import exact_model
from tests.support.model_families import build_model

CHECKPOINTING = pytest.mark.parametrize("checkpointing", [False, True])


def policy_of(model: PreTrainedModel, checkpointing: bool = False) -> Policy:
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Policy(model, character_tokenizer()).train()


def reference(model: PreTrainedModel, prompt: list[int], response: list[int]) -> Tensor:
    """Of one row alone, by a model that nobody has touched."""
    ids = torch.tensor([prompt + response])
    logits = model(input_ids=ids, use_cache=False).logits[0] / 0.7
    return logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0]


@CHECKPOINTING
@pytest.mark.parametrize("family", ["phimoe", "opt"])
def test_values_and_gradients_in_training_are_those_of_the_model_as_it_was_loaded(
    family: str, checkpointing: bool
) -> None:
    model = exact_model(family)
    loaded = copy.deepcopy(model).eval()
    policy = policy_of(model, checkpointing)
    logprobs, _ = policy(pack(ROWS), 0.7)
    expected = [reference(loaded, *row) for row in ROWS]
    for i, row in enumerate(expected):
        torch.testing.assert_close(logprobs[i, : len(row)], row, rtol=0, atol=1e-5)
    logprobs.sum().backward()
    torch.stack([row.sum() for row in expected]).sum().backward()
    theirs = dict(loaded.named_parameters())
    for name, ours in policy.model.named_parameters():
        torch.testing.assert_close(ours.grad, theirs[name].grad, rtol=1e-3, atol=1e-4, msg=name)
    if family == "phimoe":
        routers = [p for name, p in policy.model.named_parameters() if "router" in name]
        assert len(routers) == 2
        assert all(float(p.grad.abs().max()) > 1e-4 for p in routers if p.grad is not None)
        assert all(p.grad is not None for p in routers)


@CHECKPOINTING
def test_a_router_that_draws_experts_in_train_mode_gives_ratios_of_exactly_1(checkpointing: bool) -> None:
    policy = policy_of(exact_model("phimoe"), checkpointing)
    for twin in (policy, policy.frozen_copy().train()):
        found = [twin(pack(ROWS), 0.7)[0].detach() for _ in range(3)]
        assert all(torch.equal(found[0], other) for other in found[1:])
    assert policy.training
    assert torch.equal(policy.frozen_copy()(pack(ROWS), 0.7)[0], policy(pack(ROWS), 0.7)[0])


def test_a_threshold_that_is_called_noise_is_left_alone_and_exported() -> None:
    policy = policy_of(exact_model("phimoe"))
    assert policy.model.config.router_jitter_noise == 0.2
    assert {m.router_jitter_noise for m in policy.model.modules() if hasattr(m, "router_jitter_noise")} == {0.2}
    assert {m.input_jitter_noise for m in policy.model.modules() if hasattr(m, "input_jitter_noise")} == {0.0}


def test_the_model_keeps_its_mode_and_random_numbers_go_on_as_before() -> None:
    model = exact_model("phimoe").train()
    model.model.layers[0].eval()
    modes = [m.training for m in model.modules()]
    state = torch.get_rng_state()
    Policy(model, character_tokenizer())
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes


class Noisy(LlamaForCausalLM):
    """Random in every mode, and no attribute says so."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits = out.logits + 0.1 * torch.randn_like(out.logits)
        return out


class Other(LlamaForCausalLM):
    """Computes something else wherever activations are recomputed."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        if any(m.training for m in self.modules()):
            out.logits = out.logits * 1.01
        return out


@pytest.mark.parametrize(("kind", "checkpointing"), [(Noisy, False), (Other, True)])
def test_a_model_that_stays_another_one_in_training_is_refused(
    kind: type[LlamaForCausalLM], checkpointing: bool
) -> None:
    with pytest.raises(UserError, match=f"{kind.__name__} gives log-probabilities in train mode that are 0"):
        policy_of(kind(build_model("llama").config), checkpointing)


class Broken(LlamaForCausalLM):
    """As a family that this package has never seen."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("cache_of_its_own\nand more")


def test_a_model_that_cannot_be_run_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"Broken cannot be run on a few tokens: 'cache_of_its_own") as caught:
        Policy(Broken(build_model("llama").config), character_tokenizer())
    assert len(str(caught.value).splitlines()) == 2


def test_a_plan_runs_no_forward_pass() -> None:
    with torch.device("meta"):
        model = Broken(build_model("llama").config)
    model.config.attention_dropout = 0.5
    policy = Policy(model, character_tokenizer())
    assert policy.model.config.attention_dropout == 0.0


def test_an_export_has_the_rates_that_were_loaded(tmp_path: Path) -> None:
    model = build_model("llama")
    model.config.attention_dropout = 0.25
    policy = policy_of(model)
    for folder, saved in ((tmp_path / "model", policy), (tmp_path / "copy", policy.frozen_copy())):
        saved.save_pretrained(folder)
        assert saved.model.config.attention_dropout == 0.0
        assert json.loads((folder / "config.json").read_text())["attention_dropout"] == 0.25
    again = load_policy(ModelSettings(str(tmp_path / "model")))
    assert again.model.config.attention_dropout == 0.0
    with torch.no_grad():
        assert torch.equal(again(pack(ROWS))[0], policy(pack(ROWS))[0])
