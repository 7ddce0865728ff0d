"""Adapters in mixtures of many layouts: which layers get some, and that PEFT, an export and a new run read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteMoeSharedConfig,
    GraniteMoeSharedForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.adapters.adapter_files import save_adapters
from gspo_lightning.policy.adapters.four_bit import quantise
from gspo_lightning.policy.adapters.lora import LoRA, adapters_off, add_adapters, merge_adapters
from gspo_lightning.policy.tiny import build_tiny_model
from tests.support import exact_families, model_families
from tests.support.model_families import COMMON

EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA: dict[str, Any] = {
    "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16,
    "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "vocab_size_per_layer_input": 39,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "head_dim": 4, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
}  # fmt: skip
BUILDERS: dict[str, Any] = {
    "qwen3_moe": lambda: build_tiny_model("tiny-qwen3-moe", 0),
    "qwen3_vl_moe": lambda: build_tiny_model("tiny-qwen3-vl-moe", 0),
    "qwen2_moe": lambda: Qwen2MoeForCausalLM(Qwen2MoeConfig(**COMMON, **EXPERTS, shared_expert_intermediate_size=16)),
    "qwen3_next": model_families.BUILDERS["qwen3-next"],
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**COMMON, **LOCAL)),
    "gpt_oss": lambda: GptOssForCausalLM(GptOssConfig(**COMMON, **LOCAL, rope_parameters={"rope_theta": 1e4})),
    "deepseek_v3": lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**(COMMON | DEEPSEEK))),
    "llama4": exact_families.BUILDERS["llama4"],
    "phimoe": exact_families.BUILDERS["phimoe"],
    "jamba": exact_families.BUILDERS["jamba"],
    "granitemoeshared": lambda: GraniteMoeSharedForCausalLM(
        GraniteMoeSharedConfig(**COMMON, **LOCAL, shared_intermediate_size=16)
    ),
    "hunyuan": lambda: HunYuanMoEV1ForCausalLM(HunYuanMoEV1Config(**COMMON, num_experts=4, moe_topk=2)),
    "gemma4": lambda: Gemma4ForCausalLM(Gemma4TextConfig(**COMMON, **GEMMA)),
}
ATTENTION = {f"self_attn.{part}_proj" for part in "qkvo"}
LATENT = {f"self_attn.{part}" for part in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")}
GATED = ("gate_proj", "up_proj", "down_proj")
ADAPTED = {
    "qwen3_moe": ATTENTION,
    "qwen3_vl_moe": ATTENTION,
    "qwen2_moe": ATTENTION | {f"mlp.shared_expert.{part}" for part in GATED},
    "qwen3_next": ATTENTION | {f"linear_attn.{part}" for part in ("in_proj_qkvz", "in_proj_ba", "out_proj")},
    "mixtral": ATTENTION,
    "gpt_oss": ATTENTION,
    "deepseek_v3": LATENT,  # neither its dense layer nor its shared experts: PEFT takes their names for experts
    "llama4": ATTENTION | {f"feed_forward.shared_expert.{part}" for part in GATED},
    "phimoe": ATTENTION,
    "jamba": ATTENTION
    | {f"feed_forward.{part}" for part in GATED}
    | {f"mamba.{part}" for part in ("in_proj", "x_proj", "dt_proj", "out_proj")},
    "granitemoeshared": ATTENTION | {"shared_mlp.input_linear", "shared_mlp.output_linear"},
    "hunyuan": ATTENTION,
    "gemma4": ATTENTION | {f"mlp.{part}" for part in GATED} | {"per_layer_input_gate", "per_layer_projection"},
}
"""Linear layers with adapters, by their names inside a layer."""
ROUTERS = {
    "qwen2_moe": {"mlp.shared_expert_gate"}, "qwen3_next": {"mlp.shared_expert_gate"}, "phimoe": {"mlp.router"},
    "llama4": {"feed_forward.router"}, "jamba": {"feed_forward.router"}, "hunyuan": {"mlp.gate.wg"},
    "gemma4": {"router.proj"},
}  # fmt: skip
"""Those that are linear layers, for which PEFT's all-linear has adapters."""
IDS = torch.arange(3, 27)[None]


def build(family: str) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = BUILDERS[family]()
    return model.eval()


