"""Models whose tokens or experts cannot be dealt to ranks are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import routers_of
from gspo_lightning.policy.strategies import FSDP2Strategy
from gspo_lightning.policy.strategies.checks import check_context, check_experts
from gspo_lightning.policy.tiny import character_tokenizer
from tests.support.exact_families import exact_model
from tests.support.model_families import WINDOW, build_policy


def chosen(policy: Policy, layout: str = "auto", longest: int = 24) -> Policy:
    choose_layout(policy, layout, longest)  # type: ignore[arg-type]
    return policy


def tiny(name: str = "tiny-qwen3") -> Policy:
    return load_policy(ModelSettings(name, seed=0))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_heads_of_a_dense_model_need_not_divide(size: int) -> None:
    check_context(chosen(tiny()), size)


def test_every_rank_needs_a_head() -> None:
    with pytest.raises(UserError, match="is 5, but Qwen3ForCausalLM has 4 query heads, of which each rank needs one"):
        check_context(chosen(tiny()), 5)


@pytest.mark.parametrize("family", ["lfm2", "falcon_h1", "jamba", "qwen3_next"])
def test_states_are_refused(family: str) -> None:
    policy = chosen(Policy(exact_model(family), character_tokenizer()).train())
    check_context(policy, 1)
    with pytest.raises(UserError, match=f"{type(policy.model).__name__} has padded rows, because of "):
        check_context(policy, 2)


def test_windows_shorter_than_rows_are_refused() -> None:
    with pytest.raises(UserError, match=f"because of a sliding window of {WINDOW} tokens and rows of up to 24"):
        check_context(chosen(build_policy("gemma2")), 2)


def test_padded_rows_are_refused() -> None:
    with pytest.raises(UserError, match=r"padded rows, because of model\.layout: padded, and only packed ones"):
        check_context(chosen(tiny(), "padded").frozen_copy(), 2)


def test_a_mixture_is_cut_unless_its_routers_are_measured() -> None:
    policy = chosen(tiny("tiny-qwen3-moe"))
    check_context(policy, 2)
    policy.routing = routers_of(policy.backbone, "off", None, 0.0)
    with pytest.raises(UserError, match=r"Qwen3MoeForCausalLM has routers that are m.*\n.*router_metrics: false"):
        check_context(policy, 2)


def test_pictures_are_refused() -> None:
    policy = tiny("tiny-qwen3-vl")
    with pytest.raises(UserError, match="Qwen3VLForConditionalGeneration reads pictures"):
        check_context(policy, 2)


def test_experts_are_dealt_whole() -> None:
    mixture = tiny("tiny-qwen3-moe")
    check_experts(mixture, 4)
    check_experts(tiny(), 3)  # none, such as a dense reference
    with pytest.raises(UserError, match=r"3 ranks cannot have equal parts of the 16 experts of .*mlp\.experts"):
        check_experts(mixture, 3)
    check_experts(load_policy(ModelSettings("tiny-qwen3-moe", seed=0, lora=LoRA(r=2))), 2)  # which experts have none of


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"replicas": 2}, "replicas"),
        ({"context": 2}, "context"),
        ({"cpu_offload": True}, "cpu_offload"),
        ({"rollouts": "lockstep"}, "rollouts: lockstep"),
    ],
)
def test_expert_parallel_refuses_options_that_it_excludes(options: dict[str, Any], name: str) -> None:
    with pytest.raises(UserError, match=f"expert_parallel: cannot be used with {name}"):
        FSDP2Strategy(expert_parallel=True, **options)
