#!/usr/bin/env bash
# A LoRA adapter on dt_proj of Mamba and Jamba changes nothing and gets no gradient: the model reads the layer's weight.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 \
  transformers==5.19.0 peft==0.21.2 accelerate==1.15.0
cat > program.py <<'PROGRAM'
import logging
import sys

import peft
import torch
import transformers

logging.disable(logging.WARNING)  # which fast kernels are not installed
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
MODELS = [
    transformers.MambaForCausalLM(transformers.MambaConfig(**SMALL, state_size=8)),
    transformers.JambaForCausalLM(
        transformers.JambaConfig(
            **SMALL, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, num_experts=2,
            attn_layer_period=2, attn_layer_offset=1, mamba_dt_rank=4, mamba_d_state=8,
        )
    ),
]

torch.manual_seed(0)
tokens = torch.randint(0, 64, (2, 8))
print("transformers", transformers.__version__, "peft", peft.__version__)
as_described = True
for model in MODELS:
    name = type(model).__name__
    model.eval()
    before = model(tokens).logits.detach()
    # adapters of random weights, so that each of them changes what its layer computes
    config = peft.LoraConfig(r=2, target_modules=["dt_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    after = adapted(tokens).logits
    merged = adapted.merge_and_unload()(tokens).logits
    moved, moved_merged = (after - before).abs().max().item(), (merged - before).abs().max().item()
    print(f"{name}: logits move by {moved:.1e} with the adapter and {moved_merged:.1e} once it is merged;", end=" ")
    print("the loss has a gradient" if after.requires_grad else "no adapter has a gradient")
    as_described = as_described and moved == 0 and moved_merged > 1e-6 and not after.requires_grad
sys.exit(not as_described)
PROGRAM
venv/bin/python program.py