def adapted(family: str, lora: LoRA) -> PreTrainedModel:
    model = build(family)
    add_adapters(model, lora, seed=0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            unread = "dt_proj" in name  # Jamba multiplies by its weight, past any adapter: that one stays 0
            if "lora_B" in name and lora.start_from is None and not unread:
                weight.add_(0.02 * torch.arange(weight.numel()).view_as(weight).cos())
    return model.eval()


@torch.no_grad()
def logprobs(model: nn.Module) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)
    return found


def inside_layers(names: set[str]) -> set[str]:
    return {re.sub(r"^.*layers\.\d+\.", "", name) for name in names}


@pytest.mark.parametrize("family", BUILDERS)
def test_peft_an_export_and_a_new_start_read_the_adapters_of_a_mixture(family: str, tmp_path: Path) -> None:
    model, base = adapted(family, LoRA(r=2)), logprobs(build(family))
    layers = {name.partition(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert inside_layers(layers) - {"model.per_layer_model_projection"} == ADAPTED[family]
    assert all(".lora_" in name for name, p in model.named_parameters() if p.requires_grad)
    expected = logprobs(model)
    assert (expected - base).abs().max() > 1e-3
    with adapters_off(model):
        assert torch.equal(logprobs(model), base)
    save_adapters(model, tmp_path)
    assert torch.equal(logprobs(PeftModel.from_pretrained(build(family), tmp_path).eval()), expected)
    assert torch.equal(logprobs(adapted(family, LoRA(start_from=str(tmp_path)))), expected)
    merge_adapters(model)
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
    assert (logprobs(model) - expected).abs().max() < 5e-5  # merged weights are rounded, by kernels of the processor


@pytest.mark.parametrize("family", ROUTERS)
def test_routers_that_are_linear_layers_are_neither_adapted_nor_packed(family: str) -> None:
    (router,) = ROUTERS[family]
    last = router.rpartition(".")[2]
    with pytest.raises(UserError, match=r"model\.lora\.target_modules(.|\n)*experts and routers of"):
        add_adapters(build(family), LoRA(target_modules=["q_proj", last]), seed=0)
    model = build(family)
    quantise(model)
    packed = {name for name, layer in model.named_modules() if type(layer).__name__ == "Linear4bit"}
    assert packed
    assert router not in inside_layers(packed)


@pytest.mark.parametrize(
    "names",
    [
        ["q_proj", "experts"],
        ["q_proj", "gate_proj", "up_proj", "down_proj"],  # as they were called before they were fused
        ["up_proj"],
        ["q_proj", "gate_up_proj"],
        ["q_proj", "gate"],
        r".*(q_proj|mlp.gate)",
        r".*(q_proj|up_proj|gate_proj)",
    ],
)
def test_asking_for_experts_or_routers_is_refused(names: list[str] | str) -> None:
    with pytest.raises(UserError, match=r"experts and routers of Qwen3MoeForCausalLM get no adapters") as refused:
        add_adapters(build("qwen3_moe"), LoRA(target_modules=names), seed=0)
    assert refused.value.field == "model.lora.target_modules"
    assert refused.value.fix == "use all-linear, or a list of: k_proj, o_proj, q_proj, v_proj"


def test_a_pattern_adapts_the_layers_that_it_matches_and_no_others() -> None:
    """PEFT alone takes the last names of what matches, and so every layer."""
    model = adapted("qwen3_moe", LoRA(r=2, target_modules=r".*layers\.1\.self_attn\.[qv]_proj"))
    layers = {name.partition(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert layers == {"model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"}


def test_adapters_of_experts_are_no_start(tmp_path: Path) -> None:
    """As PEFT made them before transformers fused experts, and as it still does."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"])
    get_peft_model(build("qwen3_moe"), config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model\.lora\.start_from(.|\n)*merge"):
        add_adapters(build("qwen3_moe"), LoRA(start_from=str(tmp_path)), seed=0)


def test_a_dense_model_is_no_mixture() -> None:
    model = build_tiny_model("tiny-qwen3", 0)
    add_adapters(model, LoRA(r=2), seed=0)
    layers = {name.partition(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert inside_layers(layers) == ATTENTION | {f"mlp.{part}" for part in GATED}
