#!/usr/bin/env bash
# add_weighted_adapter's "linear" is not linear: the mean of two adapters holds products of the A of one with the B of the other.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 \
  transformers==5.19.0 peft==0.21.2 accelerate==1.15.0
cat > program.py <<'PROGRAM'
import sys

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
config = LoraConfig(r=8, lora_alpha=8, target_modules=["q_proj"], init_lora_weights=False)
model = get_peft_model(LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)), config, adapter_name="first")
model.add_adapter("second", config)
layer = model.base_model.model.model.layers[0].self_attn.q_proj
wanted = (0.5 * layer.get_delta_weight("first") + 0.5 * layer.get_delta_weight("second")).detach()

print("peft", peft.__version__, "- half of one adapter and half of another, beside the mean of what they add to the weights:")
off = {}
for kind in ("linear", "cat", "svd"):
    options = {"svd_rank": 16} if kind == "svd" else {}
    model.add_weighted_adapter(["first", "second"], [0.5, 0.5], kind, combination_type=kind, **options)
    off[kind] = ((layer.get_delta_weight(kind).detach() - wanted).norm() / wanted.norm()).item()
    print(f"{kind}: off by {off[kind]:.2%}")
sys.exit(not (off["linear"] > 0.5 and off["cat"] < 1e-5 and off["svd"] < 1e-4))
PROGRAM
venv/bin/python program.py
