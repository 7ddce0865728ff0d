#!/usr/bin/env bash
# In mixtures with fused experts, target_modules that match the dense layers alone adapt the experts and no dense layer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 \
  transformers==5.19.0 peft==0.21.2 accelerate==1.15.0
cat > program.py <<'PROGRAM'
import re
import sys

import peft
import torch
import transformers

CONFIG = transformers.DeepseekV3Config(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, moe_intermediate_size=24, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
    n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
    qk_nope_head_dim=8, v_head_dim=8,
)  # layer 0 is dense, layer 1 has four experts and a shared one
TARGETS = {
    "the dense layers of layer 0": r"model\.layers\.0\.mlp\.(gate|up|down)_proj",
    "the shared expert": r".*\.shared_experts\.(gate|up|down)_proj",
}

print("transformers", transformers.__version__, "peft", peft.__version__)
as_described = True
for meant, pattern in TARGETS.items():
    model = transformers.DeepseekV3ForCausalLM(CONFIG)
    matching = [name for name, part in model.named_modules() if re.fullmatch(pattern, name)]
    assert len(matching) == 3 and all(isinstance(model.get_submodule(name), torch.nn.Linear) for name in matching)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=pattern))
    places = sorted({
        name.split(".lora_")[0].removeprefix("base_model.model.").replace(".base_layer", "")
        for name, weight in adapted.named_parameters() if weight.requires_grad
    })
    print(f"\nmeant: {meant}, target_modules={pattern!r}")
    print("  layers that the expression matches:", *matching)
    print("  layers that have an adapter now:   ", *places)
    as_described = as_described and places == ["model.layers.1.mlp.experts"]
sys.exit(not as_described)
PROGRAM
venv/bin/python -W ignore program.py
