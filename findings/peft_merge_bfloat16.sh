#!/usr/bin/env bash
# merge_and_unload into bfloat16 weights drops a small adapter: what is below half of the last bit of a weight is gone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 \
  transformers==5.19.0 peft==0.21.2 accelerate==1.15.0
cat > program.py <<'PROGRAM'
import sys
import warnings

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.arange(3, 60)[None]


@torch.no_grad()
def merged(scale, dtype):
    """Share of weights that merging changes, and how far its change of weights and of log-probabilities is off."""
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=64, **SIZES)).to(torch.bfloat16).to(dtype)  # as checkpoints are
    config = LoraConfig(r=8, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"], init_lora_weights=False)
    model = get_peft_model(base, config).eval()
    layers = [module for module in model.modules() if hasattr(module, "lora_B")]
    for layer in layers:
        size = layer.base_layer.weight.float().norm() / layer.get_delta_weight("default").float().norm()
        layer.lora_B["default"].weight.mul_(scale * size)
    before = [layer.base_layer.weight.float().clone() for layer in layers]
    deltas = [layer.get_delta_weight("default").float() for layer in layers]
    model.merge_adapter()
    actual = [layer.base_layer.weight.float() - weight for layer, weight in zip(layers, before)]
    flat, wanted = torch.cat([a.flatten() for a in actual]), torch.cat([d.flatten() for d in deltas])
    along = (flat @ wanted / (wanted @ wanted)).item()
    return (flat != 0).float().mean().item(), ((flat - wanted).norm() / wanted.norm()).item(), along


print("peft", peft.__version__, "torch", torch.__version__, "- adapters of a size relative to the weights, merged:")
found = {}
with warnings.catch_warnings(record=True) as raised:
    warnings.simplefilter("always")
    for dtype in (torch.float32, torch.bfloat16):
        for scale in (1e-2, 1e-3, 1e-4):
            found[dtype, scale] = changed, error, along = merged(scale, dtype)
            print(f"{dtype}, {scale:g}: {changed:.1%} of weights changed, change off by {error:.0%}, {along:.0%} of it along the adapter")
print("warnings:", len(raised))
small, tiny = found[torch.bfloat16, 1e-3], found[torch.bfloat16, 1e-4]
exact = max(error for (dtype, _), (_, error, _) in found.items() if dtype == torch.float32)
sys.exit(not (exact < 0.01 and small[0] < 0.5 and small[1] > 0.5 and tiny[0] < 0.1 and tiny[1] > 0.8))
PROGRAM
venv/bin/python program.py
