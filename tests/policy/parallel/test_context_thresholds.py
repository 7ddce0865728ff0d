"""Every number of tokens from which on a model computes in another way is known before rows reach it."""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from gspo_lightning.policy.model_checks.row_isolation import context_thresholds
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from tests.support.model_families import COMMON
from tools.models import tiny


def of(model: object) -> list[int]:
    return context_thresholds(Policy(model, character_tokenizer()))  # type: ignore[arg-type]


def test_every_kind_of_horizon_is_known() -> None:
    assert of(LlamaForCausalLM(LlamaConfig(**COMMON))) == []
    assert of(MistralForCausalLM(MistralConfig(**COMMON, sliding_window=None))) == []
    assert of(MistralForCausalLM(MistralConfig(**COMMON, sliding_window=25))) == [25]
    for family in ("gemma3_text", "gpt_neo", "deepseek_v32", "doge", "modernbert-decoder", "recurrent_gemma"):
        assert tiny.WINDOW in of(tiny.build(family)), family


def test_attributes_of_modules_count_too_and_truth_values_do_not() -> None:
    model = LlamaForCausalLM(LlamaConfig(**COMMON))
    attention = model.model.layers[0].self_attn
    attention.attention_window, attention.use_window, attention.index_topk = 7, True, 1
    assert of(model) == [7]
